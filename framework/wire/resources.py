"""What a job holds besides its place in Redis: a lock, and slots. Whoever moves it says what becomes of them."""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, cast

from framework.types import Jid, Payload
from framework.wire import keys
from framework.wire.json import dumps, dumps_ordered, loads
from framework.wire.status_key import StatusCommand

IDEMPOTENCY_KEY = "idempotency_key"
"""Field of a deduplicated job: the key of its lock (GitLab's name)."""

DUPLICATE_OF = "duplicate-of"
"""Field of a job that is a duplicate and runs all the same: the jid of the one that had the lock (GitLab's name)."""

RESCHEDULED_ONCE = "rescheduled_once"
"""Field of a job that is the one more run of another (GitLab's name): it has none itself."""

WAL_POSITIONS, DUPLICATE_WAL_POSITIONS = "wal_locations", "dedup_wal_locations"
"""Fields of a job: how far each database was at its push, and at the newest push that was dropped as its duplicate (GitLab's)."""

LOCK_TTL_S = 600
"""How long the lock of a job lasts whose class is not known here (GitLab's default)."""

HELD_LOCK_S = 30 * 86_400.0
"""And how long that of a job which a policy has parked: until it goes on, unless that is never."""

MAX_TTL_MS = (1 << 53) - 1
"""What Lua's numbers hold; Redis takes some more."""

_MAX_POSITIONS = 32
_MAX_NAME = 63  # of a database
_POSITION = re.compile(r"[0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8}").fullmatch


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock that a job took at its push. It is the job's as long as its jid stands in it."""

    key: str
    owner: str
    ttl_s: float
    worker: str = ""

    @property
    def ttl_ms(self) -> int:
        """Return how long it lasts from now on."""
        return _milliseconds(self.ttl_s)


@dataclass(frozen=True, slots=True)
class LockRequest:
    """What a job on its way to its queue wants: the lock, and to be dropped when another has it, if it ``drop_duplicate``."""

    lock: Lock
    drop_duplicate: bool
    counter: str
    """The series in which dropped duplicates are counted."""
    wal_positions: Mapping[str, str]
    due: float | None = None
    """Epoch seconds at which it is due, when it goes to the schedule set: the lock lasts until then and its ttl."""
    delay_s: float | None = None
    """In place of ``due``: after how many seconds, counted by Redis's clock from the step that writes it."""
    status_command: StatusCommand | None = None
    """The command that writes its state, if it is tracked: at a push when it is in, in a poll when it is dropped."""

    def encode(self) -> bytes:
        """Return what a script is told (``parts/lock_request.lua``)."""
        told: dict[str, Any] = {
            "key": self.lock.key,
            "jid": self.lock.owner,
            "class": self.lock.worker,
            "ttl_ms": self.lock.ttl_ms,
            "drops": self.drop_duplicate,
            "counter": self.counter,
            "positions": dict(self.wal_positions),
        }
        if self.due is not None:
            told["due"] = f"{self.due:.6f}"
        if self.delay_s is not None:
            told["delay"] = f"{self.delay_s:.6f}"
        if self.status_command is not None:
            told["mark"] = [str(word) for word in self.status_command]
        return dumps(told)


@dataclass(frozen=True, slots=True)
class Slot:
    """A place among the running jobs of one limit; ``member`` names job and process."""

    base: str
    member: str


@dataclass(frozen=True, slots=True)
class NextRun:
    """A job that is to run once more when a duplicate came while it ran: the payload of that run, and what it will hold."""

    data: bytes
    queue: str
    jid: Jid
    state: tuple[str, str, int] | None
    """Its status key, its state and how many seconds that is kept, if it is tracked."""
    on_written: Callable[[], None]
    """Called when it was written."""


