"""The doors of limited classes and limited queues: a job has a slot, or it waits where it is handed the next one."""

from collections.abc import Callable
from typing import Any

from redis.exceptions import ResponseError

from framework.declare.declaration import Declaration
from framework.execute.admission import AdmissionRequest
from framework.finish.outcome import Discarded, Held, Outcome
from framework.policies.concurrency.limits import QUEUE_PREFIX, Limits
from framework.policies.concurrency.slots import LimitSlots, SlotResult, release_reservation
from framework.store.script import is_wrong_type
from framework.telemetry.counters import counters
from framework.telemetry.logs import logger
from framework.telemetry.rate_limit import LogRateLimit
from framework.wire.job import BUFFERED_AT

DEFERRED_JOBS = "sidekiq_concurrency_limit_deferred_jobs_total"
_log_limit = LogRateLimit(60.0)


class ClassLimit:
    """Lets in as many jobs of a class as its limit says, and of one scope as its share says."""

    def __init__(self, slots: LimitSlots, limits: Limits) -> None:
        self._slots = slots
        self._limits = limits

    def applies_to(self, declaration: Declaration) -> bool:
        """Whether the class has a limit, or may have one."""
        return self._limits.may_limit(declaration)

    def admit(self, request: AdmissionRequest) -> Outcome | None:
        """Give the job a slot, or say that it waits."""
        declaration, limits = request.declaration, self._limits
        limit = limits.class_limit(declaration)
        scope = limits.scope(declaration, request.payload)
        share = limits.scope_share(declaration, limit)
        return _admit(self._slots, request, declaration.wire_name, limit, scope, share)


class CapacityLimit:
    """Lets in as many jobs of a limited capacity worker as may run. One that finds no slot is not needed, and ends (GitLab)."""

    def __init__(self, slots: LimitSlots, limits: Limits) -> None:
        self._slots = slots
        self._limits = limits

    def applies_to(self, declaration: Declaration) -> bool:
        """Whether the class is such a worker."""
        return declaration.max_running_jobs is not None

    def admit(self, request: AdmissionRequest) -> Outcome | None:
        """Give the job a slot, its own if one was reserved for it, or say that it is not needed."""
        name, limit = request.declaration.wire_name, self._limits.capacity(request.declaration)
        if limit <= 0:
            release_reservation(request.unit, request.payload, name)
            return Discarded(f"max_running_jobs is {limit}")
        answer = _take_slot(self._slots, request, name, limit, may_wait=False)
        if answer is None or answer.state == "taken":
            return None
        if answer.state == "fenced":
            return Held("fenced")
        return Discarded(f"{answer.taken} of {answer.limit} jobs are running or about to (max_running_jobs)")


class QueueLimit:
    """Lets in as many jobs of a queue as the setting ``limits`` says (sidekiq-limit_fetch's, over all processes)."""

    def __init__(self, slots: LimitSlots, limits: Limits) -> None:
        self._slots = slots
        self._limits = limits

    def applies_to(self, declaration: Declaration) -> bool:
        """Every class, where any queue is limited: jobs of a class may wait in any queue."""
        del declaration
        return self._limits.limits_queues

    def admit(self, request: AdmissionRequest) -> Outcome | None:
        """Give the job a slot of its queue, or say that it waits."""
        limit = self._limits.queue_limit(request.unit.queue)
        return None if limit is None else _admit(self._slots, request, QUEUE_PREFIX + request.unit.queue, limit)


def _admit(
    slots: LimitSlots, request: AdmissionRequest, name: str, limit: int, scope: str = "", share: int = 0
) -> Outcome | None:
    declaration = request.declaration
    answer = _take_slot(slots, request, name, limit, scope=scope, share=share)
    if answer is None:
        return None
    if answer.state == "taken":
        if BUFFERED_AT in request.payload:
            _call_hook(request, "on_concurrency_limit_resumed", request.worker.on_concurrency_limit_resumed)
        return None
    if answer.state == "fenced":
        return Held("fenced")
    counters.add(DEFERRED_JOBS, declaration.wire_name)
    _call_hook(request, "on_concurrency_limit_deferred", request.worker.on_concurrency_limit_deferred)
    return Held("concurrency_limit", _log_fields(answer, name, scope))


def _take_slot(
    slots: LimitSlots, request: AdmissionRequest, name: str, limit: int, **options: Any
) -> SlotResult | None:
    """Return what became of the job at the limit; ``None`` when its keys cannot be used, which is told."""
    try:
        return slots.take(request.unit, request.payload, name, limit, **options)
    except ResponseError as error:
        if not is_wrong_type(error):
            raise
        _log_limit.error(
            name,
            "the keys of this limit cannot be used, so its jobs run without it",
            "concurrency_limit.unusable",
            limit=name,
            error=error,
        )
        return None


def _log_fields(answer: SlotResult, name: str, scope: str) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "concurrency_limit": answer.limit,
        "current_concurrency": answer.taken,
        "concurrency_limit_queue_size": answer.waiting,
    }
    if name.startswith(QUEUE_PREFIX):
        facts["concurrency_limit_name"] = name
    if scope:
        facts["concurrency_scope"] = scope
    return facts


def _call_hook(request: AdmissionRequest, hook: str, call: Callable[[list[Any]], object]) -> None:
    try:
        call(list(request.payload["args"]))
    except BaseException as error:  # noqa: BLE001 - somebody else's code must not decide a job's fate
        logger(jid=request.payload.get("jid")).error(
            f"{hook} raised", event_name="concurrency_limit.hook_failed", error=error
        )
