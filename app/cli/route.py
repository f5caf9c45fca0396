"""`coolhead route [--explain] BODY [--json]`: where a request would go, and why. Needs no running app."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from app.core.errors import RequestInvalid
from app.core.paths import user_paths
from app.core.router.features import RequestFeatures
from app.core.router.router import Explanation, Router, features_of


def add_parser(verbs: Any) -> None:
    parser = verbs.add_parser("route", help="where a request would go, and why")
    parser.add_argument("body", help="the request's JSON; @FILE reads a file, - reads stdin")
    parser.add_argument(
        "--explain", action="store_true", help="say how far each rule before the one that fits got"
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--path", default="", help="as in /v1/chat/completions; told from the body where left out"
    )
    parser.add_argument(
        "--header", action="append", default=[], metavar="NAME:VALUE", help="may be repeated"
    )
    parser.add_argument("--routes", type=Path, help="another rules file than the user's")


def run(args: argparse.Namespace) -> int:
    """Raises: RoutesInvalid for wrong rules, RequestInvalid for a wrong body."""
    file = args.routes or user_paths().routes_file
    router = Router.from_config(file) if args.routes or file.exists() else Router.default()
    features = features_of(_body(args.body), args.path, _headers(args.header))
    explained = router.explain(features)
    if args.json:
        print(json.dumps(_tree(explained, args.explain), indent=2, ensure_ascii=False))
        return 0
    decision = explained.decision
    action = decision.action
    print(f"{action.kind}: {decision.target or 'fixed reply'}")
    print(f"by rule {decision.rule!r} ({decision.reason}), in {decision.microseconds:.0f} us")
    for key, value in _extras(explained).items():
        print(f"  {key}: {value}")
    if args.explain:
        print(f"\nThe request: {_seen(features)}")
        for check in explained.checked:
            where = f" (line {check.rule.line})" if check.rule.line else ""
            why = (
                "fits"
                if check.failed is None
                else f"no, {check.failed.key} is not {check.failed.wanted}"
            )
            print(f"  {check.rule.name}{where}: {why}")
        if not explained.checked or explained.checked[-1].failed is not None:
            print("  No rule fits, so it goes to `auto`.")
    return 0


def _body(given: str) -> bytes:
    if given == "-":
        return sys.stdin.buffer.read()
    if given.startswith("@"):
        try:
            return Path(given[1:]).read_bytes()
        except OSError as error:
            raise RequestInvalid(f"{given[1:]} cannot be read: {error.strerror}.") from error
    return given.encode()


def _headers(given: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in given:
        name, colon, value = line.partition(":")
        if not colon:
            raise RequestInvalid(f"{line!r} is no header; it takes NAME:VALUE.")
        found[name.strip().lower()] = value.strip()
    return found


def _seen(features: RequestFeatures) -> str:
    """What the rules see of the request, never its words."""
    said = [
        features.path,
        f"model {features.model}" if features.model else "no model",
        f"{features.characters:,} characters",
        f"about {features.tokens:,} tokens",
    ]
    said += [
        word
        for word, holds in (
            ("tools", features.has_tools),
            ("images", features.has_images),
            ("wants JSON", features.wants_json),
            ("stream", features.is_stream),
        )
        if holds
    ]
    if features.tags:
        said.append("tags " + ", ".join(features.tags))
    if features.session:
        said.append(f"session {features.session}")
    return "; ".join(said)


def _extras(explained: Explanation) -> dict[str, object]:
    """What the action adds to a plain target."""
    action = explained.decision.action
    extras: dict[str, object] = {
        "priority": action.priority,
        "max_tokens": action.max_tokens,
        "max_seconds": action.max_seconds,
        "overload": action.overload,
        "cache_ttl_s": action.cache.ttl_s,
        "system_prompt": action.system_prompt and str(action.system_prompt),
        "chat_template": action.chat_template and str(action.chat_template),
        "fallbacks": dict(action.fallbacks),
        "reply": action.canned,
    }
    return {key: value for key, value in extras.items() if value}


def _tree(explained: Explanation, is_full: bool) -> dict[str, object]:
    decision, features = explained.decision, explained.features
    tree: dict[str, object] = {
        "target": decision.target,
        "kind": str(decision.kind),
        "rule": decision.rule,
        "reason": decision.reason,
        "microseconds": round(decision.microseconds, 1),
        "model": decision.model,
        "path": decision.path,
        **_extras(explained),
    }
    if is_full:
        tree["request"] = {
            "path": features.path,
            "model": features.model,
            "tags": list(features.tags),
            "characters": features.characters,
            "tokens": features.tokens,
            "has_tools": features.has_tools,
            "has_images": features.has_images,
            "wants_json": features.wants_json,
            "stream": features.is_stream,
            "session": features.session,
        }
        tree["checked"] = [
            {
                "rule": check.rule.name,
                "line": check.rule.line,
                "fits": check.failed is None,
                "failed": None if check.failed is None else check.failed.key,
                "wanted": None if check.failed is None else check.failed.wanted,
            }
            for check in explained.checked
        ]
    return tree
