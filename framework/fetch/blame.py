"""Which of the jobs that a dead process held may have killed it: only those count as interrupted.

Nothing is written to Redis when an ordinary job starts, so the working list alone must tell. Jobs start in its order, so
only its oldest entries can have run: as many as the process had slots, beside those that had ended and whose
acknowledgement was under way. Who is among them for the first time is marked by ``interrupted_count`` in the payload, and
from then on each of its starts is announced: at the next death it is known whether it was running. So an innocent neighbour is
counted once at most, and a job that kills is counted each time.
"""

import contextlib
import hashlib
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import redis
from redis.exceptions import RedisError

from framework.fetch.call import LEASE_MS
from framework.fetch.custody import UNACKNOWLEDGED
from framework.store.script import ANNOUNCE
from framework.types import Payload
from framework.wire import keys
from framework.wire.job import whole_number

FIELD = "interrupted_count"
SLOTS = "slots"
"""Field of what a process says about its runs, beside a field per announced job."""

Guilt: TypeAlias = Literal["ran", "perhaps", "waited"]


def suspect(payload: Payload) -> bool:
    """Whether the start of this job must be announced: it was in the hands of a process that died, or stopped, before."""
    return whole_number(payload.get(FIELD)) is not None


class Announcer:
    """Says of one process which suspect jobs run in it. Safe from any thread."""

    def __init__(self, client: "redis.Redis", identity: str) -> None:
        self._client = client
        self._keys = [keys.lease(identity), keys.runs(identity)]
        self._ended: deque[str] = deque()

    def begin(self, data: bytes) -> None:
        """The suspect job with these bytes is about to run: one round trip, which also takes back what has ended since.

        If Redis cannot be told, the job runs unannounced, and a death is not counted for it.
        """
        ended: list[str] = []
        with contextlib.suppress(IndexError):
            while True:
                ended.append(self._ended.popleft())
        try:
            ANNOUNCE(self._client, self._keys, [LEASE_MS, _digest(data), *ended])
        except (RedisError, OSError):
            self._ended.extend(ended)

    def end(self, data: bytes) -> None:
        """The suspect job with these bytes has ended. Told with the next ``begin``."""
        self._ended.append(_digest(data))


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a process said of itself: its slots (``None``: unknown) and the digests of the suspects it started."""

    slots: int | None
    announced: frozenset[bytes]

    @classmethod
    def of(cls, said: Mapping[bytes, Any]) -> "Evidence":
        """Read the HASH ``keys.runs``."""
        slots = said.get(SLOTS.encode(), b"")
        return cls(int(slots) if slots.isdigit() else None, frozenset(said))

    def guilt(self, data: bytes, payload: Payload, rank: int) -> Guilt:
        """Judge the job at ``rank`` of the working list, 0 being the oldest."""
        if suspect(payload):
            return "ran" if _digest(data).encode() in self.announced else "waited"
        if self.slots is None:
            return "perhaps"
        if rank < self.slots:
            return "ran"
        return "perhaps" if rank < self.slots + UNACKNOWLEDGED else "waited"


def _digest(data: bytes) -> str:
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()
