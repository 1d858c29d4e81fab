"""Which of the jobs that a dead process held may have killed it: only those count a death.

Nothing is written to Redis when an ordinary job starts, so the working list alone must tell. Jobs start in its order, so
only its oldest entries can have run: as many as the process had slots, beside those that had ended and whose
acknowledgement was under way. Who is among them is a suspect from then on, by a field of its payload: each of its starts is
announced, and suspects take turns, so that at the next death it is known which one was running. So an innocent neighbour is
counted once, and a job that kills is counted each time.
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

from framework.fetch.call import LEASE_MS
from framework.fetch.in_flight import MAX_UNACKNOWLEDGED
from framework.store.script import NOTE_START
from framework.types import Payload
from framework.wire import keys

SUSPECT_FIELD = "aw_suspect"
"""Field of a payload: it was in the hands of a process that died, where it may have run."""

TURN_S = 0.5
TRIAL_S = 5.0
"""How long a suspect keeps the others of its process from starting, at most; the second for one that has seen two deaths."""

SLOTS_WITH_FULL_TURNS = 10
"""Slots up to which turns are so long. With more they are shorter in proportion: all that a process can hold have begun within
5 s (50 s), and a job that kills is found in several steps, among ever fewer.
"""

_MAX_DIGITS = 9

CONCURRENCY_FIELD = "slots"
"""Field of what a process says about its runs, beside a field per announced job."""

StartState: TypeAlias = Literal["started", "maybe_started", "not_started"]


def is_suspect(payload: Payload) -> bool:
    """Whether the start of this job must be announced."""
    return payload.get(SUSPECT_FIELD) is True


# Decision 30: only jobs that were running count as interrupted; their serial trial is time-bounded.
class SuspectRunner:
    """Says of a process with so many slots which suspect jobs run in it, and lets them take turns. Safe from any thread."""

    def __init__(self, client: "redis.Redis", identity: str, concurrency: int) -> None:
        self._client = client
        self._turn_scale = min(1.0, SLOTS_WITH_FULL_TURNS / concurrency)
        self._keys = [keys.lease(identity), keys.process(identity)]
        self._ended_digests: deque[str] = deque()
        self._turn_changed = threading.Condition()
        self._turn_digest = ""
        self._turn_ends_at = 0.0

    def begin(self, data: bytes, deaths: int) -> None:
        """The suspect job with these bytes, which has seen so many deaths, is about to run: waits for its turn, and one round trip.

        If Redis cannot be told, the job runs unannounced, and a death is not counted for it.
        """
        digest = _digest(data)
        self._take_turn(digest, self._turn_scale * (TURN_S if deaths < 2 else TRIAL_S))
        ended: list[str] = []
        with contextlib.suppress(IndexError):
            while True:
                ended.append(self._ended_digests.popleft())
        try:
            NOTE_START(self._client, self._keys, [LEASE_MS, digest, *ended])
        except (RedisError, OSError):
            self._ended_digests.extend(ended)

    def end(self, data: bytes) -> None:
        """The suspect job with these bytes has ended. Redis is told with the next ``begin``."""
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
    """What a process said of itself: its slots (``None``: unknown) and the digests of the suspects it started."""

    concurrency: int | None
    started_suspects: frozenset[bytes]

    @classmethod
    def from_hash(cls, fields: Mapping[bytes, Any]) -> "RunEvidence":
        """Read the HASH ``keys.runs``."""
        slots = fields.get(CONCURRENCY_FIELD.encode(), b"")
        known = slots.isdigit() and len(slots) <= _MAX_DIGITS
        return cls(int(slots) if known else None, frozenset(fields))

    def classify(self, data: bytes, payload: Payload, rank: int) -> StartState:
        """Judge the job at ``rank`` of the working list, 0 being the oldest."""
        if is_suspect(payload):
            return "started" if _digest(data).encode() in self.started_suspects else "not_started"
        if self.concurrency is None:
            return "maybe_started"
        if rank < self.concurrency:
            return "started"
        return "maybe_started" if rank < self.concurrency + MAX_UNACKNOWLEDGED else "not_started"


def _digest(data: bytes) -> str:
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()
