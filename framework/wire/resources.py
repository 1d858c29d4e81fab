"""Describe the resources of a job in Redis (its lock, slots and batch) for the scripts that move it."""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import islice
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from framework.types import Jid, Payload
from framework.wire import keys
from framework.wire.job import BID, BUFFERED_AT, EXPIRES_IN, bid_of, expiry_of
from framework.wire.json import dumps, dumps_known, dumps_ordered, loads
from framework.wire.status_key import StatusCommand
from framework.wire.waiters import AwaitedJob, JobEnd, awaited_job_of, held_fields

IDEMPOTENCY_KEY = "idempotency_key"
"""Field of a deduplicated job: the key of its lock (GitLab's name)."""

DUPLICATE_OF = "duplicate-of"
"""Field of a duplicate that runs nevertheless: the jid of the job that owned the lock (GitLab's name)."""

RESCHEDULED_ONCE = "rescheduled_once"
"""Field of a job that is the one rerun of another (GitLab's name). A rerun has no rerun itself."""

WAL_POSITIONS, DUPLICATE_WAL_POSITIONS = "wal_locations", "dedup_wal_locations"
"""Fields of a job (GitLab's): each database's WAL position at its push, and at the newest push dropped as its duplicate."""

LOCK_TTL_S = 600
"""The lifetime of a lock whose job's class is not known here (GitLab's default)."""

HELD_LOCK_S = 30 * 86_400.0
"""The lifetime of the lock of a held job, in case the job is never released."""

MAX_TTL_MS = (1 << 53) - 1
"""The largest exact integer of Lua's numbers. Redis accepts somewhat more."""

_MAX_POSITIONS = 32
# The longest name of a database, in characters.
_MAX_NAME = 63
_POSITION = re.compile(r"[0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8}").fullmatch


class Lock(NamedTuple):
    """Hold a lock that a job acquired at its push. The job owns the lock while its jid is stored in it."""

    key: str
    owner: str
    ttl_s: float
    worker: str = ""
    expiry: float = 0.0
    """When the job is too old to begin, in epoch seconds; 0 for never. Such a job, as a cancelled one, holds up no push."""
    bid: str = ""
    """The batch of the job, whose cancellation is one of the job; empty for none."""

    @property
    def ttl_ms(self) -> int:
        return milliseconds(self.ttl_s)


class LockTerms(NamedTuple):
    """Hold what the lock requests of one push share: the class, the lifetime, and the handling of duplicates."""

    worker: str
    ttl_s: float
    drop_duplicate: bool
    counter: str

    def encode(self, details: "LockDetails") -> tuple[str | int | bytes, ...]:
        """Return the arguments of ``push_unique.lua`` that all of its jobs share, with the details of all jobs."""
        drops = "1" if self.drop_duplicate else ""
        return (self.worker, milliseconds(self.ttl_s), drops, self.counter, details.encode())


class LockDetails(NamedTuple):
    """Hold what differs between the lock requests of one push, besides key and jid."""

    wal_positions: Mapping[str, str]
    due: float | None = None
    """The due time in epoch seconds of a job for the schedule set: the lock lasts until then plus its lifetime."""
    delay_s: float | None = None
    """Instead of ``due``: the delay in seconds by Redis's clock, counted from the script that writes the job."""
    expires_in: float = 0.0
    """For how many seconds from its push, or from its due time, the job may wait for its start; 0 for any time."""
    status: tuple[Any, ...] = ()
    """For a tracked job: the arguments of the SET that writes its status, without the key. Executed if the job is written."""

    def encode(self) -> bytes:
        """Return the argument of the script, empty if there are no details."""
        fields: dict[str, Any] = {}
        if self.wal_positions:
            fields["positions"] = dict(self.wal_positions)
        if self.due is not None:
            fields["due"] = f"{self.due:.6f}"
        if self.delay_s is not None:
            fields["delay"] = f"{self.delay_s:.6f}"
        if self.expires_in:
            fields["expires_in"] = self.expires_in
        if self.status:
            fields["status"] = [str(word) for word in self.status]
        return dumps(fields) if fields else b""


