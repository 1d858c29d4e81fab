"""Check the findings of the rule checks, and their silence on correct rules."""

from collections.abc import Iterator
from typing import Any

import pytest

from framework.application_worker import ApplicationWorker
from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.route.router import Router
from framework.route.rule_checks import RuleChecks, RuleFinding, serves, unserved_queues
from framework.settings.model import RoutingRule
from tests.tables import each_row


@pytest.fixture(autouse=True)
def _own_registry() -> Iterator[None]:
    with registry.isolated():
        yield


def worker(name: str, **body: Any) -> Declaration:
    head = {"feature_category": "search", "perform": lambda self: None, "__module__": "workers.office"}
    made: Any = type(name, (ApplicationWorker,), {**head, **body})
    return made.declaration()


def findings(
    rules: list[tuple[Any, ...]], workers: list[Declaration], served: tuple[str, ...] | None = None, **options: Any
) -> list[RuleFinding]:
    router = Router([RoutingRule(*rule) for rule in rules], ["main", "second"], ["search", "billing"])
    everywhere = served if served is not None else tuple(name for w in workers for name in router.queues_of(w))
    return RuleChecks(router, workers, everywhere).findings(**options)


def kinds(found: list[RuleFinding]) -> list[tuple[str, str]]:
    return [(finding.kind, finding.place) for finding in found]


def rule(index: int) -> str:
    return f"config/routing.yml: routing_rules[{index}]"


def test_rule_checks_of_correct_rules_find_nothing():
    workers = [worker("FastWorker", urgency="high"), worker("MailWorker", tags=("mail",)), worker("OtherWorker")]
    rules = [("urgency=high", "urgent"), ("tags=mail", "mail", "second"), ("*", "default")]
    assert findings(rules, workers) == []


def test_rule_for_all_at_the_end_is_no_finding():
    assert findings([("urgency=high", "urgent"), ("*", "default")], [worker("FastWorker", urgency="high")]) == []


def test_rule_below_one_for_all_is_unreachable():
    found = findings([("*", "default"), ("urgency=high", "urgent")], [worker("FastWorker", urgency="high")])
    assert kinds(found) == [("unreachable", rule(1))]
    assert found[0].message == (
        "can never decide, as routing_rules[0] (*) takes every worker that urgency=high could match: move it up, or delete it"
    )


def test_rules_that_shadow_together_are_named():
    rules = [("urgency=high", "a"), ("urgency=low", "b"), ("tags!=x", "c"), ("urgency!=throttled&tags=x", "d")]
    workers = [
        worker("AWorker", urgency="high"),
        worker("BWorker"),
        worker("CWorker", urgency="throttled", tags=("x",)),
    ]
    found = [one for one in findings(rules, workers) if one.kind == "unreachable"]
    assert kinds(found) == [("unreachable", rule(3))]
    assert "routing_rules[0] (urgency=high) and routing_rules[1] (urgency=low) together take" in found[0].message


def test_rule_that_contradicts_itself_is_named_so():
    (found,) = findings([("urgency=high&urgency=low", "x")], [worker("AWorker")])
    assert (found.kind, found.place) == ("unreachable", rule(0))
    assert "contradicts itself" in found.message


def test_unknown_name_suggests_the_nearest():
    workers = [worker("MailWorker", tags=("mail",), queue_namespace="office", aliases=("Old::MailWorker",))]
    query = (
        "worker_name=MailWorkr,MailWorker&name!=office:mial|tags=mial&queue_namespace=offise"
        "|feature_category=billing&worker_name!=Old::MailWorker"
    )
    found = findings([(query, "x")], workers)
    assert {one.message.partition(":")[0] if "office" not in one.message else one.message for one in found} >= {
        "no worker has worker_name MailWorkr (did you mean 'MailWorker'?)",
        "no worker has feature_category billing",
    }
    assert [(one.kind, one.place) for one in found if one.kind == "unknown-name"] == [("unknown-name", rule(0))] * 6
    text = "\n".join(map(str, found))
    for words in (
        "no worker has name office:mial (did you mean 'office:mail'?)",
        "no worker has tags mial (did you mean 'mail'?)",
        "no worker has queue_namespace offise (did you mean 'office'?)",
        "no worker has worker_name Old::MailWorker (a former name of MailWorker)",
    ):
        assert words in text


def test_unused_word_of_a_closed_vocabulary_is_known():
    found = findings([("urgency=throttled", "x"), ("*", "default")], [worker("AWorker")])
    assert kinds(found) == [("unused", rule(0))]
    assert found[0].message == "no worker matches urgency=throttled: correct it, or delete the rule"


