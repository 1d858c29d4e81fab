"""Admit jobs of limited classes and queues: take a slot, or let the job wait for one."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from redis.exceptions import ResponseError

from framework.declare.declaration import Declaration
from framework.execute.admission import (
    AdmissionRequest,
    ClassTerms,
    LimitSlots,
    SlotResult,
    StagedPolicy,
    release_reservation,
)
from framework.feature import Late
from framework.features.concurrency.database_load import open_load
from framework.features.concurrency.limits import QUEUE_PREFIX, FleetSlots, Limits, Throttle
from framework.features.concurrency.observer import may_throttle
from framework.features.concurrency.portions import PortionKeeper
from framework.features.concurrency.settings import ConcurrencySettings
from framework.features.concurrency.sweeper import LimitSweeper
from framework.finish.outcome import Discarded, Held, Lost, NotAdmitted
from framework.process.worker_parts import OwnTask, ProcessContext, WorkerPart
from framework.store.script import is_wrong_type
from framework.telemetry.job_events import JobHeld, JobResumed, job_events
from framework.telemetry.library_calls import count_library_calls
from framework.telemetry.logs import LogRateLimit, logger
from framework.text import format_count
from framework.wire import keys
from framework.wire.job import BUFFERED_AT

_log_limit = LogRateLimit(60.0)


class ClassLimit:
    """Admit as many jobs of a class as its limit allows, and as many of one scope as its share allows."""

    def __init__(self, slots: LimitSlots, limits: Limits) -> None:
        self._slots = slots
        self._limits = limits

    def applies_to(self, declaration: Declaration) -> bool:
        return self._limits.may_limit(declaration)

    def admit(self, request: AdmissionRequest) -> NotAdmitted | None:
        """Take a slot for the job; without a free slot, hold it at the limit."""
        declaration, limits = request.declaration, self._limits
        answer = request.unit.admission
        if answer is not None:
            result = SlotResult.of(answer.state, answer[1:])
            return _outcome_of(result, request, declaration.wire_name, limits.scope(declaration, request.payload))
        limit = limits.class_limit(declaration)
        scope = limits.scope(declaration, request.payload)
        share = limits.scope_share(declaration, limit)
        return _admit(self._slots, request, declaration.wire_name, limits.stated(declaration, limit), scope, share)

    def may_wait(self, declaration: Declaration) -> bool:
        """See ``GroupedPolicy``: the limit or the scope may be a function of the application."""
        scope = declaration.facts["concurrency_scope"]
        return callable(declaration.facts["concurrency_limit"]) or (scope is not None and callable(scope.by))

    def prepare(self, terms: ClassTerms) -> None:
        limits, declaration = self._limits, terms.declaration
        terms.lasting &= not limits.may_change(declaration)
        limit = limits.class_limit(declaration)
        if not _prepare_slot(self._slots, terms, declaration.wire_name, limits.stated(declaration, limit)):
            return
        if declaration.facts["concurrency_scope"] is not None:
            terms.scope_of = partial(limits.scope, declaration)
            terms.share = limits.scope_share(declaration, limit)


class CapacityLimit:
    """Admit as many jobs of a limited capacity worker as may run. A job without a slot is superfluous and ends (GitLab)."""

    def __init__(self, slots: LimitSlots, limits: Limits) -> None:
        self._slots = slots
        self._limits = limits

    def applies_to(self, declaration: Declaration) -> bool:
        return declaration.facts["max_running_jobs"] is not None

    def admit(self, request: AdmissionRequest) -> NotAdmitted | None:
        """Take a slot, the reserved one if there is one; without a free slot, discard the job."""
        name, limit = request.declaration.wire_name, self._limits.capacity(request.declaration)
        if limit <= 0:
            release_reservation(request.unit, request.payload, name)
            return Discarded(f"max_running_jobs is {limit}", "max_running_jobs")
        if (answer := request.unit.admission) is None:
            result = _take_slot(self._slots, request, name, str(limit), may_wait=False)
        else:
            result = SlotResult.of(answer.state, answer[1:])
        if result is None or result.state == "taken":
            return None
        if result.state == "fenced":
            return Lost()
        return Discarded(
            f"running or about to run: {result.taken} of {format_count(result.limit, 'job')} (max_running_jobs)",
            "max_running_jobs",
        )

    def may_wait(self, declaration: Declaration) -> bool:
        """See ``GroupedPolicy``: the limit may be a function of the application."""
        return callable(declaration.facts["max_running_jobs"])

    def prepare(self, terms: ClassTerms) -> None:
        declaration, terms.may_wait = terms.declaration, False
        terms.lasting &= not callable(declaration.facts["max_running_jobs"])
        limit = self._limits.capacity(declaration)
        if limit > 0:
            _prepare_slot(self._slots, terms, declaration.wire_name, str(limit))
        else:
            terms.alone = True


class QueueLimit:
    """Admit as many jobs of a queue as the setting ``limits`` allows (like sidekiq-limit_fetch, over all processes)."""

    def __init__(self, slots: LimitSlots, limits: Limits) -> None:
        self._slots = slots
        self._limits = limits

    def applies_to(self, declaration: Declaration) -> bool:
        """Apply to every class if any queue is limited: any class may have jobs in any queue."""
        del declaration
        return self._limits.limits_queues

    def admit(self, request: AdmissionRequest) -> NotAdmitted | None:
        """Take a slot of the job's queue; without a free slot, hold the job at the limit."""
        limit, name = self._limits.queue_limit(request.unit.queue), QUEUE_PREFIX + request.unit.queue
        if limit is None:
            return None
        answer = request.unit.admission
        if answer is not None:
            return _outcome_of(SlotResult.of(answer.state, answer[1:]), request, name, "")
        return _admit(self._slots, request, name, str(limit))

    def may_wait(self, declaration: Declaration) -> bool:
        """See ``GroupedPolicy``: the limit is a number of the settings."""
        del declaration
        return False

    def prepare(self, terms: ClassTerms) -> None:
        limit = self._limits.queue_limit(terms.queue)
        if limit is not None:
            _prepare_slot(self._slots, terms, QUEUE_PREFIX + terms.queue, str(limit))