@dataclass(frozen=True, slots=True)
class LockRequest:
    """Request the lock for a due job on its way to its queue; with ``drop_duplicate``, drop the job if another owns it."""

    lock: Lock
    drop_duplicate: bool
    counter: str
    """The counter series of dropped duplicates."""
    wal_positions: Mapping[str, str]
    status_command: StatusCommand | None = None
    """The status command of a tracked job, executed if the job is dropped."""
    awaited: AwaitedJob | None = None
    """Set if something waits for the end of the job: it does so no more if the job is dropped."""

    def with_status(self, command: StatusCommand) -> "LockRequest":
        """Return the request of a tracked job: ``command`` is executed if the job is dropped."""
        return replace(self, status_command=command)

    def encode(self) -> bytes:
        """Return the argument of the scripts (``parts/lock_request.lua``)."""
        fields: dict[str, Any] = {
            "key": self.lock.key,
            "jid": self.lock.owner,
            "class": self.lock.worker,
            "ttl_ms": self.lock.ttl_ms,
            "drops": self.drop_duplicate,
            "counter": self.counter,
            "positions": dict(self.wal_positions),
            **_terms(self.lock),
        }
        if self.status_command is not None:
            fields["mark"] = [str(word) for word in self.status_command]
        if self.awaited is not None:
            fields |= self.awaited.told("skipped")
        return dumps(fields)


FormerOwner: TypeAlias = tuple[str, ...]
"""The owner of a lock on the shard from which such jobs move, as ``find_owners.lua`` found it: its jid, and, while it is on its way,
the guard of its page; empty for none."""


def former_owner(reply: Any) -> FormerOwner:
    """Return what ``find_owners.lua`` has answered about one job."""
    words = cast("list[bytes]", reply) if isinstance(reply, list) else [reply] if reply else []
    return tuple(word.decode(errors="replace") for word in words)


MOVED_JOBS = ">"
"""In place of the owner of a lock: such jobs have moved to another shard, and the job is not written."""

FENCE_MS = 60_000
"""For how long a push to the former shard is told so: longer than a process routes by moves that it has read before."""


class UniqueJobs(NamedTuple):
    """Hold the jobs of one step of ``push_unique.lua``, all of one class."""

    terms: tuple[str | int | bytes, ...]
    payloads: Sequence[bytes]
    lock_keys: Sequence[str]
    jids: Sequence[Jid]
    details: Sequence[bytes] = ()
    """Per job the details that replace those of the terms; empty if all jobs have the same."""
    former: "Sequence[FormerOwner] | None" = None
    """Per job the owner of its lock on another shard; ``None`` for a push that knows of no shard from which such jobs move."""

    @classmethod
    def of(
        cls,
        encode: Callable[["LockDetails"], tuple[str | int | bytes, ...]],
        payloads: Sequence[bytes],
        lock_keys: Sequence[str],
        jids: Sequence[Jid],
        details: Sequence["LockDetails"],
    ) -> "UniqueJobs":
        """Return jobs with the details of each, or with one item of ``details`` for all; ``encode`` is that of their terms."""
        shared = encode(details[0])
        if len(details) == 1 or all(one == details[0] for one in details):
            return cls(shared, payloads, lock_keys, jids)
        return cls(shared, payloads, lock_keys, jids, [one.encode() or b"{}" for one in details])

    def at_commit(self, payloads: Sequence[bytes], wal_positions: Mapping[str, str]) -> "UniqueJobs":
        """Return the same jobs with other payloads and WAL positions."""
        *terms, shared = self.terms
        changed = (*terms, _with_positions(shared, wal_positions))
        details = [_with_positions(one, wal_positions) for one in self.details]
        return self._replace(terms=changed, payloads=payloads, details=details)

    def arguments(self, start: int, count: int) -> tuple[Any, ...]:
        """Return the arguments of the script for ``count`` of the jobs from ``start`` on: terms, names, payloads, details."""
        if start or len(self.jids) > count:
            part = slice(start, start + count)
            details = self.details[part]
            former = None if self.former is None else self.former[part]
            jobs = UniqueJobs(self.terms, self.payloads[part], self.lock_keys[part], self.jids[part], details, former)
            return jobs.arguments(0, count)
        names: list[Any] = [*self.lock_keys, *self.jids]
        if self.former is not None:
            names.append({str(at): found for at, found in enumerate(self.former, 1) if found})
        return (*self.terms, dumps_known(names), *self.payloads, *self.details)


