"""Bound the interruptions of a job, and return the running jobs of a stopping process to their queues.

There are two counts. ``interrupted_count`` (GitLab's field): the job still ran at the deadline of its process, which counts
the stop itself. ``aw_death_count``: the process died while the job ran, which the reaper finds out. A retry resets neither,
and each ends the job when it reaches the limit.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import redis

from framework.declare import registry
from framework.errors import PayloadError
from framework.fetch.unit_of_work import UnitOfWork
from framework.store.script import INTERRUPT
from framework.types import Payload
from framework.wire import keys
from framework.wire.job import INTERRUPTED_COUNT, Job, count_of, decode
from framework.wire.payload_edit import rewrite
from framework.wire.set_limits import INTERRUPTED_SET_LIMITS
from framework.wire.status_key import tracked_job

MAX_INTERRUPTIONS = 3
"""Default limit of either count (GitLab's); the class or ``max_retries_after_interruption`` may set another."""

# Replies of interrupt.lua; above _GIVEN_UP: how many jobs were trimmed.
_REFUSED, _FENCED, _GIVEN_UP = -1, 0, 2


@dataclass(frozen=True, slots=True)
class InterruptionLimit:
    """The limit of either count: that of the class, else the setting. A negative limit means none."""

    setting: int = MAX_INTERRUPTIONS

    def for_payload(self, payload: Payload) -> int:
        """Return the limit of a job; without its class, the setting."""
        worker = registry.find(str(payload.get("class")))
        own: int | None = None if worker is None else worker.declaration().max_retries_after_interruption
        return self.setting if own is None else own

    def reached(self, payload: Payload, count: str) -> bool:
        """Return whether this field of the payload has reached the limit, so that the job ends."""
        return 0 <= self.for_payload(payload) <= count_of(payload, count)


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


@dataclass(frozen=True, slots=True)
class _Interruption:
    unit: UnitOfWork
    ran_s: float
    payload: Payload
    data: bytes
    gives_up: bool


# Decision 155: forced stops and deaths are counted separately.
def interrupt(
    client: "redis.Redis", identity: str, running: Sequence[tuple[UnitOfWork, float]], limit: InterruptionLimit
) -> list[InterruptedJob]:
    """Return running jobs (oldest first, each with its start) to their queues; return those that this process owned.

    Each job is a script of its own, all in one round trip. If the reply is lost, each job is in its new place or still in the
    working list; the given up jobs are then unknown, and no hook is called for them.

    Raises redis errors.
    """
    # The youngest first: each goes to the head of its queue in turn, so the oldest is the next to run.
    now = time.perf_counter()
    stops = [_count_interruption(unit, now - since, limit) for unit, since in reversed(running)]
    replies = INTERRUPT.each(client, [_script_call(identity, stop) for stop in stops]) if stops else []
    found = [_interrupted_job(stop, reply) for stop, reply in zip(stops, replies, strict=True) if reply != _FENCED]
    return found[::-1]


def _count_interruption(unit: UnitOfWork, ran_s: float, limit: InterruptionLimit) -> _Interruption:
    # Without a memory limit: the job runs, so its payload was decoded before.
    payload = decode(unit.data, None)
    payload[INTERRUPTED_COUNT] = count_of(payload, INTERRUPTED_COUNT) + 1
    gives_up = limit.reached(payload, INTERRUPTED_COUNT)
    if gives_up:
        # Some producers omit it, and a retry from the set needs it.
        payload["queue"] = unit.queue
    try:
        data = rewrite(unit.data, payload)
    except PayloadError:  # a count that is too large, for example
        data, gives_up = unit.data, False
    if not gives_up:
        payload[
            "args"
        ] = []  # the arguments of all running jobs at once would take much memory, and only a hook reads them
    return _Interruption(unit, ran_s, payload, data, gives_up)


def _script_call(identity: str, interruption: _Interruption) -> tuple[list[str], list[Any]]:
    unit = interruption.unit
    places = [keys.working(identity), keys.queue(unit.queue), keys.QUEUES]
    arguments: list[Any] = [unit.data, interruption.data, unit.queue, unit.resources_on_requeue()]
    if not interruption.gives_up:
        return places, arguments
    state = tracked_job(interruption.payload)
    ended = unit.resources.on_end() if unit.resources is not None else ""
    status = ("", "", 0) if state is None else (keys.status(state.jid), "failed", state.ttl_s)
    return [*places, keys.INTERRUPTED], [*arguments, ended, *INTERRUPTED_SET_LIMITS.arguments, *status]


def _interrupted_job(interruption: _Interruption, reply: object) -> InterruptedJob:
    """Return where a job went; ``reply`` is the script's reply or the error of Redis."""
    queue, code = interruption.unit.queue, reply if isinstance(reply, int) else _REFUSED
    destination = "" if code == _REFUSED else keys.INTERRUPTED if code >= _GIVEN_UP else keys.queue(queue)
    return InterruptedJob(Job(interruption.payload), queue, interruption.ran_s, destination, max(0, code - _GIVEN_UP))