def test_rule_with_all_workers_taken_is_unused():
    workers = [worker("AWorker", tags=("a", "b"), urgency="high"), worker("BWorker", tags=("b",), urgency="low")]
    found = findings([("tags=a", "x"), ("urgency=low", "y"), ("tags=b", "z")], workers)
    assert kinds(found) == [("unused", rule(2))]
    assert "AWorker by routing_rules[0], BWorker by routing_rules[1]" in found[0].message


def test_rule_of_only_pinned_workers_is_unused():
    own = worker("OwnWorker", tags=("a",), queue="mine", shard="second")
    found = findings([("tags=a", "x"), ("*", "default")], [own])
    assert ("unused", rule(0)) in kinds(found)
    assert "OwnWorker by queue and shard of its own" in found[0].message
    half = worker("HalfWorker", tags=("a",), queue="mine")
    assert not [one for one in findings([("tags=a", "x", "second"), ("*", "default")], [half]) if one.is_error]


def test_unserved_queue_is_named_with_its_place():
    workers = [
        worker("RuledWorker", tags=("a",)),
        worker("OwnWorker", queue="own"),
        worker("RetryingWorker", retry_queue="later", tags=("a",)),
        worker("PlainWorker"),
        worker("SpacedWorker", queue_namespace="ns"),
        worker("AliensWorker", queue="nsx:own"),
    ]
    found = findings([("tags=a", "ruled")], workers, served=("ns",))
    assert kinds([one for one in found if one.kind == "unserved"]) == [
        ("unserved", rule(0)),
        ("unserved", "workers.office.AliensWorker: queue"),
        ("unserved", "workers.office.OwnWorker: queue"),
        ("unserved", "workers.office.PlainWorker: its generated name"),
        ("unserved", "workers.office.RetryingWorker: retry_queue"),
    ]
    assert found[0].message.startswith(
        "no line of config/queues.yml serves the queue ruled, to which jobs of RuledWorker, RetryingWorker go: run "
    )


def test_pinned_queue_over_a_rule_is_information():
    workers = [
        worker("PinnedWorker", shard="second", queue="mine"),
        worker("SameWorker", queue="default", shard="main"),
    ]
    found = [one for one in findings([("*", "default")], workers) if one.kind == "override"]
    assert not any(one.is_error for one in found)
    assert [str(one) for one in found] == [
        "workers.office.PinnedWorker: queue: 'mine' overrides 'default' of routing_rules[0] (*) [override]",
        "workers.office.PinnedWorker: shard: 'second' overrides 'main' of routing_rules[0] (*) [override]",
    ]


def test_weight_of_an_unknown_namespace_is_found():
    found = findings([], [worker("AWorker", queue_namespace="mailers")], namespace_weights={"mailer": 2, "mailers": 2})
    assert kinds(found) == [("unknown-name", "config/application.yml: namespace_weights.mailer")]
    assert "(did you mean 'mailers'?)" in found[0].message


def test_finding_names_file_and_key_of_the_rule():
    router = Router(
        [RoutingRule("*", "a"), RoutingRule("*", "b")], ["main"], source="environment: FRAMEWORK_ROUTING_RULES"
    )
    (found,) = RuleChecks(router, [], []).findings()
    assert found.place == "environment: FRAMEWORK_ROUTING_RULES: routing_rules[1]"


@each_row(
    ("names", "queue", "served"),
    [
        (["a"], "a", True),
        (["a"], "a:b", True),
        (["a"], "a:b:c", True),
        (["a:b"], "a:b:c", True),
        (["a"], "ab:c", False),
        (["a:b"], "a", False),
        (["a:b"], "a:c", False),
        ([], "a", False),
    ],
)
def test_namespace_serves_its_queues(names: list[str], queue: str, served: bool):
    assert serves(names, queue) is served


def test_unserved_queues_of_running_processes_are_found():
    found = list(unserved_queues("main", {"a"}, {"a": 5, "b": 1200}, {"b": ["BWorker"], "c": ["CWorker"]}))
    start = "start one with `application-worker worker --shard main -q"
    assert [str(one).removeprefix("shard main: no running process serves the queue ") for one in found] == [
        f"b, to which jobs of BWorker go (waiting jobs: 1,200): {start} b` [unserved]",
        f"c, to which jobs of CWorker go (waiting jobs: 0): {start} c` [unserved]",
    ]
