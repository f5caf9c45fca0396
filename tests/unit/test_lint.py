"""Lint: rules that are correct but cannot mean what they say are named, and no others."""

import random

import pytest

from app.core.router.lint import is_loopback, lint
from app.core.router.problems import Problem
from app.core.router.routes_file import parse_routes
from app.core.router.table import Table


def doubts(
    text: str, models: list[str] | None = None, own_ports: tuple[int, ...] = ()
) -> tuple[Problem, ...]:
    rules = parse_routes(text, "routes.yaml")
    return lint(rules, Table(rules.rules), models, own_ports)


def kinds(rules: list[str]) -> list[tuple[str, str]]:
    """Kind and rule of each doubt about rules given by their conditions, a catch-all added."""
    lines = [
        f"  - name: r{at}\n    when: {{{when}}}\n    then: {{target: auto}}"
        for at, when in enumerate(rules)
    ]
    text = "\n".join(["rules:", *lines, "  - name: rest\n    then: {target: auto}"])
    return [(problem.kind, problem.key.split("'")[1]) for problem in doubts(text)]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("model: qwen*", "model: Qwen-7b"),
        ("model: qwen*", "model: [qwen-7b, qwen-14b]"),
        ("model: '*coder*'", "model: my-coder-7b"),
        ("model: qwen*", "model: qwen-*-coder"),
        ("model_prefix: qw", "model: qwen-7b"),
        ("model_prefix: qw", "model_prefix: qwen"),
        ("path_prefix: /v1/", "path: /v1/chat/completions"),
        ("path_prefix: /v1/", "path_prefix: /v1/chat"),
        ("path_model: a*", "path_model: abc"),
        ("tags: [a, b]", "tags: a"),
        ("tags: {all: [a]}", "tags: {all: [b, A]}"),
        ("tags: [a, b]", "tags: {all: [b, c]}"),
        ("headers: {x-a: 'a*'}", "headers: {X-A: abc}"),
        ("headers: {x-a: null}", "headers: {x-a: null}, model: x"),
        ("keywords: [sql, code]", "keywords: sql"),
        ("keywords: code*", "keywords: codes"),
        ("keywords: [code]", "keywords: [the code]"),
        ("keywords: 码", "keywords: 代码"),
        ("keywords: sql", "keywords: {all: [SQL, code]}"),
        ("keywords: sql", "keywords: sql, look_in: last_user"),
        ("regex: 'a.b', use_regex: true", "regex: 'a.b', use_regex: true, has_tools: true"),
        ("min_prompt_tokens: 10", "min_prompt_tokens: 20"),
        ("min_characters: 10, max_characters: 100", "min_characters: 20, max_characters: 90"),
        ("has_tools: true", "has_tools: true, stream: false"),
        ("session: 's*'", "session: s1"),
        ("model: qwen*, has_images: false", "model: qwen-7b, has_images: false, tags: a"),
    ],
)
def test_lint_rule_behind_a_wider_one_is_shadowed(first: str, second: str) -> None:
    assert kinds([first, second]) == [("shadowed", "r1")]
    assert kinds([second, first]) == []


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("model: qwen-7b", "model: qwen*"),
        ("model: '*coder*'", "model: '*code*'"),
        ("tags: {all: [a, b]}", "tags: [a, b]"),
        ("keywords: code", "keywords: codes"),
        ("keywords: code", "keywords: code*"),
        ("keywords: code", "keywords: [code, sql]"),
        ("keywords: sql, look_in: last_user", "keywords: sql"),
        ("regex: 'a.b', use_regex: true", "regex: 'a.c', use_regex: true"),
        ("min_prompt_tokens: 10", "max_prompt_tokens: 20"),
        ("has_tools: true", "has_tools: false"),
        ("model: qwen*, tags: a", "model: qwen-7b"),
        ("headers: {x-a: a}", "headers: {x-b: a}"),
    ],
)
def test_lint_rule_behind_another_is_not_doubted(first: str, second: str) -> None:
    assert kinds([first, second]) == []


def test_lint_rules_after_a_catch_all_are_named() -> None:
    found = doubts(
        "rules:\n  - name: all\n    then: {target: auto}\n"
        "  - name: late\n    when: {model: x}\n    then: {target: auto}\n"
    )
    assert [(problem.kind, problem.line) for problem in found] == [("after_catch_all", 4)]
    assert "'all' (line 2)" in found[0].text


