"""What the compiled table is measured against: a loop, a router of regexes, and a decision cache."""

import json
import random
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence

from app.core.router import Decision, Router
from app.core.router.automaton import fold, is_word_character
from app.core.router.explain import has_keyword
from app.core.router.features import RequestFeatures
from app.core.router.patterns import fits
from app.core.router.rules import AnyAll, Conditions, Rule
from benchmarks.route_data import FILLER, KEYWORDS

_Test = Callable[[RequestFeatures, str], bool]


class LoopRouter:
    """Top-down over the rules, each a list of closures; the text is folded once for each request."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = [(rule.name, tuple(self._tests(rule.conditions))) for rule in rules]

    def route(self, features: RequestFeatures) -> str:
        whole, last = fold(features.text), fold(features.last_user)
        for name, tests in self._rules:
            for needs_last, test in tests:
                if not test(features, last if needs_last else whole):
                    break
            else:
                return name
        return "(none)"

    def _tests(self, given: Conditions) -> list[tuple[bool, _Test]]:
        """The cheap ones first, as a careful author would write them."""
        tests: list[_Test] = []
        if given.has_tools is not None:
            tests.append(lambda f, _t, w=given.has_tools: f.has_tools is w)  # type: ignore[misc]
        if given.is_stream is not None:
            tests.append(lambda f, _t, w=given.is_stream: f.is_stream is w)  # type: ignore[misc]
        if given.wants_json is not None:
            tests.append(lambda f, _t, w=given.wants_json: f.wants_json is w)  # type: ignore[misc]
        if given.min_characters is not None:
            tests.append(lambda f, _t, n=given.min_characters: f.characters >= n)  # type: ignore[misc]
        if given.max_characters is not None:
            tests.append(lambda f, _t, n=given.max_characters: f.characters <= n)  # type: ignore[misc]
        if given.max_prompt_tokens is not None:
            tests.append(lambda f, _t, n=given.max_prompt_tokens: f.tokens <= n)  # type: ignore[misc]
        if given.path_prefixes:
            tests.append(lambda f, _t, p=given.path_prefixes: f.path.startswith(p))  # type: ignore[misc]
        if given.sessions:
            tests.append(lambda f, _t, s=frozenset(given.sessions): f.session in s)  # type: ignore[misc]
        if given.models:
            tests.append(
                lambda f, _t, m=given.models: any(fits(p, f.model) for p in m)  # type: ignore[misc]
            )
        tests.extend(
            lambda f, _t, h=header: f.headers.get(h.name) in h.patterns  # type: ignore[misc]
            for header in given.headers
        )
        if given.tags:
            tests.append(lambda f, _t, t=given.tags: _has_tags(f, t))  # type: ignore[misc]
        found = [(False, test) for test in tests]
        needs_last = given.scope == "last_user"
        if given.keywords:
            found.append((needs_last, self._keywords(given.keywords)))
        if given.regexes:
            found.append((needs_last, self._regexes(given.regexes, given.scope)))
        return found

    def _keywords(self, given: AnyAll) -> _Test:
        any_of, all_of = tuple(map(fold, given.any)), tuple(map(fold, given.all))
        return lambda _f, text: (
            (not any_of or any(word in text and has_keyword(text, word) for word in any_of))
            and all(word in text and has_keyword(text, word) for word in all_of)
        )

    def _regexes(self, patterns: Sequence[str], scope: str) -> _Test:
        compiled = [re.compile(pattern) for pattern in patterns]
        if scope == "last_user":
            return lambda f, _t: any(each.search(f.last_user) for each in compiled)
        return lambda f, _t: any(each.search(f.text) for each in compiled)


class RegexRouter(LoopRouter):
    """The same loop, keywords as one compiled regex for each rule: what most routers do."""

    def _keywords(self, given: AnyAll) -> _Test:
        any_of = re.compile("|".join(map(_as_regex, given.any))) if given.any else None
        all_of = [re.compile(_as_regex(word)) for word in given.all]
        return lambda _f, text: (
            (any_of is None or any_of.search(text) is not None)
            and all(each.search(text) for each in all_of)
        )


def _as_regex(keyword: str) -> str:
    word = fold(keyword)
    edge = [r"\b" if is_word_character(word[at]) else "" for at in (0, -1)]
    return edge[0] + re.escape(word) + edge[1]


def _has_tags(features: RequestFeatures, wanted: AnyAll) -> bool:
    tags = features.tags
    return (not wanted.any or any(tag in tags for tag in wanted.any)) and all(
        tag in tags for tag in wanted.all
    )


class CachedRouter:
    """A least-recently-used cache of decisions, keyed on what rules look at, texts by their hash."""

    def __init__(self, router: Router, most: int = 4096) -> None:
        self._router = router
        self._most = most
        self._seen: OrderedDict[tuple[object, ...], Decision] = OrderedDict()
        rules = router.rules.rules
        self._reads_text = any(rule.conditions.reads_text for rule in rules)
        self._headers = sorted({h.name for rule in rules for h in rule.conditions.headers})
        self.hits = self.misses = 0

    def route(self, features: RequestFeatures) -> Decision:
        key = (
            features.path,
            features.path_model,
            features.model,
            features.tags,
            features.characters,
            features.tokens,
            features.has_tools,
            features.has_images,
            features.wants_json,
            features.is_stream,
            features.session,
            tuple(map(features.headers.get, self._headers)),
            hash(features.texts) if self._reads_text else 0,
            hash(features.last_user_texts) if self._reads_text else 0,
        )
        found = self._seen.get(key)
        if found is not None:
            self.hits += 1
            self._seen.move_to_end(key)
            return found
        self.misses += 1
        found = self._seen[key] = self._router.route(features)
        if len(self._seen) > self._most:
            self._seen.popitem(last=False)
        return found


def agent_session(rng: random.Random, turns: int = 40) -> list[bytes]:
    """A coding agent at work: each turn sends all before it and 2 kB more; some are sent twice."""
    system = " ".join(rng.choices(FILLER, k=4_000))
    messages: list[dict[str, object]] = [{"role": "system", "content": system}]
    found: list[bytes] = []
    for turn in range(turns):
        said = " ".join([*rng.choices(FILLER, k=250), rng.choice(KEYWORDS)])
        messages.append({"role": "assistant" if turn % 2 else "user", "content": said})
        body = {
            "model": "qwen3-7b-coder",
            "messages": messages,
            "tools": [{"type": "function", "function": {"name": "read", "parameters": {}}}],
            "stream": True,
            "user": "session-1",
        }
        found.append(json.dumps(body).encode())
        if rng.random() < 0.1:
            found.append(found[-1])
    return found
