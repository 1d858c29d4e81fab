"""Hold the jobs of paused classes, unchanged, until the pause ends; then return them to their queues.

An ended pause returns the jobs also of classes that no process knows any more.
"""

import math
import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any, cast

import redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.errors import StoredBlocksError
from framework.execute.admission import AdmissionRequest, StagedPolicy
from framework.execute.next_jobs import Neighbours, NextJobs
from framework.features.flags.flag import pause_flag
from framework.features.flags.process_flags import WORKER_FLAGS, WorkerFlags
from framework.features.pause import strategies
from framework.features.pause.store import HOLD_PAUSED, RELEASE_PAUSED
from framework.features.pause.strategies import BUILT_IN, PauseStrategies
from framework.fetch.held_blocks import unpack_next
from framework.fetch.unit_of_work import UnitOfWork
from framework.finish.outcome import Held, Lost, NotAdmitted
from framework.process.worker_parts import ProcessContext, WorkerPart
from framework.store.absent_keys import AbsentKeys
from framework.store.script import is_lasting, is_wrong_type
from framework.store.steps import SHARE, BoundedSteps, share_of_process
from framework.telemetry import logs
from framework.telemetry.job_events import JobHeld, JobResumed, job_events
from framework.telemetry.logs import LogRateLimit
from framework.text import decode_escaped, decode_name, format_count
from framework.wire import keys
from framework.wire.json import dumps
from framework.wire.sub_queues import return_queue

MARKER_TTL_MS = 60_000
"""How long a class counts as paused for processes that do not know it, after a process that knows it has said so."""

_LOG_INTERVAL_S = 60.0
_MAX_ATTEMPTS = 3
_UP_TO_A_BLOCK = 2

MANUAL_PAUSE = "manual"

_ALONE = Neighbours((), ())

PAGE = 500
"""The most jobs of one step: a job takes 6 us of Redis."""

_SMALLEST_PAGE = 50

PAGE_BYTES = 4_000_000

# Time for one class; then the next class has its turn.
_MAX_PER_CLASS_S = 2.0


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause of a class. ``strategy`` is its cause: ``manual`` for an operator, with the ``reason`` given."""

    strategy: str
    reason: str = ""
    expected_flag: bytes = b""
    """The flag's value in Redis while this pause is in force; empty if the pause has another source."""

    marker: str = ""
    """What keeps the jobs held, in place of the strategy's name; with a = in front no other process releases them."""


class PauseState:
    """Combine flags and pause strategies. Safe to call from any thread."""

    def __init__(self, flags: WorkerFlags, strategies: PauseStrategies) -> None:
        self._flags = flags
        self.strategies = strategies

    def refresh(self) -> None:
        """Read the flags again, since Redis has another value than this process knows. May raise redis errors."""
        self._flags.stored.expect_change()
        self.strategies.poll()
        self._flags.refresh()

    def may_pause(self, declaration: Declaration) -> bool:
        """Return whether jobs of a class have to pass the pause policy."""
        strategy = declaration.facts["pause_control"]
        named = strategy is not None and strategy not in BUILT_IN
        return named or self._flags.all.find(pause_flag(declaration.wire_name)) is not None

    def pause_of(self, worker: str, strategy: str | None) -> Pause | None:
        """Return the pause of a class, ``None`` if its jobs may run."""
        name = pause_flag(worker)
        flag = self._flags.all.find(name)
        if flag is not None and flag.percentage > 0:
            stored = self._flags.stored.find(name) is not None
            return Pause(MANUAL_PAUSE, flag.reason, self._flags.stored.raw_value(name) if stored else b"")
        return Pause(strategy) if strategy is not None and self.strategies.is_paused(strategy) else None

    def stops(self, declaration: Declaration) -> bool:
        """Return whether the jobs of a class are paused now."""
        return self.pause_of(declaration.wire_name, declaration.facts["pause_control"]) is not None

    def flag_value(self, worker: str) -> bytes:
        """Return the operator's pause flag of a class as Redis had it at the last read, empty without one."""
        return self._flags.stored.raw_value(pause_flag(worker))


class _PauseChangedError(Exception):
    """The operators' flag in Redis has another value than this process knows."""


