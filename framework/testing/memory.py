"""Keep the jobs, locks, slots and states of one shard in memory, in the place of its Redis.

Only storage is here. Everything that decides is the code of the product, and calls these moves instead of the scripts.
"""

import threading
from bisect import insort
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import Any, Literal, TypeAlias

from framework.errors import PayloadError
from framework.testing.memory_batches import MemoryBatches
from framework.types import Jid, Payload
from framework.wire.job import BUFFERED_AT, decode, wire_timestamp
from framework.wire.json import loads
from framework.wire.payload_edit import set_fields
from framework.wire.resources import DUPLICATE_OF

Place: TypeAlias = Literal["queue", "schedule", "retry", "dead", "interrupted", "held"]
"""Where a job is."""

PLACES: tuple[Place, ...] = ("queue", "schedule", "retry", "dead", "interrupted", "held")

_numbers = count()
"""Numbers the jobs of all shards in the order in which they came to their places."""


@dataclass
class StoredJob:
    """One job at its place; ``due`` is its time in epoch seconds, or when it came there."""

    data: bytes
    queue: str
    due: float = 0.0
    number: int = field(default_factory=_numbers.__next__)

    @cached_property
    def payload(self) -> Payload:
        """The payload, not to be changed; of a job that cannot be read, one without fields."""
        try:
            return decode(self.data, None)
        except PayloadError:
            return {}


Wanted: TypeAlias = Callable[[StoredJob], bool]
"""Whether a job is one of those that the caller looks for."""


Begun: TypeAlias = Literal["run", "period"]
"""Whether the job has begun with its lock, and whether that lasts for a period then (``until_expired``)."""

LockTerms: TypeAlias = Mapping[str, Any]
"""What decides whether the job of a lock will run: ``bid`` and ``expiry``, where the job has them."""


@dataclass(slots=True)
class StoredLock:
    """A lock of a deduplicated class."""

    owner: Jid
    expires_at: float
    terms: LockTerms = field(default_factory=dict[str, Any])
    begun: Begun | None = None
    has_duplicates: bool = False
    waiting: Any = None
    """The note on a job that waits for further pushes (``memory_windows.py``)."""


