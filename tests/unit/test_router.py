"""The router as a library: decisions with their reason, reload, and what it costs to import."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from app.core.errors import RequestInvalid, RoutesInvalid
from app.core.router import Decision, RequestFeatures, Router
from app.core.router.decision import TargetKind
from app.core.router.routes_file import parse_routes
from app.core.router.templates import PromptTemplate

RULES = """
remotes:
  office: {base_url: "https://llm.example.org/v1"}
rules:
  - name: code
    when: {keywords: [python], has_tools: false}
    then: {target: coder, priority: 3, fallbacks: {overloaded: auto}}
  - name: long
    when: {min_prompt_tokens: 1000}
    then: {target: office, fallbacks: {failed: auto}}
  - name: ping
    when: {tags: ping}
    then: {reply: pong}
"""


@pytest.fixture
def rules_file(tmp_path: Path) -> Path:
    path = tmp_path / "routes.yaml"
    path.write_text(RULES, encoding="utf-8")
    return path


def chat(text: str, **more: object) -> dict[str, object]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}


def test_route_request_takes_the_first_rule_that_fits(rules_file: Path) -> None:
    router = Router.from_config(rules_file)
    decision = router.route(chat("write Python " * 1000))
    assert (decision.target, decision.kind, decision.rule) == ("coder", TargetKind.LOCAL, "code")
    assert decision.reason == "has_tools: no; keywords.any: python"
    assert (decision.priority, dict(decision.fallbacks)) == (3, {"overloaded": "auto"})
    assert (decision.model, decision.path) == ("m", "/v1/chat/completions")
    assert decision.microseconds > 0
    assert router.route(chat("a word " * 3000)).kind is TargetKind.REMOTE
    assert router.route(chat("hi", tags=["ping"])).canned == "pong"


def test_route_request_that_fits_no_rule_goes_to_auto(rules_file: Path) -> None:
    decision = Router.from_config(str(rules_file)).route(chat("hi"))
    assert (decision.target, decision.kind) == ("auto", TargetKind.AUTO)
    assert decision.reason == "no rule fits"


def test_route_takes_features_mappings_and_bytes() -> None:
    router = Router.default()
    path = "/v1/responses"
    assert router.route(RequestFeatures(path=path)).path == path
    assert router.route({"input": "hi"}).path == path
    assert router.route(b'{"prompt": "hi"}').path == "/v1/completions"
    with pytest.raises(RequestInvalid):
        router.route(b"{")


def test_explain_says_what_each_rule_before_lacked(rules_file: Path) -> None:
    explained = Router.from_config(rules_file).explain(chat("hi", tags=["ping"]))
    assert [
        (check.rule.name, check.failed and check.failed.key) for check in explained.checked
    ] == [("code", "keywords.any"), ("long", "min_prompt_tokens"), ("ping", None)]
    assert explained.decision.rule == "ping"


def test_reload_bad_file_leaves_the_old_rules(rules_file: Path) -> None:
    router = Router.from_config(rules_file)
    before = router.rules
    rules_file.write_text("rules: 5", encoding="utf-8")
    with pytest.raises(RoutesInvalid):
        router.reload()
    assert router.rules is before
    rules_file.write_text("rules: [{name: new, then: {target: x}}]", encoding="utf-8")
    router.reload()
    assert router.route(chat("python")).rule == "new"


def test_reload_while_deciding_no_decision_sees_half_a_table() -> None:
    """Each state sends everything to one target under one name; they must never be mixed."""
    states = [
        parse_routes(
            f"rules:\n  - name: n{at}\n    when: {{keywords: python}}\n    then: {{target: t{at}}}\n"
            f"  - name: n{at}-rest\n    then: {{target: t{at}}}\n"
        )
        for at in range(2)
    ]
    router = Router(states[0])
    compiled = [Router(state)._compiled for state in states]
    seen: list[Decision] = []
    ended = threading.Event()

    def decide() -> None:
        while not ended.is_set() or not seen:
            seen.append(router.route(chat("python")))

    deciding = threading.Thread(target=decide, name="deciding")
    deciding.start()
    for at in range(2_000):
        router.replace(compiled[at % 2])
    ended.set()
    deciding.join(20)
    assert not deciding.is_alive()
    assert {(each.rule, each.target) for each in seen} <= {("n0", "t0"), ("n1", "t1")}


def test_import_router_is_light() -> None:
    heavy = ("asyncio", "socket", "ssl", "PySide6", "jinja2", "yaml", "re2", "psutil", "httptools")
    code = (
        "import sys; from app.core.router import Router; Router.default();"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


def test_prompt_template_is_rendered_in_a_sandbox(tmp_path: Path) -> None:
    path = tmp_path / "t.j2"
    path.write_text("{% if tags %}tags {{ tags | join(',') }}{% endif %}", encoding="utf-8")
    assert PromptTemplate.read(path).render({"tags": ["a", "b"]}) == "tags a,b"
    for escape in (
        "{{ ''.__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ tags.append(1) }}",
        "{{ raise_exception('no') }}",
        "{{ 1 / 0 }}",
        "{% for a in range(90000) %}{{ 'x' * 100 }}{% endfor %}",
    ):
        path.write_text(escape, encoding="utf-8")
        with pytest.raises(RoutesInvalid):
            PromptTemplate.read(path).render({"tags": ["a"]})