@dataclass(slots=True)
class JobResources:
    """What one job holds."""

    lock: Lock | None = None
    slots: list[Slot] = field(default_factory=list[Slot])
    next_run: Callable[[], NextRun] | None = None
    """Makes what is written when the job is done and a duplicate came while it ran; ``None``: nothing ever is."""

    def on_end(self) -> str:
        """Return what a script is told when the job ends for good: nothing is held any more."""
        return self._encode(None)

    def on_delay(self, delay_s: float) -> str:
        """Return what it is told when the job will run again, ``delay_s`` from now at the earliest: it keeps its lock alone."""
        return self._encode(delay_s)

    def on_hold(self) -> str:
        """Return what it is told when the job waits for nobody knows how long: its lock waits with it, and then lasts as ever."""
        return self._encode(HELD_LOCK_S)

    def on_requeue(self) -> str:
        """Return what it is told when the job goes back to its queue: as ``waits``, and a lock that nobody has is taken again."""
        return self._encode(0.0, retake_lock=True)

    def _encode(self, delay_s: float | None, *, retake_lock: bool = False) -> str:
        told: dict[str, Any] = {"slots": [{"base": slot.base, "member": slot.member} for slot in self.slots]}
        if self.lock is not None:
            keep_ms = 0 if delay_s is None else _milliseconds(delay_s + self.lock.ttl_s)
            told["lock"] = {"key": self.lock.key, "owner": self.lock.owner, "keep_ms": keep_ms}
            told["lock"]["after_ms"] = self.lock.ttl_ms
            if retake_lock:
                told["lock"]["class"] = self.lock.worker
        return dumps(told).decode()


def lock_key(worker: str, arguments: bytes, since: int = 0) -> str:
    """Return the key of the lock of equal jobs: of one class, whatever its queue, with the same JSON as arguments.

    Objects are equal whatever the order of their names. Jobs that another method runs have another ``since``
    (``Declaration.signature_since``). With 0 the digest is that of GitLab's idempotency key: class name, colon, arguments.
    """
    if b"{" in arguments:
        arguments = dumps_ordered(loads(arguments, None))
    # No wire name has an "@": a key of another method is that of no other class.
    name = f"{worker}@{since}:" if since else f"{worker}:"
    return keys.lock(hashlib.sha256(name.encode() + arguments).hexdigest())


def lock_of(payload: Payload, ttl_s: float | None = None) -> Lock | None:
    """Return the lock that a job says it has; ``None`` when it has none, or says nonsense. ``ttl_s`` is what its class says."""
    key, jid = payload.get(IDEMPOTENCY_KEY), payload.get("jid")
    if not isinstance(key, str) or not key.startswith(keys.LOCKS) or not isinstance(jid, str) or not jid:
        return None
    return Lock(key, jid, LOCK_TTL_S if ttl_s is None else ttl_s, str(payload.get("class")))


def wal_positions_of(payload: Payload) -> dict[str, str]:
    """Return the positions that a job says its run has to see, its own and, over them, its duplicates'; nonsense is left out."""
    found: dict[str, str] = {}
    for name in (WAL_POSITIONS, DUPLICATE_WAL_POSITIONS):
        said: Any = payload.get(name)
        if isinstance(said, dict):
            found.update(
                {name: one for name, one in _first_positions(cast("dict[Any, Any]", said)) if _is_position(name, one)}
            )
    return found


def slot_id(payload: Payload, data: bytes) -> str:
    """Return what a job is called among the running ones: its jid, or what its bytes come to, where its writer gave none."""
    jid = payload.get("jid")
    return jid if isinstance(jid, str) and jid else hashlib.sha1(data, usedforsecurity=False).hexdigest()


def slot_member(identity: str, jid: object) -> str:
    """Return how a process's job is called among the running ones."""
    return f"{identity} {jid}"


def reservations(payload: Payload, data: bytes, limits: Iterable[str]) -> list[Slot]:
    """Return the slots of these limits that were reserved for a job when it was handed over, if any were."""
    member = slot_member("", slot_id(payload, data))
    return [Slot(keys.limit(name), member) for name in limits]


def _first_positions(said: dict[Any, Any]) -> list[tuple[Any, Any]]:
    return list(islice(said.items(), _MAX_POSITIONS))


def _is_position(name: Any, one: Any) -> bool:
    return isinstance(name, str) and len(name) <= _MAX_NAME and isinstance(one, str) and bool(_POSITION(one))


def _milliseconds(seconds: float) -> int:
    return max(1, int(min(seconds * 1000, MAX_TTL_MS)))