class PausePolicy:
    """Hold the jobs of paused classes."""

    def __init__(self, client: "redis.Redis", identity: str, state: PauseState) -> None:
        self._client = client
        self._working = keys.working(identity)
        self._state = state
        self._reply_lost: set[bytes] = set()
        self._log_limit = LogRateLimit(_LOG_INTERVAL_S)

    def applies_to(self, declaration: Declaration) -> bool:
        return self._state.may_pause(declaration)

    def admit(self, request: AdmissionRequest) -> NotAdmitted | None:
        """See ``AdmissionPolicy``. The script that holds a job checks the operator's flag again, so an ended pause holds no job."""
        declaration = request.declaration
        for _ in range(_MAX_ATTEMPTS):
            pause = self._state.pause_of(declaration.wire_name, declaration.facts["pause_control"])
            if pause is None:
                return None
            try:
                return self.hold(request, pause, request.next_jobs)
            except _PauseChangedError:
                self._state.refresh()
        return None

    def hold(self, request: AdmissionRequest, pause: Pause, next_jobs: NextJobs | None = None) -> NotAdmitted | None:
        """Hold the job for this pause; return ``None`` if the keys of the class have a wrong type, so that the job runs.

        The same call holds those of ``next_jobs`` that are of its class. Raises _PauseChangedError if the flag of the pause has
        another value now.
        """
        with nullcontext(_ALONE) if next_jobs is None else next_jobs.taken(request.declaration) as neighbours:
            units = [request.unit, *(unit for _, unit in neighbours.of_class)]
            try:
                held_here, others_held = self._hold(request, pause, neighbours)
            except (RedisConnectionError, RedisTimeoutError, OSError):
                self._reply_lost.update(unit.data for unit in units)
                raise
            except ResponseError as error:
                if not is_wrong_type(error):
                    raise
                self._log_unusable(request.declaration, error)
                return None
            if held_here < 0:
                raise _PauseChangedError
            for unit in units[1:] if others_held else ():
                outcome = self._held(unit, request.declaration, pause, held_here=True)
                if unit.prepared is not None:
                    unit.prepared.note_moved(outcome)
        return self._held(request.unit, request.declaration, pause, held_here=bool(held_here))

    def _held(self, unit: UnitOfWork, declaration: Declaration, pause: Pause, *, held_here: bool) -> Held | Lost:
        """Return that the job is held, or lost to another process. After a lost reply an earlier try has held the job."""
        held = held_here or unit.data in self._reply_lost
        self._reply_lost.discard(unit.data)
        fields = {"pause_control.strategy": pause.strategy, **({"pause_reason": pause.reason} if pause.reason else {})}
        if not held:
            return Lost(fields)
        job_events.emit(JobHeld(declaration.wire_name, by="paused"))
        return Held("paused", fields)

    def _hold(self, request: AdmissionRequest, pause: Pause, neighbours: Neighbours) -> tuple[int, int]:
        worker, others = request.declaration.wire_name, neighbours.units
        names = [self._working, keys.paused_jobs(worker), keys.PAUSED_CLASSES, keys.FLAGS, keys.pause_strategy(worker)]
        marker = "" if pause.expected_flag else pause.marker or pause.strategy
        ends = (others[0].data, others[-1].data) if others else ("", "")
        arguments: list[Any] = [worker, pause_flag(worker), pause.expected_flag, marker, MARKER_TTL_MS]
        arguments += (request.unit.data, len(others), *ends)
        for position, unit in ((0, request.unit), *neighbours.of_class):
            arguments += (position, *_entry(unit))
        return cast("tuple[int, int]", HOLD_PAUSED(self._client, names, arguments))

    def _log_unusable(self, declaration: Declaration, error: ResponseError) -> None:
        self._log_limit.error(
            declaration.wire_name,
            f"a key of the pause of {declaration.wire_name} has the wrong type, so its jobs run. Check the key with TYPE, then "
            "delete it",
            "pause.unusable",
            error=error,
            **{"class": declaration.wire_name},
        )


def _entry(unit: UnitOfWork) -> tuple[bytes, str]:
    """Return the entry of a job among the held ones, and what it holds (``hold.lua``)."""
    resources, ticket = unit.resources, list[Any]((return_queue(unit.queue, unit.data),))
    if resources is None:
        return b"%b\n%b" % (dumps(ticket), unit.data), ""
    lock = resources.lock
    if lock is not None:
        ticket += (1, [lock.key, lock.owner, lock.ttl_ms])
    return b"%b\n%b" % (dumps(ticket), unit.data), resources.on_hold()


@dataclass(frozen=True, slots=True)
class ResumeResult:
    """The result of resuming one class."""

    moved: int
    blocked: int
    """Jobs that could not return because the key of their queue is not a list."""
    paused: bool
    """True if the class is paused again."""


def resume(
    client: "redis.Redis",
    worker: str,
    seen_flag: bytes,
    *,
    class_known: bool,
    max_s: float = math.inf,
    rate: float | None = None,
    share: float = SHARE,
) -> ResumeResult:
    """Move the held jobs of a class back to their queues, in their order. Raises redis errors.

    They are placed where a push places them: behind the waiting jobs. ``seen_flag`` is the operators' flag as the
    caller read it last. ``class_known`` says whether the caller knows the class, and so its pause strategy. Several
    callers may resume the same class at the same time. ``rate`` and ``share`` are those of ``BoundedSteps``.
    """
    script_keys = [keys.paused_jobs(worker), keys.PAUSED_CLASSES, keys.QUEUES, keys.FLAGS, keys.pause_strategy(worker)]
    moved, blocked = 0, 0
    deadline = time.monotonic() + max_s
    # "heed": a caller that does not know the class leaves it alone while the marker of a strategy exists.
    arguments: list[Any] = [worker, pause_flag(worker), seen_flag, "" if class_known else "heed"]
    steps = BoundedSteps(_SMALLEST_PAGE, PAGE, rate=rate, share=share)
    while True:
        with steps.step() as jobs:
            reply: Any = RELEASE_PAUSED(client, script_keys, [*arguments, jobs, PAGE_BYTES, blocked])
        state, moved_now, blocked_now = cast("tuple[int, int, int]", reply)
        moved, blocked = moved + moved_now, blocked + blocked_now
        if time.monotonic() > deadline or state < 0:
            return ResumeResult(moved, blocked, state < 0)
        if state == _UP_TO_A_BLOCK:
            try:
                unpack_next(client, keys.paused_jobs(worker), skip=blocked)
            except StoredBlocksError:
                # The jobs stay held until the payload store can be read. A log line tells.
                return ResumeResult(moved, blocked, paused=False)
        elif not moved_now + blocked_now:
            return ResumeResult(moved, blocked, paused=False)


