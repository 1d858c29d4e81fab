"""Test the entry of each worker in all_queues.yml."""

from datetime import timedelta
from typing import Any

from framework.application_worker import ApplicationWorker
from framework.declare import queue_facts
from framework.declare.declaration import Declaration
from framework.declare.policy_options import Deduplicate
from framework.features.health.attributes import DeferOnHealth


def declare(name: str, **body: Any) -> Declaration:
    body = {"feature_category": "x", "perform": lambda self: None, "__module__": "workers.sample", **body}
    worker: Any = type(name, (ApplicationWorker,), body)
    return worker.declaration()


def test_queue_facts_have_gitlab_fields_first():
    entry = queue_facts.queue_facts(
        declare(
            "AWorker",
            queue_namespace="ns",
            tags=("t",),
            retry=3,
            concurrency_limit=lambda: 3,
            deduplicate=Deduplicate("until_executed", ttl=timedelta(1)),
            defer_on_health=DeferOnHealth("sec"),
        ),
        {},
    )
    assert list(entry)[:10] == [
        "name",
        "worker_name",
        "feature_category",
        "has_external_dependencies",
        "urgency",
        "resource_boundary",
        "weight",
        "idempotent",
        "tags",
        "queue_namespace",
    ]
    assert (entry["name"], entry["worker_name"], entry["tags"], entry["retry"]) == ("ns:a", "AWorker", ["t"], 3)
    assert (entry["concurrency_limit"], entry["deduplicate"], entry["defer_on_health"]) == (
        "computed",
        "until_executed",
        "sec",
    )


def test_queue_facts_sort_namespaced_workers_first():
    declarations = [declare("CWorker"), declare("BWorker"), declare("ZWorker", queue_namespace="ns")]
    assert [entry["name"] for entry in queue_facts.all_queue_facts(declarations, {})] == ["ns:z", "b", "c"]


def test_diff_lists_missing_surplus_and_changed_entries():
    a, b, c = (queue_facts.queue_facts(declare(name), {}) for name in ("AWorker", "BWorker", "CWorker"))
    assert queue_facts.diff_queue_facts([a, b], [a, b]).is_empty
    comparison = queue_facts.diff_queue_facts([a, b], [{**b, "weight": 2}, c])
    assert comparison.missing == ("AWorker",)
    assert comparison.surplus == ("CWorker",)
    assert comparison.changed == ("BWorker: weight is 2 in the file, 1 in the class",)
    assert not comparison.is_empty
    without = {key: value for key, value in a.items() if key != "queue"}
    assert queue_facts.diff_queue_facts([a], [{**without, "extra": 1}]).changed == (
        "AWorker: queue is None in the file, None in the class",
        "AWorker: extra is 1 in the file, None in the class",
    )


def test_expanding_namespaces_keeps_the_order():
    known = ["b:y", "b:x", "bb:x", "a", "b"]
    assert queue_facts.expand_namespaces(["b", "a", "b:x", "new"], known) == ["b", "b:x", "b:y", "a", "new"]
    assert queue_facts.expand_namespaces([], known) == []


def test_effective_weight_order_is_class_namespace_urgency():
    table = {"mailers": 2}

    def weight(**body: Any) -> tuple[int, str]:
        return tuple(queue_facts.effective_weight(declare("AWorker", **body), table))

    assert weight(weight=5, queue_namespace="mailers", urgency="high") == (5, "attribute")
    assert weight(queue_namespace="mailers", urgency="high") == (2, "namespace_weights")
    assert weight(queue_namespace="other", urgency="high") == (3, "urgency")
    assert weight(urgency="high") == (3, "urgency")
    assert weight() == weight(urgency="throttled") == (1, "urgency")
    assert queue_facts.queue_facts(declare("AWorker", queue_namespace="mailers"), table)["weight"] == 2


def test_effective_weight_none_in_child_drops_parents_weight():
    class HeavyWorker(ApplicationWorker, abstract=True):
        feature_category = "x"
        weight = 5

        def perform(self) -> None: ...

    class InheritingWorker(HeavyWorker):
        pass

    class ChildWorker(HeavyWorker):
        weight = None

    assert queue_facts.effective_weight(InheritingWorker.declaration(), {}).value == 5
    assert queue_facts.effective_weight(ChildWorker.declaration(), {}) == (1, "urgency")


def test_diff_tells_true_from_one():
    found = queue_facts.queue_facts(declare("AWorker", retry=1), {})
    assert queue_facts.diff_queue_facts([found], [{**found, "retry": True}]).changed == (
        "AWorker: retry is True in the file, 1 in the class",
    )
