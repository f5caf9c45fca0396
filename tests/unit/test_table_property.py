"""The compiled table decides as a plain top-down reading of the rules does, whatever they are."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.core.router.decision import Action
from app.core.router.explain import check_rules, has_keyword
from app.core.router.features import RequestFeatures
from app.core.router.lint import contradiction
from app.core.router.regexes import check_regex, required_keyword, search
from app.core.router.rules import AnyAll, Conditions, HeaderCondition, Rule
from app.core.router.table import NO_RULE, Table

# Few values, so that conditions and requests meet; edges of words, scripts and cases among them.
KEYWORDS = [
    "sql",
    "SQL",
    "a",
    "code",
    "decode",
    "*code",
    "code*",
    "c++",
    "代码",
    "码",
    "ßa",
    "ss",
    "код",
    "é",
    "a b",
]
TEXTS = [
    *(word.strip("*") for word in KEYWORDS),
    "SSA",
    "кодекс",
    "x",
    "用",
    " ",
    "_",
    "1",
    "\u0301",
    "e\u0301",
    "😀",
    "ⅷ",
]
MODELS = ["qwen", "qwen-7b", "Qwen-Coder", "llama", "", "q?", "a*b"]
MODEL_PATTERNS = ["qwen", "QWEN*", "*coder", "*", "q?en", "llama", "*-*", "a*b"]
PATHS = ["/v1/chat/completions", "/v1/completions", "/api/chat", "/"]
TAGS = ["night", "Batch", "x", "é"]


def subsets(values: list[str], most: int = 3) -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(st.sampled_from(values), max_size=most, unique=True).map(tuple)


def sometimes(strategy: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.one_of(st.none(), st.none(), strategy)


any_all_tags = st.builds(AnyAll, subsets(TAGS), subsets(TAGS, 2))
any_all_words = st.builds(AnyAll, subsets(KEYWORDS), subsets(KEYWORDS, 2))
nothing: st.SearchStrategy[tuple[str, ...]] = st.just(())
flags = st.sampled_from([None, None, None, True, False])
bounds = st.sampled_from([None, None, 0, 1, 5, 20])
headers = st.dictionaries(
    st.sampled_from(["x-team", "user-agent"]), subsets(["infra", "cur*", "*", ""], 2), max_size=2
).map(lambda given: tuple(HeaderCondition(*pair) for pair in given.items()))

conditions = st.builds(
    Conditions,
    paths=st.one_of(nothing, nothing, subsets([*PATHS, "/v1/*"])),
    path_prefixes=st.one_of(nothing, nothing, subsets(["/v1/", "/api", "/"])),
    path_models=st.one_of(nothing, nothing, subsets(MODEL_PATTERNS)),
    models=st.one_of(nothing, subsets(MODEL_PATTERNS)),
    model_prefixes=st.one_of(nothing, nothing, subsets(["qwen", "Q", "ll"])),
    tags=st.one_of(st.just(AnyAll()), any_all_tags),
    headers=st.one_of(st.just(()), headers),
    keywords=st.one_of(st.just(AnyAll()), any_all_words),
    regexes=st.one_of(
        nothing,
        nothing,
        subsets(["co.e", r"\bsql\b", "(?i)^x", "码.*代", "(?i)CODEX*", r"^code\b", "co(de)?"]),
    ),
    scope=st.sampled_from(["all", "all", "last_user"]),
    min_characters=bounds,
    max_characters=bounds,
    min_prompt_tokens=bounds,
    max_prompt_tokens=bounds,
    has_tools=flags,
    has_images=flags,
    wants_json=flags,
    is_stream=flags,
    sessions=st.one_of(nothing, nothing, subsets(["s1", "s*", "*2"])),
)

pieces = st.lists(st.lists(st.sampled_from(TEXTS), max_size=5).map("".join), max_size=3).map(tuple)

requests = st.builds(
    RequestFeatures,
    path=st.sampled_from(PATHS),
    model=st.sampled_from(MODELS),
    path_model=st.sampled_from(["", "", *MODELS]),
    tags=subsets([*TAGS, "NIGHT", "other"]),
    headers=st.dictionaries(
        st.sampled_from(["x-team", "user-agent", "accept"]),
        st.sampled_from(["infra", "INFRA", "cursor/1", "curl", ""]),
    ),
    texts=pieces,
    last_user_texts=pieces,
    characters=st.integers(0, 30),
    tokens=st.integers(0, 30),
    has_tools=st.booleans(),
    has_images=st.booleans(),
    wants_json=st.booleans(),
    is_stream=st.booleans(),
    session=st.sampled_from(["", "s1", "s2", "t"]),
)


def table_of(given: list[Conditions]) -> Table:
    return Table([Rule(f"r{at}", each, Action()) for at, each in enumerate(given)])


@settings(max_examples=150, deadline=None)
@given(st.lists(conditions, max_size=12), st.lists(requests, min_size=1, max_size=6))
def test_table_any_rules_finds_what_the_interpreter_finds(
    given_conditions: list[Conditions], given_requests: list[RequestFeatures]
) -> None:
    table = table_of(given_conditions)
    for request in given_requests * 2:
        checked = check_rules(table.rules, request)
        fits = bool(checked) and checked[-1].failed is None
        assert table.find(request) == (len(checked) - 1 if fits else NO_RULE)


@settings(max_examples=100, deadline=None)
@given(st.lists(conditions, min_size=2, max_size=8), st.lists(requests, min_size=1, max_size=8))
def test_table_implied_rules_fit_every_request_of_the_implying(
    given_conditions: list[Conditions], given_requests: list[RequestFeatures]
) -> None:
    # The text that the user wrote last is part of the whole text, as `extract` makes it.
    seen = [
        RequestFeatures(
            **{
                field: getattr(each, field)
                for field in RequestFeatures.__struct_fields__
                if field != "texts"
            },
            texts=(*each.texts, *each.last_user_texts),
        )
        for each in given_requests
    ]
    table = table_of(given_conditions)
    for each in given_conditions:
        implied = table.implied(each)
        for request in seen:
            if not fits_one(each, request):
                continue
            for number, other in enumerate(given_conditions):
                if implied >> number & 1:
                    assert fits_one(other, request), (each, other, request)


@settings(max_examples=100, deadline=None)
@given(conditions, st.lists(requests, min_size=1, max_size=8))
@example(Conditions(max_characters=0), [RequestFeatures()])
def test_contradiction_when_named_no_request_fits(
    given_conditions: Conditions, given_requests: list[RequestFeatures]
) -> None:
    if contradiction(given_conditions):
        for request in given_requests:
            seen = RequestFeatures(
                path=request.path,
                model=request.path_model or request.model,
                path_model=request.path_model,
                texts=request.texts,
                last_user_texts=request.texts,
                characters=len(request.text),
                tokens=request.tokens,
            )
            assert not fits_one(given_conditions, seen)


FRAGMENTS = ["deploy", "codes", "x", "(y)", "(?:deploy|x)", "[de]", r"\d", r"\b", r"\.", ".", "1"]
REPEATS = ["", "", "", "*", "+", "?", "{0}", "{2,}", "*?", "{", "|"]
patterns = st.tuples(
    st.sampled_from(["", "(?i)", "^"]),
    st.lists(st.tuples(st.sampled_from(FRAGMENTS), st.sampled_from(REPEATS)), max_size=5),
).map(lambda made: made[0] + "".join(map("".join, made[1])))
ascii_texts = st.lists(
    st.sampled_from(["deploy", "deplo", "DEPLOY", "codes", "code", "x", "y", "1", ".", "d", " "]),
    max_size=6,
).map("".join)


@settings(max_examples=400, deadline=None)
@given(patterns, ascii_texts)
def test_required_keyword_is_in_every_text_that_matches(pattern: str, text: str) -> None:
    word = required_keyword(pattern)
    if word and not check_regex(pattern) and search(pattern, text):
        assert has_keyword(text.casefold(), word)


def fits_one(each: Conditions, request: RequestFeatures) -> bool:
    return check_rules([Rule("r", each, Action())], request)[0].failed is None
