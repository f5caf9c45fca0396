"""`coolhead route` and `coolhead routes`, in this process."""

import argparse
import json
from collections.abc import Sequence

import pytest

from app.cli import route, routes
from app.core.errors import NotRunning, RequestInvalid, RoutesInvalid
from app.core.paths import Paths

BODY = '{"model": "m", "messages": [{"role": "user", "content": "hi"}], "tags": ["night"]}'
RULES = """
rules:
  - name: code
    when: {keywords: python}
    then: {target: coder}
  - name: night
    when: {tags: night}
    then: {target: auto, priority: -5}
"""


def call(words: Sequence[str]) -> int:
    top = argparse.ArgumentParser()
    verbs = top.add_subparsers(dest="verb", required=True)
    route.add_parser(verbs)
    routes.add_parser(verbs)
    args = top.parse_args(words)
    return {"route": route.run, "routes": routes.run}[args.verb](args)


@pytest.fixture
def home(coolhead_home: Paths) -> Paths:
    coolhead_home.prepare()
    coolhead_home.routes_file.write_text(RULES, encoding="utf-8")
    return coolhead_home


def test_route_explain_json_tells_decision_and_way(
    home: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["route", "--explain", BODY, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["target"], told["rule"], told["priority"]) == ("auto", "night", -5)
    assert told["checked"] == [
        {"rule": "code", "line": 3, "fits": False, "failed": "keywords.any", "wanted": "python"},
        {"rule": "night", "line": 6, "fits": True, "failed": None, "wanted": None},
    ]
    assert told["request"]["characters"] == 2
    assert "hi" not in json.dumps(told["request"])


def test_route_text_says_target_rule_and_reason(
    home: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["route", "--explain", BODY]) == 0
    said = capsys.readouterr().out
    assert "by rule 'night' (tags.any: night)" in said
    assert "code (line 3): no, keywords.any is not python" in said


def test_route_without_a_file_uses_no_rules(
    coolhead_home: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["route", BODY, "--header", "X-Team: a", "--path", "/v1/completions"]) == 0
    assert "no rule fits" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["{"], ["@/nowhere/at/all"], [BODY, "--header", "nonsense"]])
def test_route_wrong_request_is_refused(home: Paths, words: list[str]) -> None:
    with pytest.raises(RequestInvalid):
        call(["route", *words])


def test_route_wrong_rules_are_named(home: Paths) -> None:
    home.routes_file.write_text("rules: 5", encoding="utf-8")
    with pytest.raises(RoutesInvalid, match=r"routes\.yaml:1: rules"):
        call(["route", BODY])


def test_routes_lint_names_doubts_and_mistakes(
    home: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["routes", "lint"]) == 0
    said = capsys.readouterr().out
    assert "warning: rule 'code', then.target: There is no model" in said
    assert "2 rules, 0 errors, 2 warnings" in said
    assert call(["routes", "lint", "--strict"]) == 1
    home.routes_file.write_text("rulez: []", encoding="utf-8")
    capsys.readouterr()
    assert call(["routes", "lint", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["errors"], told["problems"][0]["line"]) == (1, 1)


def test_routes_lint_file_that_is_not_there_is_an_error(
    home: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["routes", "lint", "/nowhere/routes.yaml"]) == 1
    assert "cannot be read" in capsys.readouterr().out


def test_routes_path_and_schema_are_told(home: Paths, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["routes", "path"]) == 0
    assert capsys.readouterr().out.strip() == str(home.routes_file)
    assert call(["routes", "schema"]) == 0
    assert capsys.readouterr().out.strip().endswith("routes.schema.json")


def test_routes_reload_without_an_app_says_so(home: Paths) -> None:
    with pytest.raises(NotRunning):
        call(["routes", "reload"])
