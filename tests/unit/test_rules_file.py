"""routes.yaml: what is read, and that every mistake is named with its line and key path."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from app.core.errors import RoutesInvalid
from app.core.paths import resource
from app.core.router.decision import CachePolicy, TargetKind
from app.core.router.routes_file import parse_routes, read_routes, write_default
from app.core.router.routes_schema import json_schema
from app.core.router.rules import AnyAll, HeaderCondition

FULL = """
version: 1
remotes:
  office:
    base_url: https://llm.example.org/v1/
    key_env: OFFICE_KEY
    models: {large: Qwen/Qwen3-235B}
    headers: {X-Team: a}
    idle_timeout_s: 60
  lab: {base_url: "http://10.0.0.5:8000/v1", verify_tls: false, max_in_flight: 4}
pools:
  gpus: {members: [office, lab], strategy: least_in_flight, back_off_s: 2}
rules:
  - name: all kinds
    when:
      path: /v1/chat/completions
      path_prefix: [/v1/]
      path_model: qwen*
      model: [qwen-7b, "*coder*"]
      model_prefix: qw
      tags: {any: [a, b], all: c}
      headers: {X-Team: [infra, "web*"], X-Gone: null}
      keywords: [sql, "  stack   trace ", 代码]
      look_in: last_user
      regex: '\\bfoo\\d+'
      use_regex: true
      min_characters: 1
      max_characters: 2
      min_prompt_tokens: 3
      max_prompt_tokens: 4
      has_tools: yes
      has_images: false
      wants_json: true
      stream: off
      session: "*"
    then:
      target: gpus
      cache: {ttl_s: 60, streams_with_tools: true}
      priority: -3
      max_tokens: 100
      max_seconds: 2.5
      overload: degrade
      fallbacks: {overloaded: office, unavailable: auto, context_exceeded: lab, failed: small}
  - name: switched off
    enabled: false
    then: {target: office}
  - name: reply
    when: {keywords: ping}
    then: {reply: pong}
  - name: rest
    then: {target: auto}