def _with_positions(details: str | int | bytes, wal_positions: Mapping[str, str]) -> bytes:
    fields: dict[str, Any] = loads(details) if isinstance(details, bytes) and details else {}
    fields.pop("positions", None)
    if wal_positions:
        fields["positions"] = dict(wal_positions)
    return dumps(fields) if fields else b""


class Slot(NamedTuple):
    """Identify a slot among the running jobs of one limit; ``member`` names the job and the process."""

    base: str
    member: str


# A call of the class runs a function in Python and takes twice as long. Each job with a limit or a lock makes one.
make_slot: Callable[[tuple[str, str]], Slot] = partial(tuple.__new__, Slot)
_make_lock: Callable[[tuple[str, str, float, str, float, str]], Lock] = partial(tuple.__new__, Lock)


@dataclass(frozen=True, slots=True)
class NextRun:
    """Hold the payload of a job's rerun, written at its end if a duplicate was pushed while it ran."""

    data: bytes
    queue: str
    jid: Jid
    state: tuple[str, str, int] | None
    """The status key, the state and its lifetime in seconds, if the job is tracked."""
    on_written: Callable[[], None]
    """Called after the rerun was written."""
    expiry: float = 0.0
    """When the rerun is too old to begin, in epoch seconds; 0 for never."""

    def arguments(self, lock: Lock) -> list[Any]:
        """Return the arguments of ``finish.lua`` for a rerun that takes over the lock."""
        state = self.state or ("", "", 0)
        return [lock.owner, self.data, self.jid, lock.worker, self.queue, lock.ttl_ms, *state, f"{self.expiry:.6f}"]


