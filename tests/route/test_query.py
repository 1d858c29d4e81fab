"""Check the query grammar: its meaning, and the position of its errors."""

from collections.abc import Collection, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framework.errors import QueryError
from framework.route.query import ATTRIBUTES, Term, WorkerQuery, parse, worker_attributes
from tests.harness import examples
from tests.tables import each_row

_FREE = ("worker_name", "name", "feature_category", "tags", "queue_namespace")
_VALUES = st.from_regex(r"[A-Za-z0-9_:]{1,8}", fullmatch=True)
_FACTS = st.fixed_dictionaries({name: st.frozensets(st.sampled_from("abc"), max_size=2) for name in ATTRIBUTES})


def terms(values: st.SearchStrategy[str]) -> st.SearchStrategy[Term]:
    return st.builds(Term, st.sampled_from(_FREE), st.booleans(), st.lists(values, min_size=1, max_size=3).map(tuple))


def queries(values: st.SearchStrategy[str]) -> st.SearchStrategy[WorkerQuery]:
    conjunctions = st.lists(terms(values), min_size=1, max_size=3).map(tuple)
    return st.builds(WorkerQuery, st.lists(conjunctions, max_size=3).map(tuple))


@given(queries(_VALUES))
def test_query_formatted_and_parsed_is_the_same(query: WorkerQuery):
    assert parse(str(query)) == query


def plainly(text: str, facts: dict[str, frozenset[str]]) -> bool:
    """The oracle: GitLab's description, implemented by splitting text."""
    if text == "*":
        return True

    def holds(term: str) -> bool:
        negated = "!=" in term
        attribute, values = term.split("!=" if negated else "=")
        return bool(facts[attribute] & set(values.split(","))) != negated

    return any(all(holds(term) for term in terms.split("&")) for terms in text.split("|"))


@given(queries(st.sampled_from("abc")), _FACTS)
def test_query_matches_like_a_plain_implementation(query: WorkerQuery, facts: dict[str, frozenset[str]]):
    assert query.matches(facts) is plainly(str(query), facts)


@given(st.text(alphabet="ab=!&|,*: (urgencyhigh", max_size=20))
def test_query_of_any_text_is_parsed_or_refused(text: str):
    try:
        query = parse(text)
    except QueryError as error:
        position = error.position
    else:
        position = 0
        assert str(query) == text
    assert 0 <= position <= len(text)


FACTS = worker_attributes(
    {
        "worker_name": "Chaos::SleepWorker",
        "name": "chaos_sleep",
        "feature_category": "search",
        "has_external_dependencies": False,
        "urgency": "high",
        "resource_boundary": "cpu",
        "tags": ["a", "b"],
        "queue_namespace": None,
    }
)


@each_row(
    ("text", "matches"),
    [
        ("*", True),
        ("urgency=high", True),
        ("urgency!=high", False),
        ("urgency=low,high", True),
        ("urgency=low|resource_boundary=cpu", True),
        ("urgency=low&resource_boundary=cpu", False),
        ("urgency=high&resource_boundary!=cpu|tags=b", True),  # & binds tighter
        ("tags=b,c", True),
        ("tags!=b", False),
        ("tags!=c,d", True),
        ("has_external_dependencies=false", True),
        ("has_external_dependencies=true", False),
        ("queue_namespace=chaos", False),
        ("queue_namespace!=chaos", True),
        ("worker_name=Chaos::SleepWorker", True),
        ("name=chaos_sleep", True),
        ("feature_category=search", True),
    ],
)
def test_query_matches_workers(text: str, matches: bool):
    assert parse(text).matches(FACTS) is matches