def _prepare_slot(slots: LimitSlots, terms: ClassTerms, name: str, limit: str) -> bool:
    """Ask for a slot of the limit ``name``; return ``False`` if the jobs ask for another one already."""
    return terms.ask_slot(keys.limit(name), slots.owner, limit, slots.ttl_s)


def _admit(
    slots: LimitSlots, request: AdmissionRequest, name: str, limit: str, scope: str = "", share: int = 0
) -> NotAdmitted | None:
    result = _take_slot(slots, request, name, limit, scope=scope, share=share)
    return None if result is None else _outcome_of(result, request, name, scope)


def _outcome_of(result: SlotResult, request: AdmissionRequest, name: str, scope: str) -> NotAdmitted | None:
    declaration = request.declaration
    if result.state == "taken":
        if BUFFERED_AT in request.payload:
            job_events.emit(JobResumed(declaration.wire_name, by="concurrency_limit"))
            _call_hook(request, "on_concurrency_limit_resumed", request.worker.on_concurrency_limit_resumed)
        return None
    if result.state == "fenced":
        return Lost()
    job_events.emit(JobHeld(declaration.wire_name, by="concurrency_limit"))
    _call_hook(request, "on_concurrency_limit_deferred", request.worker.on_concurrency_limit_deferred)
    return Held("concurrency_limit", _log_fields(result, name, scope))


def _take_slot(
    slots: LimitSlots, request: AdmissionRequest, name: str, limit: str, **options: Any
) -> SlotResult | None:
    """Return the result of the request for a slot; ``None`` if the limit's keys cannot be used, which is logged."""
    try:
        return slots.take(request.unit, request.payload, name, limit, **options)
    except ResponseError as error:
        if not is_wrong_type(error):
            raise
        _log_limit.error(
            name,
            "a key of this concurrency limit has the wrong type, so its jobs run without the limit. Check the key with TYPE, then "
            "delete it",
            "concurrency_limit.unusable",
            limit=name,
            error=error,
        )
        return None


def _log_fields(result: SlotResult, name: str, scope: str) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "concurrency_limit": result.limit,
        "current_concurrency": result.taken,
        "concurrency_limit_queue_size": result.waiting,
    }
    if name.startswith(QUEUE_PREFIX):
        facts["concurrency_limit_name"] = name
    if scope:
        facts["concurrency_scope"] = scope
    return facts


def _call_hook(request: AdmissionRequest, hook: str, call: Callable[[list[Any]], object]) -> None:
    try:
        call(list(request.payload["args"]))
    except BaseException as error:  # noqa: BLE001 - an application's error must not decide about a job
        logger(jid=request.payload.get("jid")).error(
            f"{hook} raised an error; the job continues. Correct the hook",
            event_name="concurrency_limit.hook_failed",
            error=error,
        )


def open_limits(process: ProcessContext) -> Limits:
    """Return the limits as a worker process knows them. Sends nothing."""
    settings, fleet = process.settings, FleetSlots(process.upkeep, process.timings)
    by_urgency = ConcurrencySettings.of(settings).concurrency_limit_by_urgency
    return Limits(fleet, settings.limits, by_urgency=by_urgency, shared=settings.roles.meta is not None)


LIMITS: "Late[Callable[[ProcessContext], Limits]]" = Late("framework.features.concurrency.admission:open_limits")


def worker_part(process: ProcessContext) -> WorkerPart:
    client, upkeep, waits = process.shard.client, process.upkeep, process.timings
    limits = process.service(LIMITS)

    def of_capsule(owner: str) -> Sequence[StagedPolicy]:
        slots = LimitSlots(client, owner, waits)
        return (
            StagedPolicy("queue_slot", QueueLimit(slots, limits)),
            StagedPolicy("class_slot", ClassLimit(slots, limits)),
            StagedPolicy("class_slot", CapacityLimit(slots, limits)),
        )

    process.absent.watch(keys.LIMITS, keys.LIMITS_WAITING)
    sweeper = LimitSweeper(upkeep, limits, process.invalidate, process.absent)
    database = open_load(upkeep, process.settings, process.absent)
    written = () if database is None else (database.write,)
    if may_throttle(process.settings):
        # Also where no log line shows the calls.
        count_library_calls()
    throttle = Throttle(upkeep, limits, database=database)
    tasks: tuple[OwnTask, ...] = ()
    if (meta := process.settings.roles.meta) is not None:
        keeper = PortionKeeper(process, meta)
        tasks = (OwnTask("portions", keeper.step, release=keeper.end),)
    # Throttling before the sweep, which assigns the slots that throttling has freed.
    return WorkerPart(of_capsule=of_capsule, periodic=(*written, throttle.adjust, sweeper.sweep), tasks=tasks)