@dataclass(slots=True)
class JobResources:
    """Hold the resources of one job."""

    lock: Lock | None = None
    slots: list[Slot] = field(default_factory=list[Slot])
    next_run: Callable[[], NextRun] | None = None
    """Builds the rerun to write if a duplicate was pushed while the job ran; ``None`` if the class has no reruns."""
    awaited: AwaitedJob | None = None
    """Set if something waits for the end of the job; ``None`` for most jobs."""
    end_word: JobEnd = "done"
    """What is told of the job's next move to what waits for it; empty for nothing."""
    cancelled: Jid = ""
    """The id of a job that ends because it was cancelled: its mark goes with it."""
    iteration: Jid = ""
    """The id of an iterating job: its cursor is removed when the job will not run again."""
    counter: str = ""
    """The series in which the step that ends the job counts it; empty for none."""
    on_removed: Callable[[], None] | None = None  # called after the confirmed removal: deletes the offloaded arguments

    def note_answer(self, slot: Slot, jid: str, *, taken: bool) -> None:
        """Note the answer to a job's request for ``slot``: without the slot, the job holds none of this limit.

        The script has turned a reservation for the job into the slot, or has released it.
        """
        gone = {slot_member("", jid)} | (set[str]() if taken else {slot.member})
        self.slots = [one for one in self.slots if one.base != slot.base or one.member not in gone]

    @property
    def is_simple(self) -> bool:
        """Whether the end of the job releases nothing but slots and a lock."""
        return self.awaited is None and not (self.cancelled or self.iteration or self.counter)

    def end_fields(self, status: Sequence[str] | None = None) -> dict[str, Any]:
        """Return the resources of a job that will not run again (``parts/release.lua``), and its ``status``: key, state, seconds."""
        # Lists, because JSON of a named tuple takes four times as long.
        fields: dict[str, Any] = {"slots": [[slot.base, slot.member] for slot in self.slots]}
        lock, awaited = self.lock, self.awaited
        if lock is not None:
            fields["lock"] = {"key": lock.key, "owner": lock.owner, "keep_ms": 0}
        if status is not None:
            fields["status"] = status
        if self.cancelled:
            fields["cancelled"] = self.cancelled
        if self.iteration:
            fields["iteration"] = self.iteration
        if self.counter:
            fields["counter"] = self.counter
        if awaited is not None and self.end_word:
            fields |= awaited.told(self.end_word)
        return fields

    def on_end(self, status: StatusCommand | None = None) -> str:
        """Return the script argument for a job that will not run again: all resources are released, and ``status`` is written."""
        return self.end_argument(None if status is None else _status_fields(status))

    def end_argument(self, status: Sequence[str] | None) -> str:
        """Return the same as ``on_end`` for a status of the form of ``end_fields``."""
        return dumps_known(self.end_fields(status)).decode()

    def on_dead(self, status: StatusCommand | None = None) -> str:
        """Return the script argument for a job that moves to the dead or interrupted set: a retry from there needs its cursor."""
        return replace(self, iteration="").on_end(status) if self.iteration else self.on_end(status)

    def on_delay(self, delay_s: float, status: StatusCommand | None = None) -> str:
        """Return the script argument for a job that runs again in ``delay_s`` or later: it keeps its lock; a failure is counted."""
        return self._encode(delay_s, status=status, counted=self.end_word == "failed")

    def on_hold(self) -> str:
        """Return the script argument for a job that is held for an unknown time: it keeps its lock for ``HELD_LOCK_S``."""
        return self._encode(HELD_LOCK_S)

    def on_requeue(
        self, status: StatusCommand | None = None, *, stays_without_lock: bool = False, counted: bool = False
    ) -> str:
        """Return the script argument for a job that returns to its queue: as ``on_delay``, and a free lock is taken again.

        ``stays_without_lock``: the job stays if another job has its lock (``requeue.lua``). ``counted``: its batch counts the move.
        """
        return self._encode(
            0.0, retake_lock=True, status=status, stays_without_lock=stays_without_lock, counted=counted
        )

    def _encode(
        self,
        delay_s: float | None,
        *,
        retake_lock: bool = False,
        status: StatusCommand | None = None,
        stays_without_lock: bool = False,
        counted: bool = False,
    ) -> str:
        fields: dict[str, Any] = {"slots": self.slots}
        if self.lock is not None:
            keep_ms = 0 if delay_s is None else milliseconds(delay_s + self.lock.ttl_s)
            fields["lock"] = {"key": self.lock.key, "owner": self.lock.owner, "keep_ms": keep_ms}
            fields["lock"]["after_ms"] = self.lock.ttl_ms
            if retake_lock:
                fields["lock"] |= {"class": self.lock.worker, "expiry": self.lock.expiry, "bid": self.lock.bid}
            if stays_without_lock:
                fields["lock"]["stays"] = True
        if status is not None:
            fields["status"] = _status_fields(status)
        if counted and self.awaited is not None:
            fields |= self.awaited.told(self.end_word)
        return dumps(fields).decode()


def _terms(lock: Lock) -> dict[str, float | str]:
    """Return what decides whether the job of a lock will run, where there is such (``parts/lock.lua``)."""
    terms: dict[str, float | str] = {"expiry": lock.expiry} if lock.expiry else {}
    return {**terms, "bid": lock.bid} if lock.bid else terms


def _status_fields(status: StatusCommand) -> list[str]:
    _, key, state, _, ttl_s = status
    return [str(key), str(state), str(ttl_s)]


@cache
def resource_fields() -> frozenset[str]:
    """Return the payload fields of jobs that hold anything: a fetched job without one has no resources yet."""
    return held_fields() | {IDEMPOTENCY_KEY, BUFFERED_AT}


