"""The query grammar: what it means, and where an error points."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.route.query import ATTRIBUTES, Query, QueryError, Term, facts_of, parse

_FREE = ("worker_name", "name", "feature_category", "tags", "queue_namespace")
_VALUES = st.from_regex(r"[A-Za-z0-9_:]{1,8}", fullmatch=True)
_FACTS = st.fixed_dictionaries({name: st.frozensets(st.sampled_from("abc"), max_size=2) for name in ATTRIBUTES})


def terms(values: st.SearchStrategy[str]) -> st.SearchStrategy[Term]:
    return st.builds(Term, st.sampled_from(_FREE), st.booleans(), st.lists(values, min_size=1, max_size=3).map(tuple))


def queries(values: st.SearchStrategy[str]) -> st.SearchStrategy[Query]:
    conjunctions = st.lists(terms(values), min_size=1, max_size=3).map(tuple)
    return st.builds(Query, st.lists(conjunctions, max_size=3).map(tuple))


@given(queries(_VALUES))
def test_a_query_written_out_and_parsed_is_the_same(query: Query):
    assert parse(str(query)) == query


def plainly(text: str, facts: dict[str, frozenset[str]]) -> bool:
    """GitLab's description, by splitting text: the oracle."""
    if text == "*":
        return True

    def holds(term: str) -> bool:
        negated = "!=" in term
        attribute, values = term.split("!=" if negated else "=")
        return bool(facts[attribute] & set(values.split(","))) != negated

    return any(all(holds(term) for term in terms.split("&")) for terms in text.split("|"))


@given(queries(st.sampled_from("abc")), _FACTS)
def test_matching_agrees_with_the_plain_reading(query: Query, facts: dict[str, frozenset[str]]):
    assert query.matches(facts) is plainly(str(query), facts)


@given(st.text(alphabet="ab=!&|,*: (urgencyhigh", max_size=20))
def test_any_text_is_parsed_whole_or_refused_within_it(text: str):
    try:
        query = parse(text)
    except QueryError as error:
        position = error.position
    else:
        position = 0
        assert str(query) == text
    assert 0 <= position <= len(text)


FACTS = facts_of(
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


@pytest.mark.parametrize(
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
def test_matching(text: str, matches: bool):
    assert parse(text).matches(FACTS) is matches


@pytest.mark.parametrize(
    ("text", "position", "words"),
    [
        ("", 0, "an attribute is missing"),
        ("urgncy=high", 0, "did you mean 'urgency'"),
        ("urgency=hihg", 8, "did you mean 'high'"),
        ("urgency=high-x", 12, "'-' cannot stand here"),
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
        ("tags=ü", 5, "a value of tags is missing"),
        ("tags=a\n", 6, "no spaces"),
    ],
)
def test_an_error_points_at_the_character(text: str, position: int, words: str):
    with pytest.raises(QueryError) as caught:
        parse(text, categories=["search"])
    message = str(caught.value).splitlines()
    assert caught.value.position == position
    if "'cpu'" not in words:
        assert words in message[0]
    caret = message[2].index("^")
    assert caret - (len(message[1]) - len(message[1].lstrip())) == position or not text
    assert message[2].endswith(f"character {position + 1}")


def test_categories_are_open_when_none_are_known():
    assert parse("feature_category=anything")
    assert parse("feature_category=not_owned", categories=["search"])
