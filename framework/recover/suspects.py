"""Find the jobs that may have killed a dead process: a death is counted for these jobs only.

The start of an ordinary job writes nothing to Redis, so the working list is the only evidence. Jobs start in its order, so only
its oldest entries can have run: as many as the concurrency of the process, behind those that had ended without a confirmed
acknowledgement. These become suspects, by a field of the payload. The start of a suspect is written to Redis first, and
suspects take turns, so that after the next death it is known which one ran. So the job that kills its processes counts every
death; a job that only ran at the same time counts one (decision 30).
"""

import contextlib
import hashlib
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import redis
from redis.exceptions import RedisError

from framework.declare import registry
from framework.store.script import NOTE_START
from framework.telemetry.counters import series_name
from framework.timings import STANDARD, Timings
from framework.types import Payload
from framework.wire import keys
from framework.wire.job import count_of
from framework.wire.keys import capsule_field, capsules_of

MAX_UNACKNOWLEDGED = 32
"""Most ended jobs without a confirmed acknowledgement: a kill repeats no more than these and the running jobs."""

SUSPECT_FIELD = "aw_suspect"
"""Field of a payload: the job may have run in a process that died."""

SLOTS_WITH_FULL_TURNS = 10
"""Concurrency up to which turns have full length. Above it turns are shorter in proportion: all suspects of a process start
within 5 s (50 s), and several deaths narrow the search for a job that kills.
"""

# A field with more digits is malformed; `int` raises for thousands of them.
_MAX_DIGITS = 9

CONCURRENCY_FIELD = "slots"
"""Field of the HASH ``keys.process``, which has also one field per started suspect."""

StartState: TypeAlias = Literal["started", "maybe_started", "not_started"]

# The script that moves a quarantined job counts it (``JobResources.counter``). A process would lose what it has counted since its
# last heartbeat when it dies, and a quarantined job is often the one that kills it.

QUARANTINED_JOBS = "sidekiq_jobs_quarantined_total"


def is_suspect(payload: Payload) -> bool:
    """Return whether the start of this job must be written to Redis first."""
    return payload.get(SUSPECT_FIELD) is True


# Decision 30: only jobs that were running count as interrupted; their serial trial is time-bounded.
class SuspectRunner:
    """Write the starts of a process's suspects to Redis, and let suspects take turns. Safe from any thread."""

    def __init__(self, client: "redis.Redis", identity: str, concurrency: int, timings: Timings = STANDARD) -> None:
        self._client = client
        self._timings = timings
        self._turn_scale = min(1.0, SLOTS_WITH_FULL_TURNS / concurrency)
        self._keys = [keys.lease(identity), keys.process(identity)]
        self._ended_digests: deque[str] = deque()
        self._turn_changed = threading.Condition()
        self._turn_digest = ""
        self._turn_ends_at = 0.0

    def begin(self, data: bytes, deaths: int) -> None:
        """Wait for the turn of the suspect with these bytes, and write its start (one round trip).

        If Redis does not take the write, the job still runs, and a death is not counted for it.
        """
        digest = _digest(data)
        self._take_turn(
            digest, self._turn_scale * (self._timings.suspect_turn_s if deaths < 2 else self._timings.suspect_trial_s)
        )
        ended: list[str] = []
        with contextlib.suppress(IndexError):
            while True:
                ended.append(self._ended_digests.popleft())
        try:
            NOTE_START(self._client, self._keys, [self._timings.lease_ms, digest, *ended])
        except (RedisError, OSError):
            # The start of the next suspect writes these ends.
            self._ended_digests.extend(ended)

    def end(self, data: bytes) -> None:
        """End the turn of the suspect with these bytes. The next ``begin`` writes the end to Redis."""
        digest = _digest(data)
        self._ended_digests.append(digest)
        with self._turn_changed:
            if self._turn_digest == digest:
                self._turn_ends_at = 0.0
                self._turn_changed.notify()

    def _take_turn(self, digest: str, max_s: float) -> None:
        with self._turn_changed:
            while (left_s := self._turn_ends_at - time.monotonic()) > 0:
                self._turn_changed.wait(left_s)
            self._turn_digest, self._turn_ends_at = digest, time.monotonic() + max_s


@dataclass(frozen=True, slots=True)
class RunEvidence:
    """The evidence about the jobs of a working list: its concurrency (``None``: unknown) and the suspects its process started."""

    concurrency: int | None
    started_suspects: frozenset[bytes]

    @classmethod
    def from_hash(cls, fields: Mapping[bytes, Any], capsule: str = "") -> "RunEvidence":
        """Read the HASH ``keys.process`` for the list of a capsule; the first has no name, and all slots that no other has."""
        if capsule:
            return cls(_count(fields.get(capsule_field(capsule).encode(), b"")), frozenset(fields))
        left = _count(fields.get(CONCURRENCY_FIELD.encode(), b""))
        for name in capsules_of(fields):
            slots = _count(fields[capsule_field(name).encode()])
            left = None if left is None or slots is None else max(0, left - slots)
        return cls(left, frozenset(fields))

    def classify(self, data: bytes, payload: Payload, rank: int) -> StartState:
        """Classify the job at ``rank`` of the working list, 0 being the oldest."""
        if is_suspect(payload):
            return "started" if _digest(data).encode() in self.started_suspects else "not_started"
        if self.concurrency is None:
            return "maybe_started"
        # The oldest entries ran; behind them may be ended jobs without a confirmed acknowledgement, so further ones may have run.
        if rank < self.concurrency:
            return "started"
        return "maybe_started" if rank < self.concurrency + MAX_UNACKNOWLEDGED else "not_started"


def _count(value: bytes) -> int | None:
    return int(value) if value.isdigit() and len(value) <= _MAX_DIGITS else None


def _digest(data: bytes) -> str:
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()


# There are two counts. ``interrupted_count`` (GitLab's field): the job still ran at the deadline of its process, which counts
# the stop itself (``process/push_back.py``). ``aw_death_count``: the process died while the job ran, which the reaper finds
# out. A retry resets neither, and each ends the job when it reaches the limit (decision 155).


MAX_INTERRUPTIONS = 3
"""Default limit of either count (GitLab's); the class or ``max_retries_after_interruption`` may set another."""


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


def quarantine_counter(worker: object, cause: str) -> str:
    """Return the series of a class and a cause; a class that this process does not know, as a foreign program may write, is ""."""
    name = str(worker)
    return series_name(QUARANTINED_JOBS, {"worker": "" if registry.find(name) is None else name, "cause": cause})
