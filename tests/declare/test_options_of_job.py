"""Test options of the application: their declaration, their values in classes and pushes, and their way with a job."""

from collections.abc import Iterator
from typing import Any

import pytest

from framework import job_options as declaring
from framework.application_worker import ApplicationWorker
from framework.by_name import enqueue
from framework.declare import queue_facts
from framework.declare.options import TRACKED
from framework.errors import ArgumentsError, DeclarationError
from framework.job_options import declare_option
from framework.testing import fake
from framework.wire.job import Job


@pytest.fixture(autouse=True)
def _own_options() -> Iterator[None]:
    with declaring.isolated():
        yield


def make(name: str = "MailWorker", **body: Any) -> Any:
    body = {"feature_category": "not_owned", "perform": lambda self: None, "__module__": "workers.sample", **body}
    return type(name, (ApplicationWorker,), body)


def _only_even(value: int) -> None:
    if value % 2:
        raise ValueError("an even number")


def _declare(name: Any = "audit", kind: Any = bool, **more: Any) -> Any:
    return declare_option(name, kind, **{"default": kind(), "doc": "For tests.", **more})


def test_option_wrong_declaration_or_value_is_refused():
    _declare("trace", wire_field="trace_it")
    even = _declare("even", int, check=_only_even)
    level = _declare("level", str, default="low", choices=("low", "high"))
    ratio = _declare("ratio", float)
    for refused, text in [
        (lambda: _declare("Audit"), "letter first"),
        (lambda: _declare("class"), "letter first"),
        (lambda: _declare(7), "letter first"),
        (lambda: _declare("even"), f"declared already, in {__name__}"),
        (lambda: _declare("retry"), "the framework has an attribute"),
        (lambda: _declare("track"), "the framework has an attribute"),
        (lambda: _declare("perform_async"), "the framework has an attribute"),
        (lambda: _declare("delay"), "the framework has an attribute"),
        (lambda: _declare("sync"), "the framework has an attribute"),
        (lambda: _declare(wire_field="jid"), "'jid' has a meaning"),
        (lambda: _declare(wire_field="aw_x"), "'aw_x' has a meaning"),
        (lambda: _declare(wire_field="meta.x"), "wire_field = 'meta.x' is not allowed"),
        (lambda: _declare(wire_field="trace_it"), "belongs to the option 'trace'"),
        (lambda: _declare("trace_it"), "belongs to the option 'trace'"),
        (lambda: _declare(kind=list), "bool, int, float, str"),
        (lambda: _declare(doc=" "), "a sentence"),
        (lambda: _declare(default=1), "True or False"),
        (lambda: _declare(kind=int, default=3, check=_only_even), "an even number"),
        (lambda: _declare(kind=str, choices=("a", 1), default="a"), "one of 'a', 1"),
        (lambda: make(even="2"), "Allowed: a whole number"),
        (lambda: make(even=True), "Allowed: a whole number"),
        (lambda: make(even=2**60), "Allowed: a whole number"),
        (lambda: make(level="mid"), "Allowed: one of 'low', 'high'"),
        (lambda: make(ratio=float("nan")), "Allowed: a finite number"),
        (lambda: make(ratio=10**400), "Allowed: a finite number"),
        (lambda: make(levle="low"), "did you mean 'level'?"),
        (lambda: make(unknown=1), "An option of your own: declare_option(...) before the class"),
    ]:
        with pytest.raises(DeclarationError) as caught:
            refused()
        assert text in str(caught.value)
    worker = make(even=4, ratio=1)
    for options, text in [
        ({"even": 3}, "an even number"),
        ({"evne": 2}, "did you mean 'even'?"),
        ({"level": 1}, "one of"),
    ]:
        with pytest.raises(ArgumentsError, match=text):
            worker.set(**options)
    child: Any = type("ChildWorker", (worker,), {"level": "high", "even": 0})
    assert [one.of(worker, {}) for one in (even, level, ratio)] == [4, "low", 1.0]
    assert [one.of(child(), {}) for one in (even, level, ratio)] == [0, "high", 1.0]
    assert queue_facts.queue_facts(child.declaration(), {})["options"] == {"level": "high", "ratio": 1.0}
    assert "options" not in queue_facts.queue_facts(make("TrackedWorker", track=True).declaration(), {})
    # A mixin is not checked, so a class that came before the option has the name without its effect.
    type("LateWorker", (type("Mixin", (), {"mixed_in": True}), make("BaseWorker")), {"__module__": "workers.sample"})
    with pytest.raises(
        DeclarationError, match=r"Mixin had the name before: import .*test_options_of_job in the module"
    ):
        _declare("mixed_in")


def test_option_travels_with_its_job_to_the_middleware():
    audit, level = _declare(), _declare("level", int, default=1, wire_field="audit_level")
    seen: list[Any] = []

    class Read:
        def call(self, worker: Any, job: Job, queue: str) -> Iterator[None]:
            seen.append((job["args"], audit.of(worker, job), level.of(worker, job), TRACKED.of(worker, job)))
            yield

    def perform(self: Any, number: int) -> None:
        if seen.count(seen[-1]) < 2:
            raise LookupError("again")

    worker = make(perform=perform, audit=True, retry=3)
    plain = make("PlainWorker", perform=lambda self, number: None)
    with fake(server_middlewares=[Read]) as jobs:
        worker.perform_in(60, 1)
        worker.set(audit=False, **level.keyword(2)).perform_async(2)
        plain.perform_bulk([(3,)])
        enqueue("PlainWorker", [4], level=3)
        payloads = {one["args"][0]: one for one in jobs.enqueued()}
        assert [payloads[number].get("audit") for number in (1, 2, 3, 4)] == [True, False, None, None]
        assert [payloads[number].get("audit_level") for number in (1, 2, 3, 4)] == [None, 2, None, 3]
        # Each failed job runs a second time from the retry set, the first one from the schedule before.
        assert jobs.drain(raise_errors=False) == 6
    assert sorted(map(repr, seen)) == sorted(
        map(
            repr,
            [([1], True, 1, False)] * 2
            + [([2], False, 2, False)] * 2
            + [([3], False, 1, False), ([4], False, 3, False)],
        )
    )
    # Another program's payload: without the field its class decides, and so for a value that is not allowed.
    for job, found in [({}, True), ({"audit": False}, False), ({"audit": "yes"}, True), ({"audit": None}, True)]:
        assert audit.of(worker, job) is found
    assert audit.of("NotHereWorker", {}) is False
