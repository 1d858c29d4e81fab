"""Push the jobs in flight of a stopping process back to their queues, or give up those that were interrupted too often.

An interruption is counted only for a job that still ran at the deadline, and not at the stop of a process that was started at a
terminal: a developer stops it at any time. A job that has not started, waits for its admission
or its turn, yielded in time, or has ended without being settled goes back unchanged.

At a crash: one script moves each job, so the job is either in the working list, from where another process recovers it, or
at its destination. The hook ``interruptions_exhausted`` runs at most once, after the script has moved the job, and so never
for a job that runs again. A process that is killed earlier, or loses the script's reply, does not call the hook; the job is
in the interrupted set.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import redis

from framework.errors import PayloadError
from framework.fetch.requeue import requeue
from framework.fetch.state import InFlight
from framework.fetch.unit_of_work import UnitOfWork
from framework.finish.endings import INTERRUPTED_TOO_OFTEN
from framework.process.events import ProcessEvents
from framework.recover.suspects import InterruptionLimit, quarantine_counter
from framework.store.script import INTERRUPT
from framework.supervised_threads import SupervisedThread
from framework.telemetry import logs
from framework.telemetry.job_events import JobInterrupted, job_events
from framework.text import format_count
from framework.types import Payload
from framework.wire import keys
from framework.wire.job import INTERRUPTED_COUNT, Job, count_of, decode, rewrite
from framework.wire.keys import INTERRUPTED_SET_LIMITS
from framework.wire.resources import JobResources
from framework.wire.status_key import tracked_job
from framework.wire.sub_queues import return_queue
from framework.wire.waiters import awaited_job_of

# Replies of interrupt.lua; above _GIVEN_UP: how many jobs were trimmed.
_REFUSED, _FENCED, _GIVEN_UP = -1, 0, 2
# A supervisor kills the process 2 s after the deadline.
_HOOKS_S = 1.0
_ADVICE_FROM_STOP = 2
"""From this interruption on, the job counts as longer than the deadline, and its log line gives advice."""


@dataclass(frozen=True, slots=True)
class InterruptedJob:
    """A job that was cut off, with its stop counted, and its running time."""

    job: Job
    queue: str
    ran_s: float
    destination: str
    """The key that has the job now: its queue or the interrupted set; empty if Redis refused both, until it is recovered."""
    trimmed: int = 0
    """How many older jobs were trimmed from the interrupted set."""

    @property
    def given_up(self) -> bool:
        """Whether the job was cut off too often: it does not run again by itself."""
        return self.destination == keys.INTERRUPTED


class PushBack:
    """The push-back of one process. ``jobs`` are its jobs in flight by the owner of the list. Use it from the main thread."""

    def __init__(
        self,
        client: "redis.Redis",
        jobs: Mapping[str, InFlight],
        events: ProcessEvents,
        limit: InterruptionLimit | None,
    ) -> None:
        """``limit`` is ``None`` for a process whose stops are not counted."""
        self._client = client
        self._jobs = jobs
        self._events = events
        self._limit = limit
        self._log = logs.logger()
        self._exhausted: list[InterruptedJob] = []
        self.returned = 0
        """The number of jobs that have been pushed back or given up."""

    def return_jobs(self, deadline_s: float | None) -> None:
        """Push back every job in flight and log the interrupted ones; raises redis errors.

        ``deadline_s`` is the time that the jobs had to end, ``None`` when the stop did not wait for them.
        """
        for owner, in_flight in self._jobs.items():
            self._return_jobs(owner, in_flight, deadline_s)

    def _return_jobs(self, owner: str, in_flight: InFlight, deadline_s: float | None) -> None:
        # Read first, so that a job that starts meanwhile is in one of the two lists.
        buffered = in_flight.buffered()
        # Read once, because a job may end meanwhile: each job is either returned unchanged or interrupted.
        running = {unit: unit.performing_since for unit in in_flight.running()}
        # Read after the running ones, from which they come: jobs that have ended, and whose events are not durable. They run again.
        left = list(in_flight.left.values())
        as_they_were = list(dict.fromkeys([*left, *(unit for unit, since in running.items() if not since)]))
        as_they_were += [unit for unit in buffered if unit not in running]
        self.returned += requeue(self._client, owner, [(unit, unit.data) for unit in as_they_were])
        # Last, so that the interrupted jobs are the next to run.
        cut_off = [(unit, since) for unit, since in running.items() if since]
        for one in interrupt(self._client, owner, cut_off, self._limit):
            self.returned += bool(one.destination)
            self._log_interrupted(one, deadline_s)
            if one.given_up:
                self._exhausted.append(one)

    def run_exhausted_hooks(self) -> None:
        """Run the hooks of the jobs that were given up in a daemon thread, and abandon a hook that hangs."""
        if not self._exhausted:
            return
        thread = SupervisedThread("interruptions-exhausted", self._run_hooks, elastic=True)
        try:
            thread.start()
        # The system cannot start another thread.
        except RuntimeError as error:
            self._log_hook_abandoned(error)
            return
        thread.join(_HOOKS_S)
        if thread.is_alive():
            self._log_hook_abandoned(TimeoutError(f"it took more than {_HOOKS_S:g} s"))

    def _log_interrupted(self, cut: InterruptedJob, deadline_s: float | None) -> None:
        job = cut.job
        facts = {"class": job.worker, "jid": job.jid, "queue": cut.queue, **job.interruptions}
        self._log.warning(
            f"{job.worker} JID-{job.jid}: interrupted: {_interruption_advice(cut, deadline_s)}",
            job_status="interrupted",
            duration_s=round(cut.ran_s, 6),
            deadline_s=deadline_s,
            destination=cut.destination,
            **facts,
        )
        job_events.emit(JobInterrupted(job.worker, given_up=cut.given_up))
        if cut.given_up:
            reason = "it was interrupted too often; it is in the interrupted set"
            self._events.moved_jobs.record(job, "quarantined", reason)
        else:
            self._events.moved_jobs.record(job, "interrupted", "its process stopped; the job is in its queue again")
        if cut.given_up:
            self._log.warning(
                "a job was interrupted too often by the stop of its process; it is in the interrupted set",
                job_status="quarantined",
                cause="stop",
                destination=cut.destination,
                **facts,
            )
        if cut.trimmed:
            self._events.trimmed(cut.trimmed, cut.destination)

    def _log_hook_abandoned(self, error: BaseException) -> None:
        self._log.error(
            "the process ended before the hook interruptions_exhausted returned; the job is in the interrupted set. The hook must "
            "return within 1 s",
            event_name="hook.abandoned",
            hook="interruptions_exhausted",
            error=error,
        )

    def _run_hooks(self) -> None:
        for one in self._exhausted:
            self._events.run_interruptions_exhausted(one.job)


def _interruption_advice(cut: InterruptedJob, deadline_s: float | None) -> str:
    """Return the advice for a job that is interrupted repeatedly, for example by each deploy."""
    stops = cut.job.interrupted_count
    if not cut.destination:
        return "Redis refused the push-back; another process will recover the job"
    ran = f"ran {cut.ran_s:.{0 if cut.ran_s >= 10 else 1}f} s"
    if deadline_s is None or stops < _ADVICE_FROM_STOP:
        return ran
    return f"{format_count(stops, 'stop')}, {ran}, deadline {deadline_s:g} s: iterate, split, or raise -t"


@dataclass(frozen=True, slots=True)
class _Interruption:
    unit: UnitOfWork
    ran_s: float
    payload: Payload
    data: bytes
    gives_up: bool


# Decision 155: forced stops and deaths are counted separately.
def interrupt(
    client: "redis.Redis", identity: str, running: Sequence[tuple[UnitOfWork, float]], limit: InterruptionLimit | None
) -> list[InterruptedJob]:
    """Return running jobs (oldest first, each with its start) to their queues; return those that this process owned.

    ``limit`` is ``None`` if their interruptions are not counted.

    Each job is a script of its own, all in one round trip. If the reply is lost, each job is in its new place or still in the
    working list; the given up jobs are then unknown, and no hook is called for them.

    Raises redis errors.
    """
    # The youngest first: each goes to the head of its queue in turn, so the oldest is the next to run.
    now = time.perf_counter()
    stops = [_count_interruption(unit, now - since, limit) for unit, since in reversed(running)]
    replies = INTERRUPT.each(client, [_interrupt_call(identity, stop) for stop in stops]) if stops else []
    found = [_interrupted_job(stop, reply) for stop, reply in zip(stops, replies, strict=True) if reply != _FENCED]
    return found[::-1]


def _count_interruption(unit: UnitOfWork, ran_s: float, limit: InterruptionLimit | None) -> _Interruption:
    # Without a memory limit: the job runs, so its payload was decoded before.
    payload = decode(unit.data, None)
    if limit is None:
        payload["args"] = []
        return _Interruption(unit, ran_s, payload, unit.data, gives_up=False)
    payload[INTERRUPTED_COUNT] = count_of(payload, INTERRUPTED_COUNT) + 1
    gives_up = limit.reached(payload, INTERRUPTED_COUNT)
    if gives_up:
        # Some producers omit it, and a retry from the set needs it.
        payload["queue"] = unit.queue
    try:
        data = rewrite(unit.data, payload)
    except PayloadError:
        # For example, a count in the payload is too large.
        data, gives_up = unit.data, False
    if not gives_up:
        # The arguments of all running jobs at once would take much memory, and only a hook reads them.
        payload["args"] = []
    return _Interruption(unit, ran_s, payload, data, gives_up)


def _interrupt_call(identity: str, interruption: _Interruption) -> tuple[list[str], list[Any]]:
    unit = interruption.unit
    queue = return_queue(unit.queue, unit.data)
    places = [keys.working(identity), keys.queue(queue), keys.QUEUES]
    arguments: list[Any] = [unit.data, interruption.data, queue, unit.resources_on_requeue()]
    if not interruption.gives_up:
        return places, arguments
    state = tracked_job(interruption.payload)
    # Read once: the thread of the job may release them meanwhile.
    held = unit.resources or JobResources()
    held = JobResources(held.lock, held.slots, awaited=awaited_job_of(interruption.payload))
    held.end_word = INTERRUPTED_TOO_OFTEN.told
    held.counter = quarantine_counter(interruption.payload.get("class"), "stop")
    status = ("", "", 0) if state is None else (keys.status(state.jid), "failed", state.ttl_s)
    return [*places, keys.INTERRUPTED], [*arguments, held.on_dead(), *INTERRUPTED_SET_LIMITS.arguments, *status]


def _interrupted_job(interruption: _Interruption, reply: object) -> InterruptedJob:
    """Return where a job went; ``reply`` is the script's reply or the error of Redis."""
    queue, code = interruption.unit.queue, reply if isinstance(reply, int) else _REFUSED
    destination = "" if code == _REFUSED else keys.INTERRUPTED if code >= _GIVEN_UP else keys.queue(queue)
    return InterruptedJob(Job(interruption.payload), queue, interruption.ran_s, destination, max(0, code - _GIVEN_UP))