class JobMemory:
    """Hold what one shard holds. Every method is one step; safe from any thread."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.step = threading.RLock()
        """Held during each step. A caller holds it around several."""
        self._clock = clock
        self.cancelled = set[Jid]()
        """The ids of cancelled jobs and batches that have not ended (``aw:cancelled``)."""
        self.batches = MemoryBatches(self, clock)
        self.results = dict[Jid, tuple[bytes, float]]()
        """The answers of called jobs that have ended (``aw:result:JID``), and when each expires."""
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        with self.step:
            self._places: dict[Place, list[StoredJob]] = {place: [] for place in PLACES}
            self._locks: dict[str, StoredLock] = {}
            self._states: dict[str, tuple[bytes, float]] = {}
            # Always the same object: workers look into it.
            self.cancelled.clear()
            self._iterations: dict[Jid, dict[bytes, bytes]] = {}
            self._slots: dict[str, set[str]] = {}
            self._replies: dict[str, Any] = {}
            self.results.clear()
            self.batches.clear()

    # --- jobs -------------------------------------------------------------------------------------------------------

    def jobs(self, place: Place) -> list[StoredJob]:
        """Return the jobs of a place, in their order: the sets of due jobs by time, all others by arrival."""
        with self.step:
            return list(self._places[place])

    def first(self, place: Place, wanted: Wanted) -> StoredJob | None:
        """Return the first job of a place that is wanted."""
        with self.step:
            return next(filter(wanted, self._places[place]), None)

    def add(self, place: Place, data: bytes, queue: str = "", due: float | None = None) -> StoredJob:
        """Put a job into a place, due now or at ``due``; return it."""
        with self.step:
            job = StoredJob(data, queue, self._clock() if due is None else due)
            if place in ("schedule", "retry"):
                insort(self._places[place], job, key=lambda one: (one.due, one.number))
            else:
                self._places[place].append(job)
            return job

    def remove(self, place: Place, job: StoredJob) -> bool:
        """Remove the job; return whether it was there."""
        with self.step:
            jobs = self._places[place]
            index = next((index for index, one in enumerate(jobs) if one is job), None)
            if index is None:
                return False
            del jobs[index]
            return True

    def hold(self, data: bytes, queue: str, *, at_limit: bool) -> None:
        """Hold a job; one that waits for a slot gets the field that says since when."""
        if at_limit and BUFFERED_AT not in decode(data, None):
            data = set_fields(data, {BUFFERED_AT: wire_timestamp(self._clock())})
        self.add("held", data, queue)

    def release_held(self) -> None:
        """Return the held jobs to their queues; a job whose reason lasts is held again when it is to run."""
        with self.step:
            self._places["queue"] += self._places["held"]
            self._places["held"] = []

    # --- states and replies -----------------------------------------------------------------------------------------

    def set_state(self, key: str, state: str, mode: str, seconds: float) -> None:
        """Keep the state of a tracked job as ``SET key state EX seconds`` does, or with ``EXAT``."""
        expires_at = float(seconds) + (0.0 if mode == "EXAT" else self._clock())
        with self.step:
            self._states[key] = (state.encode(), expires_at)

    def state(self, key: str) -> bytes | None:
        """Return a state that has not expired."""
        state, expires_at = self._states.get(key, (None, 0.0))
        return state if self._clock() < expires_at else None

    def result(self, jid: Jid) -> bytes | None:
        """Return the answer of a called job that has not expired."""
        answer, expires_at = self.results.get(jid, (None, 0.0))
        return answer if self._clock() < expires_at else None

    def once(self, token: str, act: Callable[[], Any]) -> Any:
        """Return the reply of ``act``; under one token it acts once."""
        with self.step:
            if not token:
                return act()
            if token not in self._replies:
                self._replies[token] = act()
            return self._replies[token]

    def was_done(self, token: str) -> bool:
        """Return whether ``once`` has acted under this token."""
        return token in self._replies

    # --- locks ------------------------------------------------------------------------------------------------------

    def lock(self, key: str) -> StoredLock | None:
        """Return a lock that has not expired."""
        found = self._locks.get(key)
        return found if found is not None and self._clock() < found.expires_at else None

    def holder(self, key: str, jid: Jid = "") -> Jid:
        """Return the job of which an equal job is a duplicate, empty for none (``holder_of`` of ``parts/lock.lua``)."""
        found = self.lock(key)
        if found is None or found.owner == jid:
            return ""
        if found.begun != "period" and not self.cancelled.isdisjoint((found.owner, found.terms.get("bid", ""))):
            return ""
        expiry = found.terms.get("expiry", 0)
        return "" if expiry and not found.begun and expiry <= self._clock() else found.owner

    def take_lock(self, key: str, owner: Jid, ttl_ms: float, terms: LockTerms) -> None:
        """Give the lock to a job; notes of a lock that it owns already stay."""
        found, expires_at = self.lock(key), self._clock() + ttl_ms / 1000
        with self.step:
            if found is not None and found.owner == owner:
                found.expires_at = expires_at
            else:
                self._locks[key] = StoredLock(owner, expires_at, terms)

    def take_window(self, key: str, owner: Jid, ttl_ms: float, waiting: Any, terms: LockTerms) -> None:
        """Give the lock to a job that waits for further pushes."""
        with self.step:
            self._locks[key] = StoredLock(owner, self._clock() + ttl_ms / 1000, terms, waiting=waiting)

    def note_duplicate(self, key: str) -> None:
        """Note in the lock that a duplicate of its job was dropped."""
        found = self.lock(key)
        if found is not None:
            found.has_duplicates = True

    def start_lock(self, key: str, owner: Jid, keep_ms: float, begun: Begun = "run") -> None:
        """Release the lock of a job that starts, or with ``keep_ms`` renew it."""
        with self.step:
            found = self.lock(key)
            if found is not None and found.owner != owner:
                return
            if keep_ms:
                # Without the note of earlier duplicates, which this run covers.
                terms: LockTerms = {} if found is None else found.terms
                self._locks[key] = StoredLock(owner, self._clock() + keep_ms / 1000, terms, begun)
            else:
                self._locks.pop(key, None)

    # --- iterations -------------------------------------------------------------------------------------------------

    def iteration(self, jid: Jid) -> dict[bytes, bytes]:
        """Return the state of an iterating job (``it-JID``); a change of it counts."""
        return self._iterations.setdefault(jid, {})

    # --- slots ------------------------------------------------------------------------------------------------------

    def slots(self, base: str) -> set[str]:
        """Return the members that hold a slot of a limit; a change of the set counts."""
        return self._slots.setdefault(base, set())

    def release(self, held: str | bytes) -> None:
        """Release what a job holds: ``held`` is the script argument that ``JobResources`` encodes."""
        if not held:
            return
        fields: Any = loads(held if isinstance(held, bytes) else held.encode(), None)
        lock = fields.get("lock")
        with self.step:
            if lock:
                self._release_lock(lock)
            for name in ("cancelled", "iteration"):
                self._iterations.pop(fields.get(name, ""), None)
            for slot in fields["slots"]:
                self.slots(slot[0]).discard(slot[1])
            if fields.get("status"):
                key, state, seconds = fields["status"]
                self.set_state(key, state, "EX", float(seconds))
            self.tell_waiters(fields)

    def tell_waiters(self, fields: dict[str, Any]) -> None:
        """Keep the answer of a job, and count its move in its batch."""
        if "answer" in fields:
            jid, how, ttl_s, _, answer = fields["answer"]
            if how != "revived":
                self.results[jid] = ((answer or f'{{"end":"{how}"}}').encode(), self._clock() + float(ttl_s))
        if "batch" in fields:
            bid, jid, how, *kept = fields["batch"]
            if how == "done" and kept and kept[0]:
                self.batches.keep_result(bid, jid, f"{kept[1]} {kept[0]}".encode())
            self.batches.count(bid, jid, how)

    def _release_lock(self, lock: dict[str, Any]) -> None:
        found = self.lock(lock["key"])
        if found is None or found.owner != lock["owner"]:
            return
        if lock["keep_ms"] > 0:
            found.expires_at = max(found.expires_at, self._clock() + lock["keep_ms"] / 1000)
            found.begun = None
            found.terms = {**found.terms, **{name: lock[name] for name in ("bid", "expiry") if name in lock}}
        else:
            del self._locks[lock["key"]]


def marked_duplicate(data: bytes, owner: Jid) -> bytes:
    """Return the payload of a duplicate that runs nevertheless, with the jid of the job that owns the lock."""
    return set_fields(data, {DUPLICATE_OF: owner})