def resources_of(payload: Payload, data: bytes, queue: str, lock_ttl_s: float | None, name: str) -> JobResources | None:
    """Return the resources of a fetched job of the class ``name``: its lock, the slots reserved for it while it waited, its batch."""
    lock = lock_of(payload, lock_ttl_s)
    slots = reservations(payload, data, (name, f"queue/{queue}")) if BUFFERED_AT in payload else []
    awaited = awaited_job_of(payload)
    return JobResources(lock, slots, awaited=awaited) if lock is not None or slots or awaited is not None else None


def lock_key(worker: str, arguments: bytes, since: int = 0) -> str:
    """Return the lock key of equal jobs: of one class, in any queue, with the same JSON as arguments.

    Objects are equal whatever the order of their names. Jobs that another method runs have another ``since``
    (``Declaration.signature_since``). With 0 the digest is that of GitLab's idempotency key: class name, colon, arguments.
    """
    return lock_keys(lock_prefix(worker, since), (arguments,))[0]


def lock_keys(prefix: bytes, arguments: Iterable[bytes]) -> list[str]:
    """Return ``lock_key`` of each of the arguments; ``prefix`` is ``lock_prefix`` of their class."""
    # No function call per job: a bulk push makes thousands of keys.
    locks, sha256 = keys.LOCKS, hashlib.sha256
    return [
        locks + sha256(prefix + (dumps_ordered(loads(one, None)) if b"{" in one else one)).hexdigest()
        for one in arguments
    ]


def lock_prefix(worker: str, since: int) -> bytes:
    """Return the text before the arguments; the digest of both is a lock key."""
    # No wire name contains "@": the key of another method cannot equal the key of another class.
    return (f"{worker}@{since}:" if since else f"{worker}:").encode()


def lock_of(payload: Payload, ttl_s: float | None = None) -> Lock | None:
    """Return the lock named by a payload, or ``None`` if the field is missing or invalid. ``ttl_s`` is the class's lifetime."""
    key, jid = payload.get(IDEMPOTENCY_KEY), payload.get("jid")
    if not isinstance(key, str) or not key.startswith(keys.LOCKS) or not isinstance(jid, str) or not jid:
        return None
    expiry = (expiry_of(payload) or 0.0) if EXPIRES_IN in payload else 0.0
    bid = bid_of(payload) if BID in payload else ""
    return _make_lock((key, jid, LOCK_TTL_S if ttl_s is None else ttl_s, str(payload.get("class")), expiry, bid))


def wal_positions_of(payload: Mapping[str, Any]) -> dict[str, str]:
    """Return the WAL positions that a run must see: the job's own, overridden by those of its duplicates.

    Invalid values are ignored.
    """
    found: dict[str, str] = {}
    for name in (WAL_POSITIONS, DUPLICATE_WAL_POSITIONS):
        positions: Any = payload.get(name)
        if isinstance(positions, dict):
            found.update(
                {
                    name: one
                    for name, one in islice(cast("dict[Any, Any]", positions).items(), _MAX_POSITIONS)
                    if _is_position(name, one)
                }
            )
    return found


def slot_id(payload: Payload, data: bytes) -> str:
    """Return the id of a job among the running ones: its jid, or the digest of its bytes if it has none."""
    jid = payload.get("jid")
    return jid if isinstance(jid, str) and jid else hashlib.sha1(data, usedforsecurity=False).hexdigest()


def slot_member(identity: str, jid: object) -> str:
    """Return the name of a process's job among the running ones."""
    return f"{identity} {jid}"


def reservations(payload: Payload, data: bytes, limits: Iterable[str]) -> list[Slot]:
    """Return the slots of these limits that may have been reserved for a job at its enqueue."""
    member = slot_member("", slot_id(payload, data))
    return [Slot(keys.limit(name), member) for name in limits]