@each_row(
    ("text", "position", "words"),
    [
        ("", 0, "an attribute is missing"),
        ("urgncy=high", 0, "did you mean 'urgency'"),
        ("urgency=hihg", 8, "did you mean 'high'"),
        ("urgency=high-x", 12, "'-' is not allowed here"),
        ("urgency=high,", 13, "a value of urgency is missing"),
        ("urgency=high&", 13, "an attribute is missing"),
        ("urgency=high||tags=a", 13, "an attribute is missing"),
        ("urgency", 7, "'=' or '!=' is missing"),
        ("urgency==high", 8, "a value of urgency is missing"),
        ("urgency>high", 7, "'=' or '!='"),
        ("urgency = high", 7, "no spaces"),
        ("tags=a & tags=b", 6, "no spaces"),
        ("(tags=a)", 0, "no parentheses"),
        ("tags=a|(tags=b)", 7, "no parentheses"),
        ("tags=a)", 6, "no parentheses"),
        ("tags=a|*", 7, "attribute is missing"),
        ("**", 0, "attribute is missing"),
        ("resource_boundary=ram", 18, "'cpu', 'memory'"),
        ("has_external_dependencies=yes", 26, "true, false"),
        ("feature_category=serch", 17, "did you mean 'search'"),
        ("tags=ü", 5, "'ü' (U+00FC LATIN SMALL LETTER U WITH DIAERESIS) is not allowed here"),
        ("urg\u0435ncy=high", 3, "U+0435 CYRILLIC SMALL LETTER IE"),
        ("urgency=h\u0456gh", 9, "U+0456 CYRILLIC SMALL LETTER BYELORUSSIAN-UKRAINIAN I"),
        ("urgency\uff1dhigh", 7, "FULLWIDTH EQUALS SIGN"),
        ("urgency\u2260high", 7, "NOT EQUAL TO"),
        ("tags=a\uff06tags=b", 6, "FULLWIDTH AMPERSAND"),
        ("tags=a\u2223tags=b", 6, "DIVIDES"),
        ("tags=a\u200b", 6, "ZERO WIDTH SPACE"),
        ("tags=a\u00a0", 6, "no spaces"),
        ("\u2217", 0, "ASTERISK OPERATOR"),
        ("tags=\u0661", 5, "ARABIC-INDIC DIGIT ONE"),
        ("*|tags=a", 0, "an attribute is missing"),
        ("* ", 1, "a query has no spaces: remove the one at its end"),
        ("urgency=high ", 12, "a query has no spaces: remove the one at its end"),
        ("urgency=high\u00a0", 12, "remove the one at its end (U+00A0)"),
        ("tags=a,,b", 7, "a value of tags is missing"),
        ("tags=a,b|", 9, "an attribute is missing"),
        ("tags!a", 4, "'=' or '!=' is missing"),
        ("tags=!a", 5, "a value of tags is missing"),
        ("Urgency=high", 0, "did you mean 'urgency'"),
        ("urgency=HIGH", 8, "did you mean 'high'"),
        ("has_external_dependencies=True", 26, "did you mean 'true'"),
        ("tags=a\n", 6, "no spaces"),
    ],
)
def test_query_error_points_at_the_character(text: str, position: int, words: str):
    with pytest.raises(QueryError) as caught:
        parse(text, categories=["search"])
    message = str(caught.value).splitlines()
    assert caught.value.position == position
    if "'cpu'" not in words:
        assert words in message[0]
    caret = message[2].index("^")
    assert caret - (len(message[1]) - len(message[1].lstrip())) == position or not text
    assert message[2].endswith(f"character {position + 1}")


def test_query_error_lists_every_fault():
    """Report unknown attributes and values, missing parts and stray text together, each with its position."""
    text = (
        "urgncy=high&tags|urgency=hihg,low,lwo&name=a-b|resource_boundary=ram & (tags=\u0435) |feature_category=serch "
    )
    with pytest.raises(QueryError) as caught:
        parse(text, categories=["search"])
    found = [(fault.position, fault.reason.split("; allowed")[0]) for fault in caught.value.faults]
    assert found == [
        (0, "unknown attribute 'urgncy' (did you mean 'urgency'?)"),
        (16, "'=' or '!=' is missing after tags"),
        (25, "unknown urgency 'hihg' (did you mean 'high'?)"),
        (34, "unknown urgency 'lwo' (did you mean 'low'?)"),
        (44, "'-' is not allowed here; expected ',', '&', '|' or the end"),
        (65, "unknown resource_boundary 'ram'"),
        (68, "a query has no spaces"),
        (71, "a query has no parentheses; '&' binds tighter than '|'"),
        (98, "unknown feature_category 'serch' (did you mean 'search'?)"),
    ]
    lines = str(caught.value).splitlines()
    assert len(lines) == 3 * len(found)
    assert [line.rpartition(" ")[2] for line in lines[2::3]] == [str(position + 1) for position, _ in found]
    assert len(caught.value.messages) == len(found)


def test_query_error_of_a_space_before_says_so():
    with pytest.raises(QueryError) as caught:
        parse(" urgency=high")
    reason = "a query has no spaces: remove the one before it"
    assert str(caught.value) == f"{reason}\n       urgency=high\n      ^ character 1"


def test_query_error_of_many_faults_shows_the_first():
    with pytest.raises(QueryError) as caught:
        parse("|".join(["urgency=hihg"] * 50))
    assert len(caught.value.faults) == 50
    assert caught.value.messages[20:] == ("and 30 more in the same query",)


def test_query_without_known_categories_allows_any():
    assert parse("feature_category=anything")
    assert parse("feature_category=not_owned", categories=["search"])


WORD = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_"
CLOSED = {
    "urgency": {"high", "low", "throttled"},
    "resource_boundary": {"cpu", "memory", "unknown"},
    "has_external_dependencies": {"true", "false"},
    "feature_category": {"search", "not_owned"},
}


