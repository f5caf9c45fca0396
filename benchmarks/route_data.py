"""Rules of all kinds and requests that meet them, for `route.py`; the same ones for the same seed."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace

from app.core.router.decision import Action, TargetKind
from app.core.router.rules import AnyAll, Conditions, HeaderCondition, Rule

BODY_PATH = "/v1/chat/completions"
HEADERS = {
    "host": "127.0.0.1:8765",
    "user-agent": "OpenAI/Python 2.1.0",
    "content-type": "application/json",
    "accept": "application/json",
    "x-team": "team-7",
    "x-stainless-lang": "python",
}
TEXT_BYTES = 2048

_LETTERS = "etaoinshrdlucmfwypvbgkqjxz"
_FAMILIES = ["qwen", "llama", "gemma", "mistral", "phi", "smollm", "deepseek", "granite"]


def _words(count: int, rng: random.Random) -> list[str]:
    found: dict[str, None] = {}
    while len(found) < count:
        length = rng.randint(4, 10)
        found["".join(rng.choices(_LETTERS, weights=range(26, 0, -1), k=length))] = None
    return list(found)


def _chinese(count: int, rng: random.Random) -> list[str]:
    found: dict[str, None] = {}
    while len(found) < count:
        found["".join(chr(rng.randint(0x4E00, 0x8000)) for _ in range(rng.randint(2, 4)))] = None
    return list(found)


_RNG = random.Random(1)
_ALL_WORDS = _words(12_000, _RNG)
# Keywords and the rest of the text share no word, so that the hits are those that were put in.
KEYWORDS = _ALL_WORDS[:6_000] + _chinese(2_000, _RNG)
FILLER = _ALL_WORDS[6_000:]
MODELS = [
    f"{family}{version}-{size}b{kind}"
    for family in _FAMILIES
    for version in ("2", "2.5", "3")
    for size in (1, 4, 7, 14)
    for kind in ("", "-coder", "-vision")
]
TAGS = [f"tag-{number}" for number in range(300)]


def _text(rng: random.Random, *, is_chinese: bool) -> str:
    hits = [rng.choice(KEYWORDS) for _ in range(rng.randint(0, 5))]
    if is_chinese:
        pieces = ["".join(chr(rng.randint(0x8001, 0x9F00)) for _ in range(20)) for _ in range(33)]
    else:
        pieces = rng.choices(FILLER, k=TEXT_BYTES // 8)
    for hit in hits:
        pieces.insert(rng.randrange(len(pieces)), hit)
    text = ("，" if is_chinese else " ").join(pieces)
    return text.encode()[:TEXT_BYTES].decode(errors="ignore")


def make_bodies(count: int, rng: random.Random) -> list[bytes]:
    """Chat requests as clients send them: some with tools, tags, JSON, streams."""
    bodies: list[bytes] = []
    for number in range(count):
        text = _text(rng, is_chinese=number % 4 == 0)
        cut = len(text) // 4
        body: dict[str, object] = {
            "model": rng.choice(MODELS),
            "messages": [
                {"role": "system", "content": text[:cut]},
                {"role": "user", "content": text[cut:]},
            ],
            "stream": rng.random() < 0.7,
        }
        if rng.random() < 0.3:
            body["tags"] = rng.sample(TAGS, rng.randint(1, 3))
        if rng.random() < 0.3:
            body["tools"] = [{"type": "function", "function": {"name": "read", "parameters": {}}}]
        if rng.random() < 0.1:
            body["response_format"] = {"type": "json_object"}
        if rng.random() < 0.5:
            body["user"] = f"session-{rng.randint(0, 400)}"
        bodies.append(json.dumps(body, ensure_ascii=False).encode())
    return bodies


def _conditions(rng: random.Random) -> Conditions:
    given: dict[str, object] = {}
    kind = rng.random()
    if kind < 0.40:
        words = tuple(rng.sample(KEYWORDS, rng.randint(1, 4)))
        is_all = len(words) > 1 and rng.random() < 0.3
        given["keywords"] = AnyAll(all=words[:2]) if is_all else AnyAll(any=words)
        given["scope"] = "last_user" if rng.random() < 0.2 else "all"
    elif kind < 0.44:
        given["regexes"] = (rf"(?i)\b{rng.choice(KEYWORDS[:6000])}\s+\w+\d{{2}}\b",)
    elif kind < 0.64:
        given["models"] = (
            rng.choice(
                [f"{name}-*" for name in MODELS[:40]]
                + [
                    f"*{rng.choice(MODELS)[2:]}?",
                    f"{rng.choice(_FAMILIES)}9*",
                ]
            ),
        )
    elif kind < 0.78:
        tags = tuple(rng.sample(TAGS, rng.randint(1, 3)))
        given["tags"] = (
            AnyAll(all=tags) if rng.random() < 0.5 else AnyAll(any=tags[:1], all=tags[1:])
        )
    elif kind < 0.86:
        given["headers"] = (HeaderCondition("x-team", (f"team-{rng.randint(10, 400)}",)),)
    elif kind < 0.94:
        given["sessions"] = (f"session-{rng.randint(400, 900)}",)
    else:
        given["path_prefixes"] = (rng.choice(["/v1/embeddings", "/api/", "/v1/responses"]),)
    # A second and third condition, as rules have them.
    if rng.random() < 0.5:
        low = rng.randint(0, 3000)
        given["min_characters"], given["max_characters"] = low, low + rng.randint(200, 4000)
    if rng.random() < 0.3:
        given["models"] = tuple(rng.sample(MODELS, 3))
    if rng.random() < 0.2:
        given["max_prompt_tokens"] = rng.randint(50, 4000)
    if rng.random() < 0.2:
        given["has_tools"] = rng.random() < 0.5
    if rng.random() < 0.2:
        given["is_stream"] = rng.random() < 0.5
    if rng.random() < 0.1:
        given["wants_json"] = True
    return Conditions(**given)  # type: ignore[arg-type]


def make_rules(count: int, rng: random.Random) -> tuple[Rule, ...]:
    """`count` rules of all kinds, the last of which fits every request."""
    action = Action(target="here", kind=TargetKind.LOCAL)
    made = [Rule(f"rule {number}", _conditions(rng), action) for number in range(count - 1)]
    return (*made, Rule("everything else", Conditions(), action))


def without_text(rules: Sequence[Rule]) -> tuple[Rule, ...]:
    """As many rules, those that looked at text now asking for a session instead."""
    return tuple(
        replace(
            rule,
            conditions=replace(
                rule.conditions,
                keywords=AnyAll(),
                regexes=(),
                scope="all",
                sessions=(f"session-{number}x",),
            ),
        )
        if rule.conditions.reads_text
        else rule
        for number, rule in enumerate(rules)
    )
