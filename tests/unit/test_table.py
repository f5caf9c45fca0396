"""The compiled table: keywords in many scripts, bounds of what is read, and what is remembered."""

import pytest

from app.core.router import automaton, regexes
from app.core.router.automaton import KeywordAutomaton
from app.core.router.columns import RangeColumn, ValueColumn
from app.core.router.decision import Action
from app.core.router.features import RequestFeatures
from app.core.router.patterns import fits
from app.core.router.piece_hits import PieceHits, tail
from app.core.router.rules import AnyAll, Conditions, Rule
from app.core.router.table import NO_RULE, Table


def table(*given: Conditions) -> Table:
    return Table([Rule(f"r{at}", each, Action()) for at, each in enumerate(given)])


def said(*texts: str, last_user: str = "") -> RequestFeatures:
    return RequestFeatures(texts=texts, last_user_texts=(last_user,) if last_user else ())


@pytest.mark.parametrize(
    ("keyword", "text", "expected"),
    [
        ("code", "write CODE now", True),
        ("code", "decode", False),
        ("code", "codes", False),
        ("code", "code_x", False),
        ("code", "code-x", True),
        ("code*", "codes", True),
        ("*code", "decode", True),
        ("*cod*", "decoder", True),
        ("stack trace", "a Stack Trace!", True),
        ("c++", "in C++?", True),
        ("c", "in c++", True),
        (".net", "asp.net", True),
        ("代码", "请写代码吧", True),
        ("代码", "代 码", False),
        ("sql", "用SQL写", True),
        ("код", "Мой КОД!", True),
        ("код", "кодекс", False),
        ("straße", "STRASSE", True),
        ("STRASSE", "in der Straße", True),
        ("ΣΊΣΥΦΟΣ", "σίσυφος", True),
        ("café", "un CAFE\u0301 noir", True),
        ("코드", "이 코드를 봐", True),
        ("コード", "コードを書く", True),
        ("โค้ด", "เขียนโค้ดให้", True),
        ("कोड", "यह कोड है", True),
        ("कोड", "डिकोडर", False),
        ("😀", "x😀y", True),
        ("a", "\ud800 a", True),
        ("a", "", False),
    ],
)
def test_keyword_any_script_is_found_where_it_stands_alone(
    keyword: str, text: str, expected: bool
) -> None:
    assert KeywordAutomaton([keyword]).find(text) == ({0} if expected else set())
    # Beside keywords of another script, another automaton is asked.
    assert (0 in KeywordAutomaton([keyword, "zzz", "猫"]).find(text)) == expected


def test_keyword_overlapping_ones_are_all_found() -> None:
    assert KeywordAutomaton(["new york", "york", "new*", "york city"]).find("New York City") == {
        0,
        1,
        2,
        3,
    }


def test_table_text_is_not_read_while_a_rule_without_text_is_in_front() -> None:
    rules = table(Conditions(models=("a",)), Conditions(keywords=AnyAll(any=("x",))))
    request = RequestFeatures(model="a", texts=(5,))  # type: ignore[arg-type]
    assert rules.find(request) == 0


def test_table_scopes_read_what_they_name() -> None:
    rules = table(
        Conditions(keywords=AnyAll(any=("sql",)), scope="last_user"),
        Conditions(keywords=AnyAll(any=("sql",))),
    )
    assert rules.find(said("sql", "hi", last_user="hi")) == 1
    assert rules.find(said("sql", last_user="sql")) == 0
    assert rules.find(said("hi", last_user="hi")) == NO_RULE


def test_table_keyword_of_two_messages_does_not_join_them() -> None:
    rules = table(Conditions(keywords=AnyAll(any=("ab", "a b"))))
    assert rules.find(said("a", "b")) == NO_RULE
    rules = table(Conditions(keywords=AnyAll(all=("a", "b"))))
    assert rules.find(said("a", "b")) == 0


def test_table_without_rules_finds_none() -> None:
    assert table().find(said("x")) == NO_RULE