def first_fault(text: str, closed: Mapping[str, Collection[str]] = CLOSED) -> int | None:
    """Return the position of the first fault of a text, read character by character: an oracle without code of the parser."""
    if text.strip() == "*":
        return None if text == "*" else 0 if text[0] != "*" else 1
    attribute, start, at = "", 0, 0
    in_value = False
    while True:
        here = text[at : at + 1]
        if here and (here in WORD or (in_value and here == ":")):
            at += 1
            continue
        if at == start or not here.isascii():
            return at
        word = text[start:at]
        if in_value:
            if word not in closed.get(attribute, {word}):
                return start
            if here not in (",", "&", "|"):
                return at if here else None
            in_value, at = here == ",", at + 1
        else:
            if word not in ATTRIBUTES:
                return start
            operator = 2 if text.startswith("!=", at) else int(here == "=")
            if not operator:
                return at
            attribute, in_value, at = word, True, at + operator
        start = at


PIECES = (
    *ATTRIBUTES,
    *(
        "=",
        "=",
        "!=",
        ",",
        "&",
        "|",
        "*",
        ":",
        "!",
        "(",
        ")",
        " ",
        "-",
        "\t",
        "\n",
        "\u0435",
        "\u200b",
        "\uff1d",
        "\x00",
    ),
    *("high", "low", "hihg", "cpu", "true", "search", "not_owned", "a", "b1", "Chaos::SleepWorker", "urgenc", ""),
)
TEXTS = st.lists(st.sampled_from(PIECES), max_size=14).map("".join)


@settings(max_examples=examples(1500))
@given(
    TEXTS | TEXTS.flatmap(lambda text: st.sampled_from(["urgency=high&", "tags=a|", "name=x,"]).map(lambda s: s + text))
)
def test_query_faults_are_where_the_oracle_says(text: str):
    error = fault(text)
    assert (None if error is None else error.position) == first_fault(text)
    if error is None:
        assert str(parse(text, categories=["search"])) == text
        return
    message = str(error).splitlines()
    # For any text, each caret is in the line below it.
    assert len(message) == 3 * len(error.faults) or len(error.faults) > 20
    assert list(error.faults) == sorted(set(error.faults))
    assert all(0 <= one.position <= len(text) for one in error.faults)
    assert message[2].endswith(f"^ character {error.position + 1}")
    if error.position < len(text):
        shown = text[error.position]
        assert message[1][message[2].index("^")] == (shown if shown.isascii() and shown.isprintable() else "?")


def fault(text: str) -> QueryError | None:
    try:
        parse(text, categories=["search"])
    except QueryError as error:
        return error
    return None


@given(queries(_VALUES).map(str), st.integers(0, 200), st.sampled_from("\u0435 ()-"))
def test_query_error_points_at_a_stray_character(text: str, at: int, stray: str):
    at = min(at, len(text))
    broken = text[:at] + stray + text[at:]
    with pytest.raises(QueryError) as caught:
        parse(broken)
    # The inserted character splits a word; the first half may be the first fault.
    open_ = {name: words for name, words in CLOSED.items() if name != "feature_category"}
    assert caught.value.position == first_fault(broken, open_) <= at


def test_query_that_is_very_long_is_shown_in_part():
    good = "|".join(f"worker_name=Space{number}::LongishNameWorker&tags!=a{number},b" for number in range(5_000))
    assert len(parse(good).alternatives) == 5_000
    assert str(parse(good)) == good
    with pytest.raises(QueryError) as caught:
        parse(f"{good}|urgency=hihg|{good}")
    error = caught.value
    assert error.position == len(good) + 9
    message = str(error).splitlines()
    assert max(map(len, message)) < 200
    caret = message[2].index("^")
    assert message[1][caret : caret + 4] == "hihg"
    assert message[1].strip().startswith("...")
    assert message[1].endswith("...")
    with pytest.raises(QueryError) as caught:
        parse("urgency=" + "h" * 100_000)
    assert len(str(caught.value)) < 500


@each_row("text", ["tags=a,a", "tags=a|tags=a", "tags=a&tags=a", "urgency=high,high,high"])
def test_query_with_repeated_terms_means_the_same(text: str):
    assert parse(text).matches({**FACTS})
    assert str(parse(text)) == text


def test_query_that_contradicts_itself_matches_no_worker():
    assert not parse("urgency=high&urgency=low").matches(FACTS)
    assert not parse("tags=a&tags!=a").matches(FACTS)


@pytest.mark.parametrize("text", ["feature_category=anything_at_all", "feature_category!=not_owned,x"])
def test_router_without_categories_allows_any_category(text: str):
    assert str(parse(text, categories=[])) == text