"""


def problems_of(text: str, folder: Path = Path()) -> list[dict[str, Any]]:
    with pytest.raises(RoutesInvalid) as caught:
        parse_routes(text, "routes.yaml", folder)
    found = caught.value.details["problems"]
    assert isinstance(found, list)
    return found


def test_parse_every_key_is_read() -> None:
    read = parse_routes(FULL, "routes.yaml")
    assert [rule.name for rule in read.rules] == ["all kinds", "reply", "rest"]
    first, reply, rest = read.rules
    given = first.conditions
    assert given.models == ("qwen-7b", "*coder*")
    assert given.tags == AnyAll(("a", "b"), ("c",))
    assert given.headers == (
        HeaderCondition("x-team", ("infra", "web*")),
        HeaderCondition("x-gone"),
    )
    assert given.keywords == AnyAll(("sql", "stack trace", "代码"))
    assert (given.scope, given.regexes) == ("last_user", (r"\bfoo\d+",))
    assert (given.has_tools, given.has_images, given.is_stream) == (True, False, False)
    assert (given.min_prompt_tokens, given.max_prompt_tokens, given.sessions) == (3, 4, ("*",))
    action = first.action
    assert (action.target, action.kind, action.priority) == ("gpus", TargetKind.POOL, -3)
    assert action.cache == CachePolicy(60, True)
    assert action.fallbacks == {
        "overloaded": "office",
        "unavailable": "auto",
        "context_exceeded": "lab",
        "failed": "small",
    }
    assert (reply.action.kind, reply.action.canned) == (TargetKind.CANNED, "pong")
    line = FULL.splitlines().index("  - name: rest") + 1
    assert (rest.action.kind, rest.line) == (TargetKind.AUTO, line)
    office = read.remotes["office"]
    assert (office.base_url, office.models) == (
        "https://llm.example.org/v1",
        {"large": "Qwen/Qwen3-235B"},
    )
    assert not read.remotes["lab"].verify_tls
    assert read.pools["gpus"].members == ("office", "lab")


@pytest.mark.parametrize(
    ("text", "line", "key", "words"),
    [
        (
            "rules:\n  - name: a\n    wehn: {}\n    then: {target: auto}",
            3,
            "rules[0].wehn",
            "`when`",
        ),
        (
            "rules:\n  - name: a\n    when: {modle: x}\n    then: {target: x}",
            3,
            "rules[0].when.modle",
            "`model`",
        ),
        (
            "rules:\n  - name: a\n    when:\n      tags:\n        anny: x\n    then: {target: x}",
            5,
            "rules[0].when.tags.anny",
            "`any`",
        ),
        ("rulez: []", 1, "rulez", "`rules`"),
        (
            "rules:\n  - name: a\n    when: {max_tokens: 800}\n    then: {target: x}",
            3,
            "rules[0].when.max_tokens",
            "`max_prompt_tokens`",
        ),
        (
            "rules:\n  - name: a\n    when:\n      min_prompt_tokens: many\n    then: {target: x}",
            4,
            "rules[0].when.min_prompt_tokens",
            "whole number",
        ),
        (
            "rules:\n  - name: a\n    when: {tags: [no]}\n    then: {target: x}",
            3,
            "rules[0].when.tags[0]",
            "quotes",
        ),
        (
            "rules:\n  - name: a\n    when: {model: []}\n    then: {target: x}",
            3,
            "rules[0].when.model",
            "length",
        ),
        (
            "rules:\n  - name: a\n    then: {target: x, priority: 11}",
            3,
            "rules[0].then.priority",
            "10",
        ),
        (
            "rules:\n  - name: a\n    then: {target: x, overload: wait}",
            3,
            "rules[0].then.overload",
            "wait",
        ),
        ("rules:\n  - then: {target: x}", 2, "rules[0]", "`name`"),
        ("rules:\n  - name: a", 2, "rules[0]", "`then`"),
        ("rules:\n  - name: a\n    then: {}", 3, "rules[0].then", "`reply`"),
        ("rules:\n  - name: a\n    then: {target: x, reply: y}", 3, "rules[0].then", "either"),
        (
            "rules:\n  - name: a\n    then: {target: x}\n  - name: a\n    then: {target: x}",
            4,
            "rules[1].name",
            "another",
        ),
        (
            "rules:\n  - name: a\n    when: {regex: x}\n    then: {target: x}",
            3,
            "rules[0].when.regex",
            "use_regex",
        ),
        (
            "rules:\n  - name: a\n    when: {regex: [x, '(a'], use_regex: true}\n    then: {target: x}",
            3,
            "rules[0].when.regex[1]",
            "missing )",
        ),
        (
            "rules:\n  - name: a\n    when: {regex: '(?=a)b', use_regex: true}\n    then: {target: x}",
            3,
            "rules[0].when.regex",
            "RE2",
        ),
        (
            "rules:\n  - name: a\n    when: {regex: '((((a{90}){90}){90}){90})', use_regex: true}\n    then: {target: x}",
            3,
            "rules[0].when.regex",
            "RE2",
        ),
        (
            "rules:\n  - name: a\n    when: {keywords: ['**']}\n    then: {target: x}",
            3,
            "rules[0].when.keywords",
            "letters",
        ),
        (
            "rules:\n  - name: a\n    when: {model_prefix: 'a*b'}\n    then: {target: x}",
            3,
            "rules[0].when.model_prefix",
            "beginning",
        ),
        (
            "rules:\n  - name: a\n    when: {headers: {'bad name': x}}\n    then: {target: x}",
            3,
            "rules[0].when.headers.bad name",
            "header",
        ),
        (
            "rules:\n  - name: a\n    when: {headers: {X-a: x, x-A: y}}\n    then: {target: x}",
            3,
            "rules[0].when.headers.x-A",
            "twice",
        ),
        (
            "rules:\n  - name: a\n    then: {target: x, overload: degrade}",
            3,
            "rules[0].then.overload",
            "overloaded",
        ),
        (
            "rules:\n  - name: a\n    then: {target: x, fallbacks: {failed: x}}",
            3,
            "rules[0].then.fallbacks.failed",
            "own",
        ),
        (
            "rules:\n  - name: a\n    then:\n      target: x\n      system_prompt: none.j2",
            5,
            "rules[0].then.system_prompt",
            "none.j2",
        ),
        ("remotes:\n  a:\n    base_url: ftp://x", 3, "remotes.a.base_url", "regex"),
        ("remotes:\n  a:\n    base_url: https://u:p@x/v1", 3, "remotes.a.base_url", "passwords"),
        (
            "remotes:\n  a: {base_url: 'https://x/v1', api_key: sk-1}",
            2,
            "remotes.a.api_key",
            "key_env",
        ),
        (
            "remotes:\n  a: {base_url: 'https://x/v1', headers: {Authorization: Bearer x}}",
            2,
            "remotes.a.headers.Authorization",
            "key_env",
        ),
        (
            "remotes:\n  a: {base_url: 'https://x/v1', key_env: A, key_keyring: b}",
            2,
            "remotes.a.key_keyring",
            "not both",
        ),
        ("remotes:\n  auto: {base_url: 'https://x/v1'}", 2, "remotes.auto", "taken"),
        ("pools:\n  p: {members: [nobody]}", 2, "pools.p.members[0]", "nobody"),
        ("pools:\n  p: {members: []}", 2, "pools.p.members", "length"),
        ("version: 2", 1, "version", "version 1"),
        ("rules: 5", 1, "rules", "list"),
        ("rules:\n  - 5", 2, "rules[0]", "keys"),
        ("- a", 1, "", "keys"),
        ("rules: [", 2, "", "YAML"),
        ("a: 1\na: 2", 2, "a", "twice"),
        ("rules: &x [*x]", 1, "rules[0]", "itself"),
        ("version: \x01", 1, "", "character"),
        ("? [a]\n: 1", 1, "", "word"),
        ("rules: !!python/object:os.system x", 1, "", "YAML"),
    ],
)
def test_parse_mistake_is_named_where_it_stands(text: str, line: int, key: str, words: str) -> None:
    found = problems_of(text)
    assert (found[0]["line"], found[0]["key"]) == (line, key)
    assert words in str(found[0]["text"])


def test_parse_several_mistakes_are_named_at_once() -> None:
    found = problems_of(
        "rules:\n  - name: a\n    then: {target: x, priority: 99}\n  - name: b\n    whem: 1\n"
        "    then: {target: x}\nremotes:\n  r: {base_url: nowhere}\n"
    )
    assert [problem["line"] for problem in found] == [3, 5, 8]


def test_parse_secret_is_never_repeated() -> None:
    found = problems_of("remotes:\n  a: {base_url: 'https://x/v1', api_key: sk-very-secret}")
    assert "sk-very-secret" not in json.dumps(found)


def test_parse_anchors_and_merges_are_understood() -> None:
    read = parse_routes(
        "rules:\n  - &a\n    name: a\n    when: {model: x}\n    then: &t {target: y}\n"
        "  - <<: *a\n    name: b\n  - name: c\n    then: *t\n"
    )
    assert [(rule.name, rule.conditions.models, rule.line) for rule in read.rules] == [
        ("a", ("x",), 2),
        ("b", ("x",), 6),
        ("c", (), 8),
    ]


def test_parse_empty_file_has_no_rules() -> None:
    assert parse_routes("").rules == ()
    assert parse_routes("rules:\nremotes:\n").rules == ()


def test_parse_template_is_compiled_and_its_line_named(tmp_path: Path) -> None:
    (tmp_path / "good.j2").write_text("You are {{ model }}.", encoding="utf-8")
    (tmp_path / "bad.j2").write_text("ok\n{% if %}", encoding="utf-8")
    text = "rules:\n  - name: a\n    then: {{target: x, system_prompt: {}.j2}}\n"
    read = parse_routes(text.format("good"), "routes.yaml", tmp_path)
    assert read.rules[0].action.system_prompt == tmp_path / "good.j2"
    assert "line 2" in str(problems_of(text.format("bad"), tmp_path)[0]["text"])


def test_read_file_that_is_not_there_or_not_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RoutesInvalid, match="cannot be read"):
        read_routes(tmp_path / "none.yaml")
    (tmp_path / "odd.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RoutesInvalid, match="UTF-8"):
        read_routes(tmp_path / "odd.yaml")


def test_write_default_is_valid_and_never_overwrites(tmp_path: Path) -> None:
    path = tmp_path / "routes.yaml"
    assert write_default(path)
    assert read_routes(path).rules[-1].conditions.is_catch_all
    path.write_text("rules: []", encoding="utf-8")
    assert not write_default(path)
    assert path.read_text(encoding="utf-8") == "rules: []"


def test_default_file_examples_that_are_commented_out_are_valid() -> None:
    """Prose stands behind two marks, and examples behind one."""
    shown = [
        line.replace("# ", "", 1) if line.lstrip().startswith("# ") else line
        for line in resource("routes.yaml").read_text(encoding="utf-8").splitlines()
    ]
    read = parse_routes("\n".join(shown))
    assert {"code", "long"} <= {rule.name for rule in read.rules}
    assert read.pools["gpus"].members == tuple(read.remotes)


def test_schema_for_editors_is_the_one_that_is_checked_against() -> None:
    shipped = json.loads(resource("routes.schema.json").read_text(encoding="utf-8"))
    assert shipped == json_schema()


def test_docs_every_example_is_valid() -> None:
    page = (Path(__file__).parents[2] / "docs" / "routes.md").read_text(encoding="utf-8")
    examples = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert len(examples) == 3
    for example in examples:
        parse_routes(example)


def test_docs_every_key_is_described() -> None:
    page = (Path(__file__).parents[2] / "docs" / "routes.md").read_text(encoding="utf-8")
    for entry in json_schema()["$defs"].values():
        for key in entry["properties"]:
            assert f"`{key}`" in page or f"{key}:" in page or f"`{key}=" in page, key
