"""The doors of limited classes and limited queues: a job has a slot, or it waits where it is handed the next one."""

import time
from collections.abc import Callable
from typing import Any

from redis.exceptions import ResponseError

from framework.declare.declaration import Declaration
from framework.execute.gates import Entry
from framework.fetch.slots import Answer, Slots, let_go_of_reservation
from framework.finish.outcome import Discarded, Outcome, Parked
from framework.policies.concurrency.limits import QUEUE, Limits
from framework.store.script import is_wrong_type
from framework.telemetry.counters import counters
from framework.telemetry.logs import logger
from framework.telemetry.repeated import Repeated
from framework.wire.job import BUFFERED_AT

DEFERRED_JOBS = "sidekiq_concurrency_limit_deferred_jobs_total"
_told = Repeated(60.0)


class ClassLimit:
    """Lets in as many jobs of a class as its limit says, and of one scope as its share says."""

    def __init__(self, slots: Slots, limits: Limits) -> None:
        self._slots = slots
        self._limits = limits

    def concerns(self, declaration: Declaration) -> bool:
        """Whether the class has a limit, or may have one."""
        return self._limits.has_one(declaration)

    def admit(self, entry: Entry) -> Outcome | None:
        """Give the job a slot, or say that it waits."""
        declaration, limits = entry.declaration, self._limits
        limit = limits.of(declaration)
        scope = limits.scope_of(declaration, entry.payload)
        share = limits.share_of_scope(declaration, limit)
        return _enter(self._slots, entry, declaration.wire_name, limit, scope, share)


class CapacityLimit:
    """Lets in as many jobs of a limited capacity worker as may run. One that finds no slot is not needed, and ends (GitLab)."""

    def __init__(self, slots: Slots, limits: Limits) -> None:
        self._slots = slots
        self._limits = limits

    def concerns(self, declaration: Declaration) -> bool:
        """Whether the class is such a worker."""
        return declaration.max_running_jobs is not None

    def admit(self, entry: Entry) -> Outcome | None:
        """Give the job a slot, its own if one was reserved for it, or say that it is not needed."""
        name, limit = entry.declaration.wire_name, self._limits.capacity_of(entry.declaration)
        if limit <= 0:
            let_go_of_reservation(entry.unit, entry.payload, name)
            return Discarded(f"max_running_jobs is {limit}")
        answer = _take(self._slots, entry, name, limit, parks=False)
        if answer is None or answer.state == "taken":
            return None
        if answer.state == "fenced":
            return Parked("fenced")
        return Discarded(f"{answer.taken} of {answer.limit} jobs are running or about to (max_running_jobs)")


class QueueLimit:
    """Lets in as many jobs of a queue as the setting ``limits`` says (sidekiq-limit_fetch's, over all processes)."""

    def __init__(self, slots: Slots, limits: Limits) -> None:
        self._slots = slots
        self._limits = limits

    def concerns(self, declaration: Declaration) -> bool:
        """Every class, where any queue is limited: jobs of a class may wait in any queue."""
        del declaration
        return self._limits.of_queues

    def admit(self, entry: Entry) -> Outcome | None:
        """Give the job a slot of its queue, or say that it waits."""
        limit = self._limits.of_queue(entry.unit.queue)
        return None if limit is None else _enter(self._slots, entry, QUEUE + entry.unit.queue, limit)


def _enter(slots: Slots, entry: Entry, name: str, limit: int, scope: str = "", share: int = 0) -> Outcome | None:
    declaration = entry.declaration
    answer = _take(slots, entry, name, limit, scope=scope, share=share)
    if answer is None:
        return None
    if answer.state == "taken":
        if BUFFERED_AT in entry.payload:
            _call(entry, "on_concurrency_limit_resumed", entry.worker.on_concurrency_limit_resumed)
        return None
    if answer.state == "fenced":
        return Parked("fenced")
    counters.add(DEFERRED_JOBS, declaration.wire_name)
    _call(entry, "on_concurrency_limit_deferred", entry.worker.on_concurrency_limit_deferred)
    return Parked("concurrency_limit", _facts(answer, name, scope))


def _take(slots: Slots, entry: Entry, name: str, limit: int, **more: Any) -> Answer | None:
    """Return what became of the job at the limit; ``None`` when its keys cannot be used, which is told."""
    try:
        return slots.take(entry.unit, entry.payload, name, limit, **more)
    except ResponseError as error:
        if not is_wrong_type(error):
            raise
        if count := _told.due(name, time.monotonic()):
            logger(limit=name).error(
                "the keys of this limit cannot be used, so its jobs run without it",
                event_name="concurrency_limit.unusable",
                count=count,
                error=error,
            )
        return None


def _facts(answer: Answer, name: str, scope: str) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "concurrency_limit": answer.limit,
        "current_concurrency": answer.taken,
        "concurrency_limit_queue_size": answer.waiting,
    }
    if name.startswith(QUEUE):
        facts["concurrency_limit_name"] = name
    if scope:
        facts["concurrency_scope"] = scope
    return facts


def _call(entry: Entry, hook: str, call: Callable[[list[Any]], object]) -> None:
    try:
        call(list(entry.payload["args"]))
    except BaseException as error:  # noqa: BLE001 - somebody else's code must not decide a job's fate
        logger(jid=entry.payload.get("jid")).error(
            f"{hook} raised", event_name="concurrency_limit.hook_failed", error=error
        )
