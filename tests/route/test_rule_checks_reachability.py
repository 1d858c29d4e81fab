"""Compare the reachability search with trying every possible worker."""

from itertools import chain, combinations, product

from hypothesis import given, settings
from hypothesis import strategies as st

from framework.route.query import Term, WorkerQuery, closed_vocabularies, parse
from framework.route.rule_checks import reachable, shadowing_rules
from tests.harness import examples
from tests.tables import each_row

CLOSED = {"urgency": ("high", "low"), "feature_category": ("x", "y", "not_owned")}
"""As small as it gets, so that all workers can be tried."""

ATTRIBUTE_VALUES = {
    "urgency": [frozenset({value}) for value in CLOSED["urgency"]],
    "feature_category": [frozenset({value}) for value in CLOSED["feature_category"]],
    # Open vocabularies: one value that no query names represents all other values.
    "worker_name": [frozenset({value}) for value in ("a", "b", "other")],
    "queue_namespace": [frozenset(), *(frozenset({value}) for value in ("a", "b", "other"))],
    "tags": [frozenset(some) for some in chain.from_iterable(combinations("abc", size) for size in range(4))],
}
WORKERS = [dict(zip(ATTRIBUTE_VALUES, values, strict=True)) for values in product(*ATTRIBUTE_VALUES.values())]

VALUES = {
    "urgency": CLOSED["urgency"],
    "feature_category": CLOSED["feature_category"],
    "worker_name": "ab",
    "queue_namespace": "ab",
    "tags": "abc",
}
TERMS = st.sampled_from(sorted(VALUES)).flatmap(
    lambda name: st.builds(
        Term,
        st.just(name),
        st.booleans(),
        st.lists(st.sampled_from(VALUES[name]), min_size=1, max_size=3).map(tuple),
    )
)
QUERIES = (
    st.lists(st.lists(TERMS, min_size=1, max_size=3).map(tuple), min_size=1, max_size=3).map(tuple).map(WorkerQuery)
)
RULES = st.lists(QUERIES | st.just(WorkerQuery(())), max_size=6)


def escapes(rule: WorkerQuery, above: list[WorkerQuery]) -> bool:
    """The brute force: some worker matches the rule and none above it."""
    return any(rule.matches(worker) and not any(query.matches(worker) for query in above) for worker in WORKERS)


@settings(max_examples=examples(80))
@given(QUERIES, RULES)
def test_reachable_agrees_with_trying_every_worker(rule: WorkerQuery, above: list[WorkerQuery]):
    assert reachable(rule, above, CLOSED) is escapes(rule, above)


# Many plain rules, so that a good part of the examples is unreachable by the work of several.
@settings(max_examples=examples(60))
@given(QUERIES, st.lists(TERMS.map(lambda term: WorkerQuery(((term,),))), min_size=3, max_size=8))
def test_reachable_agrees_where_many_rules_shadow(rule: WorkerQuery, above: list[WorkerQuery]):
    found = reachable(rule, above, CLOSED)
    assert found is escapes(rule, above)
    if not found:
        needed = [above[index] for index in shadowing_rules(rule, above, CLOSED)]
        assert not escapes(rule, needed)
        for one in range(len(needed)):
            assert escapes(rule, needed[:one] + needed[one + 1 :])


@each_row(
    ("rule", "above", "found", "needed"),
    [
        ("urgency=low", [], True, None),
        ("urgency=low", ["*"], False, [0]),
        ("*", ["*"], False, [0]),
        ("*", ["urgency=high"], True, None),
        ("*", ["urgency=high", "tags=a", "urgency=low,throttled"], False, [0, 2]),
        ("*", ["urgency!=high", "urgency=high"], False, [0, 1]),
        ("urgency=high", ["urgency=high,low"], False, [0]),
        ("urgency=high&tags=a", ["tags=a,b"], False, [0]),
        ("tags=a,b", ["tags=a"], True, None),
        ("tags=a,b", ["tags=a", "tags=b"], False, [0, 1]),
        ("tags=a&tags=b", ["tags=b"], False, [0]),
        ("tags=a&tags=b", [], True, None),  # a worker may have both
        ("tags!=a", ["tags=b"], True, None),  # or none
        ("tags=a&tags!=a", [], False, []),
        ("urgency=high&urgency=low", [], False, []),
        ("urgency=high&urgency!=high,low", [], False, []),
        ("urgency!=high,low,throttled", [], False, []),
        ("worker_name=A&worker_name=B", [], False, []),
        ("worker_name!=A", ["worker_name!=B"], True, None),
        ("worker_name!=A,B", ["worker_name!=B"], False, [0]),
        ("worker_name=A", ["worker_name!=B"], False, [0]),
        ("worker_name=B", ["worker_name!=B"], True, None),
        ("queue_namespace!=a", ["queue_namespace=b"], True, None),
        ("feature_category=x", ["feature_category!=y"], False, [0]),
        ("feature_category!=x,y", ["feature_category=not_owned"], False, [0]),
        ("has_external_dependencies=true", ["has_external_dependencies!=false"], False, [0]),
        ("urgency=low|tags=a", ["urgency=low"], True, None),
        ("urgency=low|tags=a", ["urgency=low", "tags=a"], False, [0, 1]),
        ("urgency=low&tags=a|urgency=low&tags=b", ["urgency=low&tags=a,b"], False, [0]),
        ("resource_boundary=cpu", ["resource_boundary=cpu&urgency=high", "urgency!=high"], False, [0, 1]),
    ],
)
def test_reachable_gives_known_answers(rule: str, above: list[str], found: bool, needed: list[int] | None):
    vocabularies = closed_vocabularies(["x", "y"])
    queries = [parse(text, ["x", "y"]) for text in above]
    assert reachable(parse(rule, ["x", "y"]), queries, vocabularies) is found
    if needed is not None:
        assert shadowing_rules(parse(rule, ["x", "y"]), queries, vocabularies) == needed


def test_reachable_without_categories_assumes_more():
    above = [parse("feature_category=x,y,not_owned")]
    assert reachable(parse("*"), above, closed_vocabularies([]))
    assert not reachable(parse("*", ["x", "y"]), above, closed_vocabularies(["x", "y"]))


def test_reachable_needs_few_steps_for_real_rules():
    above = [parse(f"worker_name=A{number}&urgency=high|name=b{number},c{number}") for number in range(300)]
    assert reachable(parse("*"), above, closed_vocabularies([]), steps=2_000)
    assert not reachable(parse("*"), [*above, parse("urgency=high"), parse("urgency!=high")], closed_vocabularies([]))


def pigeonhole_rules(holes: int) -> list[WorkerQuery]:
    """The pigeonhole principle: no set of tags satisfies these rules, which takes many steps to find."""
    every = range(holes + 1)
    without_hole = [f"tags!={','.join(f'p{item}h{hole}' for hole in range(holes))}" for item in every]
    two_in_a_hole = [f"tags=p{a}h{hole}&tags=p{b}h{hole}" for hole in range(holes) for a, b in combinations(every, 2)]
    return [parse(text) for text in (*without_hole, *two_in_a_hole)]


def test_reachable_after_too_many_steps_is_true():
    assert not reachable(parse("*"), pigeonhole_rules(3), closed_vocabularies([]))
    assert reachable(parse("*"), pigeonhole_rules(9), closed_vocabularies([]))