def test_table_of_a_long_text_the_end_is_read() -> None:
    rules = table(
        Conditions(keywords=AnyAll(any=("early",))), Conditions(keywords=AnyAll(any=("late",)))
    )
    filler = "x " * automaton.LONGEST_TEXT
    assert rules.find(said("early " + filler + " late")) == 1
    assert rules.find(said("early", filler, "late")) == 1
    rules = table(Conditions(regexes=("^early",)), Conditions(regexes=("late$",)))
    assert rules.find(said("early" + "x" * regexes.LONGEST_TEXT + "late")) == 1


def test_table_regex_that_would_take_for_ever_elsewhere_is_linear() -> None:
    rules = table(Conditions(regexes=(r"(a*)*(a*)*b",)))
    assert rules.find(said("a" * 60_000)) == NO_RULE
    assert rules.find(said("a" * 60_000 + "b")) == 0


def test_value_column_forgets_when_clients_send_ever_new_names() -> None:
    column = ValueColumn(1, {0: ["a*"]}, fold=True)
    assert all(column.bits(f"A{number}") for number in range(5_000))
    assert column.bits("b" * 5_000) == 0
    assert len(column._seen) <= 2_048


def test_range_column_bounds_are_included() -> None:
    column = RangeColumn(3, {0: (5, 10), 1: (None, 4), 2: (11, None)})
    assert [column.bits(value) for value in (0, 4, 5, 10, 11)] == [2, 2, 1, 1, 4]


def test_piece_hits_searches_each_piece_once_and_keeps_few() -> None:
    searched: list[str] = []

    def find(piece: str) -> set[int]:
        searched.append(piece)
        return {len(piece)}

    hits = PieceHits(find, 1_000_000)
    assert hits.find(["a", "bb"]) == {1, 2}
    assert hits.find(["a", "bb", "ccc"]) == {1, 2, 3}
    assert sorted(searched) == ["a", "bb", "ccc"]
    hits.find([str(number) for number in range(20_000)])
    assert len(hits._seen) <= 8_192


def test_tail_counts_newlines_between_pieces() -> None:
    assert list(tail(["abc", "def", "ghi"], 5)) == ["ghi", "f"]
    assert list(tail(["abc", "def"], 100)) == ["def", "abc"]
    assert list(tail([], 5)) == []


@pytest.mark.parametrize(
    ("pattern", "value", "expected"),
    [
        ("a*c", "abc", True),
        ("a*c", "ac", True),
        ("a*a", "a", False),
        ("*b*c*", "abxc", True),
        ("a?c", "abc", True),
        ("a?c", "ac", False),
        ("*?", "", False),
        ("*", "", True),
        ("a[b]", "a[b]", True),
        ("a[b]", "ab", False),
        ("*a*a*a*a*a*a*a*b", "a" * 5_000, False),
    ],
)
def test_fits_pattern_is_plain_and_never_slow(pattern: str, value: str, expected: bool) -> None:
    assert fits(pattern, value) is expected
    column = ValueColumn(1, {0: [pattern]}, fold=False)
    assert column.bits(value) == int(expected)


@pytest.mark.parametrize(
    ("pattern", "word"),
    [
        ("deploy", "*deploy*"),
        ("(?i)Deploy", "*deploy*"),
        (r"\bdeploy\s+prod\d", "deploy*"),
        (r"\bdeploy\b", "deploy"),
        (r"deploy\B", "*deploy*"),
        (r"deploy\b?s", "*deploy*"),
        ("deploys?", "*deploy*"),
        (r"deploys?\b", "*deploy*"),
        (r"\b?deploy", "*deploy*"),
        ("deploys*x", "*deploy*"),
        ("deploy+", "*deploy*"),
        ("deploy{0}", "*deplo*"),
        ("abc.*production", "*production*"),
        ("deploy(ment)?", "*deploy*"),
        ("(deploy)?", ""),
        ("deploy|ship", ""),
        ("dep[l]oying", ""),
        ("(?i)(?-i)deploy", ""),
        (r"\Qdeploy\E", ""),
        (r"deploy\x41", "*deploy*"),
        (r"\pLdeploy", ""),
        ("a{(b}deploy)?", ""),
        ("abc", ""),
        ("", ""),
    ],
)
def test_required_keyword_is_one_that_no_match_lacks(pattern: str, word: str) -> None:
    assert regexes.required_keyword(pattern) == word
