"""Jobs whose run was cut off: how often that may happen to one job, and how a stopping process gives back what still runs.

Two counts, as two things happen. A job that still ran when its process had to stop was stopped, which the process tells:
``interrupted_count``, GitLab's field. A job that ran when its process died may have killed it, which the reaper finds out:
``aw_death_count``. Neither is taken back by a retry, and either ends the job when it reaches the limit.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import redis

from framework.declare import registry
from framework.errors import PayloadError
from framework.fetch.unit_of_work import UnitOfWork
from framework.store.script import INTERRUPT
from framework.types import Payload
from framework.wire import keys
from framework.wire.job import INTERRUPTED_COUNT, Job, count_of, decode
from framework.wire.payload_edit import rewrite
from framework.wire.status_key import tracked_job

MAX_INTERRUPTIONS = 3
"""Of either kind, unless the class or the setting ``max_retries_after_interruption`` says otherwise (GitLab's default)."""

_DAY_S = 86_400
_REFUSED, _FENCED, _GIVEN_UP = -1, 0, 2  # what interrupt.lua says


class SetLimits(NamedTuple):
    """How much a sorted set of jobs keeps."""

    max_jobs: int
    max_age_s: float


INTERRUPTED_SET_LIMITS = SetLimits(10_000, 90 * _DAY_S)
"""GitLab's limits."""


@dataclass(frozen=True, slots=True)
class InterruptionLimit:
    """At which interruption of a kind a job ends: the number of its class, else the setting. Below 0 there is no limit."""

    setting: int = MAX_INTERRUPTIONS

    def for_payload(self, payload: Payload) -> int:
        """Return the limit of a job; where its class is not known, the setting."""
        worker = registry.find(str(payload.get("class")))
        own: int | None = None if worker is None else worker.declaration().max_retries_after_interruption
        return self.setting if own is None else own

    def reached(self, payload: Payload, count: str) -> bool:
        """Whether the job, just interrupted once more, ends by this field of its payload."""
        return 0 <= self.for_payload(payload) <= count_of(payload, count)


@dataclass(frozen=True, slots=True)
class InterruptedJob:
    """A job that was cut off, its stop counted, and for how long it had run."""

    job: Job
    queue: str
    ran_s: float
    destination: str
    """Where it is now: its queue, or the interrupted set; empty when Redis refused both, and it waits to be recovered."""
    trimmed: int = 0
    """How many older entries had to leave the interrupted set for it."""

    @property
    def given_up(self) -> bool:
        """Whether it was cut off too often and will not run again by itself."""
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
    """Take these jobs, oldest first, each with the time since which it runs, out of our hands; return those that were ours.

    Raises redis errors.

    Each is a step of its own, all in one round trip. When its reply is lost, each job is in its place, or in the working list
    still; which were given up is not known here then, and no hook hears of it.
    """
    # The youngest first: each goes to the right end in turn, so the oldest ends up next to run.
    now = time.perf_counter()
    stops = [_count_interruption(unit, now - since, limit) for unit, since in reversed(running)]
    replies = INTERRUPT.each(client, [_script_call(identity, stop) for stop in stops]) if stops else []
    found = [_interrupted_job(stop, reply) for stop, reply in zip(stops, replies, strict=True) if reply != _FENCED]
    return found[::-1]


def _count_interruption(unit: UnitOfWork, ran_s: float, limit: InterruptionLimit) -> _Interruption:
    payload = decode(unit.data, None)  # it runs, so it could be read, whatever it took
    payload[INTERRUPTED_COUNT] = count_of(payload, INTERRUPTED_COUNT) + 1
    gives_up = limit.reached(payload, INTERRUPTED_COUNT)
    if gives_up:
        payload["queue"] = unit.queue  # other producers may leave it out, and the way back from the set needs it
    try:
        data = rewrite(unit.data, payload)
    except PayloadError:  # too large a count, say
        data, gives_up = unit.data, False
    if not gives_up:
        payload["args"] = []  # those of all slots at once would take much memory, and only a hook asks for them
    return _Interruption(unit, ran_s, payload, data, gives_up)


def _script_call(identity: str, interruption: _Interruption) -> tuple[list[str], list[Any]]:
    unit = interruption.unit
    places = [keys.working(identity), keys.queue(unit.queue), keys.QUEUES]
    arguments: list[Any] = [unit.data, interruption.data, unit.queue, unit.resources_on_requeue()]
    if not interruption.gives_up:
        return places, arguments
    state = tracked_job(interruption.payload)
    ended = unit.resources.on_end() if unit.resources is not None else ""
    told = ("", "", 0) if state is None else (keys.status(state.jid), "failed", state.ttl_s)
    return [*places, keys.INTERRUPTED], [*arguments, ended, *INTERRUPTED_SET_LIMITS, *told]


def _interrupted_job(interruption: _Interruption, reply: object) -> InterruptedJob:
    """Return what became of one; ``reply`` is the script's, or what Redis refused it with."""
    queue, said = interruption.unit.queue, reply if isinstance(reply, int) else _REFUSED
    destination = "" if said == _REFUSED else keys.INTERRUPTED if said >= _GIVEN_UP else keys.queue(queue)
    return InterruptedJob(Job(interruption.payload), queue, interruption.ran_s, destination, max(0, said - _GIVEN_UP))