@pytest.mark.parametrize(
    "when",
    [
        "min_prompt_tokens: 5, max_prompt_tokens: 4",
        "min_characters: 5, max_characters: 4",
        "model: llama, model_prefix: qwen",
        "path: /api/chat, path_prefix: /v1/",
        "path_model: a, model: b",
        "max_characters: 2, keywords: {all: [a, longer than that]}",
        "max_characters: 2, keywords: [longer than that]",
    ],
)
def test_lint_conditions_that_exclude_each_other_are_contradictory(when: str) -> None:
    assert kinds([when]) == [("contradictory", "r0")]


def test_lint_dead_rule_shadows_nobody() -> None:
    assert kinds(
        ["min_prompt_tokens: 5, max_prompt_tokens: 4", "min_prompt_tokens: 5, max_prompt_tokens: 4"]
    ) == [
        ("contradictory", "r0"),
        ("contradictory", "r1"),
    ]


def test_lint_unknown_targets_are_named_where_models_are_known() -> None:
    text = (
        "rules:\n  - name: a\n    when: {model: x}\n"
        "    then: {target: SmolLM2.gguf, fallbacks: {failed: smolm2}}\n"
        "  - name: b\n    then: {target: auto}\n"
    )
    assert doubts(text) == ()
    (found,) = doubts(text, ["smollm2", "gemma"])
    assert (found.kind, found.line) == ("unknown_target", 2)
    assert "'smolm2'" in found.text
    assert "Did you mean 'smollm2'?" in found.text


def test_lint_missing_fallbacks_are_named() -> None:
    remote = "remotes:\n  far: {base_url: 'https://far.example/v1'}\n"
    found = doubts(remote + "rules:\n  - name: a\n    when: {tags: a}\n    then: {target: far}\n")
    assert [problem.kind for problem in found] == ["missing_fallback", "missing_fallback"]
    assert "No rule fits every request" in found[1].text
    safe = "rules:\n  - name: a\n    then: {target: far, fallbacks: {unavailable: auto}}\n"
    assert doubts(remote + safe) == ()


def test_lint_words_that_look_like_regexes_are_named() -> None:
    assert kinds(
        [r"keywords: ['\bsql\b']", "model: ^qwen", "keywords: [c++, 'a*', '$5', what?]"]
    ) == [
        ("regex_not_asked_for", "r0"),
        ("regex_not_asked_for", "r1"),
    ]


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("http://127.0.0.1:9000/v1", ["escapes_guard"]),
        ("http://127.8.0.1/v1", ["escapes_guard"]),
        ("https://localhost/v1", ["escapes_guard"]),
        ("http://[::1]:9000/v1", ["escapes_guard"]),
        ("http://[::ffff:127.0.0.1]:9000/v1", ["escapes_guard"]),
        ("http://0.0.0.0:9000/v1", ["escapes_guard"]),
        ("http://127.0.0.1:8765/v1", ["loop"]),
        ("http://10.0.0.5/v1", ["clear_text"]),
        ("https://10.0.0.5/v1", []),
    ],
)
def test_lint_remotes_by_their_address(address: str, expected: list[str]) -> None:
    text = f"remotes:\n  r: {{base_url: '{address}'}}\n"
    assert [problem.kind for problem in doubts(text, own_ports=(8765,))] == expected


def test_lint_unchecked_certificate_is_named() -> None:
    (found,) = doubts("remotes:\n  r: {base_url: 'https://x.example/v1', verify_tls: false}\n")
    assert (found.kind, found.line) == ("tls_unchecked", 2)


def test_is_loopback_names_that_only_look_like_it_are_not() -> None:
    assert not is_loopback("localhost.example.org")
    assert not is_loopback("128.0.0.1")


def test_lint_thousands_of_rules_takes_seconds_at_most() -> None:
    rng = random.Random(1)
    lines = ["rules:"]
    for at in range(2_000):
        word = "".join(rng.choices("abcdefgh", k=6))
        lines.append(
            f"  - {{name: r{at}, when: {{keywords: [{word}], model: m{at}}}, then: {{target: auto}}}}"
        )
    lines.append("  - {name: rest, then: {target: auto}}")
    assert doubts("\n".join(lines)) == ()