# Processes do not resume unknown classes while a pause marker exists: another application may have paused them.
class PauseResumer:
    """Resume the classes of a shard whose pause has ended."""

    def __init__(self, client: "redis.Redis", state: PauseState, absent: AbsentKeys | None = None) -> None:
        self._client = client
        self._state = state
        self._absent = absent or AbsentKeys()
        self._log_limit = LogRateLimit(_LOG_INTERVAL_S)

    def resume_ended(self) -> None:
        """Resume each class that is no longer paused. Raises redis errors. Sends nothing while no jobs are held."""
        if not self._absent.may_exist(keys.PAUSED_CLASSES):
            return
        try:
            held = cast("set[bytes]", self._client.smembers(keys.PAUSED_CLASSES))
        except ResponseError as error:
            if not is_lasting(error):
                raise
            self._log_limit.warning(
                "index",
                "the set of classes with held jobs cannot be read, so no class is resumed. Look at the error, then at the key",
                "pause.blocked",
                key=keys.PAUSED_CLASSES,
                error=error,
            )
            return
        self._absent.note(keys.PAUSED_CLASSES, found=bool(held))
        for raw in sorted(held):
            name = decode_name(raw)
            if name is not None:
                self._resume_class(name)
                continue
            self._log_limit.warning(
                f"name {raw!r}",
                "a member of the set of classes with held jobs is no name of a class. Remove it with SREM",
                "pause.blocked",
                key=keys.PAUSED_CLASSES,
                worker=decode_escaped(raw),
            )

    def _resume_class(self, worker: str) -> None:
        found = registry.find(worker)
        declaration: Declaration | None = found.declaration() if found is not None else None
        strategy = declaration.facts["pause_control"] if declaration is not None else None
        pause = self._state.pause_of(worker, strategy)
        if pause is not None:
            if not pause.expected_flag:
                # Refused at maxmemory: processes that do not know the class may resume it.
                with suppress(ResponseError):
                    self._client.set(keys.pause_strategy(worker), pause.strategy, px=MARKER_TTL_MS)
            return
        if not self._state.strategies.is_pause_over(strategy):
            return
        class_known = declaration is not None
        result = resume(
            self._client,
            worker,
            self._state.flag_value(worker),
            class_known=class_known,
            max_s=_MAX_PER_CLASS_S,
            share=share_of_process(self._client),
        )
        if result.moved:
            log_resumed(worker, result.moved, class_known=class_known)
        if result.blocked:
            self._log_limit.warning(
                f"blocked {worker}",
                "held jobs cannot return to their queues, because the keys of these queues are not lists. The jobs stay held: check "
                "the keys with TYPE, then delete them",
                "pause.blocked",
                worker=worker,
                jobs=result.blocked,
            )


def log_resumed(worker: str, jobs: int, *, class_known: bool = True) -> None:
    """Report that jobs of a class were resumed: an event, and a line with GitLab's fields."""
    job_events.emit(JobResumed(worker, jobs, by="paused"))
    logs.logger(**{"class": worker}).info(
        f"{format_count(jobs, 'held job')} of {worker} {'is back in its queue' if jobs == 1 else 'are back in their queues'}",
        event_name="pause.resumed",
        job_status="resumed",
        resumed_job_count=jobs,
        unknown=not class_known,
    )


def worker_part(process: ProcessContext) -> WorkerPart:
    flags, client = process.service(WORKER_FLAGS), process.shard.client
    polled = PauseStrategies(_named_strategies(), strategies.registered, process.timings)
    pauses = PauseState(flags, polled)

    def of_capsule(owner: str) -> Sequence[StagedPolicy]:
        return (StagedPolicy("hold", PausePolicy(client, owner, pauses)),)

    process.absent.watch(keys.PAUSED_CLASSES)
    resumer = PauseResumer(process.upkeep, pauses, process.absent)
    return WorkerPart(of_capsule=of_capsule, refresh=polled.poll, periodic=(resumer.resume_ended,), stops=pauses.stops)


def _named_strategies() -> list[str]:
    named = (worker.declaration().facts["pause_control"] for worker in registry.workers())
    return [name for name in named if name is not None]
