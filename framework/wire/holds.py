"""What a job holds besides its place in Redis: a lock, and slots. Whoever moves it says what becomes of them."""

from dataclasses import dataclass, field
from typing import Any

from framework.types import Payload
from framework.wire import keys
from framework.wire.json import dumps

IDEMPOTENCY_KEY = "idempotency_key"
"""Field of a deduplicated job: the key of its lock (GitLab's name)."""

LOCK_TTL_S = 600
"""How long the lock of a job lasts whose class is not known here (GitLab's default)."""


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock that a job took at its push. It is the job's as long as its jid stands in it."""

    key: str
    owner: str
    ttl_s: float


@dataclass(frozen=True, slots=True)
class Slot:
    """A place among the running jobs of one limit; ``member`` names job and process."""

    base: str
    member: str


@dataclass(slots=True)
class Holds:
    """What one job holds."""

    lock: Lock | None = None
    slots: list[Slot] = field(default_factory=list[Slot])

    def ended(self) -> str:
        """Return what a script is told when the job ends for good: nothing is held any more."""
        return self._told(None)

    def waits(self, delay_s: float) -> str:
        """Return what it is told when the job will run again, ``delay_s`` from now at the earliest: it keeps its lock alone."""
        return self._told(delay_s)

    def _told(self, delay_s: float | None) -> str:
        told: dict[str, Any] = {"slots": [{"base": slot.base, "member": slot.member} for slot in self.slots]}
        if self.lock is not None:
            keep_ms = 0 if delay_s is None else max(1, int((delay_s + self.lock.ttl_s) * 1000))
            told["lock"] = {"key": self.lock.key, "owner": self.lock.owner, "keep_ms": keep_ms}
        return dumps(told).decode()


def lock_of(payload: Payload, ttl_s: float = LOCK_TTL_S) -> Lock | None:
    """Return the lock that a job says it has; ``None`` when it has none, or says nonsense."""
    key, jid = payload.get(IDEMPOTENCY_KEY), payload.get("jid")
    if not isinstance(key, str) or not key.startswith(keys.LOCKS) or not isinstance(jid, str):
        return None
    return Lock(key, jid, ttl_s)


def slot_member(identity: str, jid: object) -> str:
    """Return how a process's job is called among the running ones."""
    return f"{identity} {jid}"