def _is_position(name: Any, one: Any) -> bool:
    return isinstance(name, str) and len(name) <= _MAX_NAME and isinstance(one, str) and bool(_POSITION(one))


def milliseconds(seconds: float) -> int:
    """Return whole milliseconds, at least one, that Redis and Lua's numbers can hold."""
    return max(1, int(min(seconds * 1000, MAX_TTL_MS)))


# Jobs that wait in the schedule set for further pushes: ``push_window.lua`` writes them.

WindowMode: TypeAlias = Literal["debounce", "accumulate"]

WAITING_PAYLOAD = "member"
"""Field of a lock: the payload of the job that waits in the schedule set. A push finds the job there by it."""

_ARGS = b'"args":'


class WindowTerms(NamedTuple):
    """Hold what the window jobs of one class share."""

    worker: str
    ttl_s: float
    mode: WindowMode
    max_window_s: float
    """A debounced job is due at the latest this long after the first push of its window; 0: no maximum."""
    max_items: int
    """The most items that an accumulating job may have."""
    max_bytes: int
    """The most bytes that the payload of an accumulating job may have."""
    counter: str

    def encode(self, details: LockDetails) -> tuple[str | int | bytes, ...]:
        """Return the arguments of ``push_window.lua`` that all of its jobs share, with the details of all jobs."""
        bounds = (f"{self.max_window_s:.6f}", self.max_items, self.max_bytes)
        return (self.worker, milliseconds(self.ttl_s), self.mode, *bounds, self.counter, details.encode())


class WindowJobs(UniqueJobs):
    """Hold the jobs of one step of ``push_window.lua``, all of one class."""

    __slots__ = ()

    @property
    def mode(self) -> WindowMode:
        """The effect of a push on the job that waits."""
        return "accumulate" if self.terms[2] == "accumulate" else "debounce"

    def arguments(self, start: int, count: int) -> tuple[Any, ...]:
        """Return the arguments of the script for ``count`` of the jobs from ``start`` on: terms, names, payloads, details."""
        part = slice(start, start + count)
        payloads, jids = self.payloads[part], self.jids[part]
        places = [items_place(one) for one in payloads] if self.mode == "accumulate" else []
        names = dumps_known([*self.lock_keys[part], *jids, *places])
        return (*self.terms, names, *payloads, *self.details[part])

    def carriers(self, found: Sequence[Jid]) -> list[Jid]:
        """Return for each job the id of the job that carries its arguments, from the answers of the script."""
        if self.mode == "debounce":
            return list(self.jids)
        return [other or jid for other, jid in zip(found, self.jids, strict=True)]

    def ended(self, found: Sequence[Jid]) -> list[tuple[Jid, Jid, bytes]]:
        """Return (id of a job that does not run, id of the job that runs in its place, payload of this push), one per answer."""
        pairs = zip(found, self.jids, self.payloads, strict=True)
        if self.mode == "debounce":
            return [(other, jid, data) for other, jid, data in pairs if other]
        return [(jid, other, data) for other, jid, data in pairs if other]


def items_place(payload: bytes) -> str:
    """Return where the items of the last argument, a list, stand in a payload: ``start,end,count``; empty if it has no such list.

    Compressed arguments have none.
    """
    args: Any = loads(payload, None).get("args")
    arguments = cast("list[Any]", args) if isinstance(args, list) else []
    last: Any = arguments[-1] if arguments else None
    if not isinstance(last, list):
        return ""
    items = cast("list[Any]", last)
    count, length = len(items), len(dumps(items))
    text = dumps(arguments)
    at = payload.find(_ARGS + text)
    # Without the text in this place the payload reads otherwise: another field may hold the same bytes.
    end = at + len(_ARGS) + len(text)
    if at < 0 or loads(payload[: at + len(_ARGS)] + b"null" + payload[end:], None).get("args", 0) is not None:
        return ""
    # Behind the items stand the brackets of the list and of the arguments.
    items_end = end - 2
    return f"{items_end - (length - 2)},{items_end},{count}"
