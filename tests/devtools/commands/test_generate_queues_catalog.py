"""Test the lines of queues.yml, and generated queues that workers share."""

from collections.abc import Iterator
from typing import Any

import pytest

from framework.application_worker import ApplicationWorker
from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.devtools.commands import generate_queues


@pytest.fixture(autouse=True)
def _own_registry() -> Iterator[None]:
    with registry.isolated():
        yield


def declare(name: str, **body: Any) -> Declaration:
    body = {"feature_category": "x", "perform": lambda self: None, "__module__": "workers.sample", **body}
    worker: Any = type(name, (ApplicationWorker,), body)
    return worker.declaration()


def test_queue_weights_join_namespace_of_equal_weights():
    declarations = [
        declare("AWorker", queue_namespace="even", weight=2),
        declare("BWorker", queue_namespace="even", weight=2),
        declare("CWorker", queue_namespace="odd", weight=1),
        declare("DWorker", queue_namespace="odd", weight=3),
        declare("EWorker", weight=5),
    ]
    weights = generate_queues.queue_weights(declarations, {"default": 4, "even:a": 9, "e": 1}, {})
    assert weights == [("default", 4), ("e", 5), ("even", 2), ("odd:c", 1), ("odd:d", 3)]


def test_queue_weights_of_namespace_come_from_the_table():
    declarations = [
        declare("AWorker", queue_namespace="ns"),
        declare("BWorker", queue_namespace="ns", urgency="high"),
        declare("CWorker", queue_namespace="mix"),
        declare("DWorker", queue_namespace="mix", urgency="high"),
        declare("NsWorker", weight=4),  # the queue has the name of the namespace
    ]
    assert generate_queues.queue_weights(declarations, {}, {"ns": 2}) == [("mix:c", 1), ("mix:d", 3), ("ns", 4)]


def test_catalog_shared_queues_are_found():
    assert generate_queues.shared_queues([declare("AWorker"), declare("A"), declare("BWorker")]) == {
        "a": ["A", "AWorker"]
    }
