"""Taking back what dead processes held, and what a live process lost sight of.

A process is dead when its lease is gone and beats have come through for long enough: asked inside the scripts. A supervisor that
has seen its child die removes the lease at once; the processes that know the classes do the taking back.
"""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, cast

import redis
from redis.exceptions import NoPermissionError, RedisError, ResponseError

from framework.declare import registry
from framework.errors import PayloadError
from framework.fetch.blocking import BLOCK_TIMEOUT_S, REPLY_MARGIN_S
from framework.fetch.call import LEASE_MS
from framework.fetch.failure_detector import FailureDetector
from framework.fetch.in_flight import InFlight
from framework.fetch.interruptions import INTERRUPTED_SET_LIMITS, InterruptionLimit, SetLimits
from framework.fetch.reply_tracker import ReplySnapshot
from framework.fetch.requeue import requeue
from framework.fetch.suspects import SUSPECT_FIELD, RunEvidence, StartState
from framework.fetch.unit_of_work import UnitOfWork
from framework.store.script import INSPECT_DEAD, KILL, MARK_DEAD, RECLAIM, REGISTER_ORPHAN, RESTORE, UNREGISTER
from framework.types import Payload
from framework.wire import keys
from framework.wire.footprint import DECODED_LIMIT, LARGE_PAYLOAD, may_exceed
from framework.wire.job import DEATH_COUNT, Job, count_of, decode
from framework.wire.json import dumps
from framework.wire.malformed import dead_set_entry
from framework.wire.resources import JobResources, Slot, lock_of, slot_id, slot_member
from framework.wire.status_key import TrackedJob, tracked_job

UNREGISTER_AFTER_S = LEASE_MS // 1000 + 2 * int(BLOCK_TIMEOUT_S + REPLY_MARGIN_S)
"""Seconds since the last beat after which no parked call of a dead process can be alive."""

_PAGE = 50
_MAX_RESTORED_JOBS, _MAX_RESTORED_BYTES = 500, 1_000_000  # of one step: half a millisecond of Redis's time
# Decision 73: every sweep looks for working lists without an owner.
_SCAN_COUNT = 500
"""So many keys of the shard does one sweep look at in search of lists without an owner: a tenth of a millisecond of Redis's time."""

_INSPECTION_VALID_S = 10.0
"""How long what an examination found may be acted upon; a command that a frozen Redis hears later does nothing."""

Cause: TypeAlias = Literal["death", "lost reply"]


@dataclass(frozen=True, slots=True)
class RecoveredJob:
    """One job taken back: from whom and why, where it went, and how many older entries had to leave that set for it."""

    owner: str
    job: Job
    destination: str
    cause: Cause = "death"
    trimmed: int = 0
    migration_jobs: int = 0
    """So many jobs of a migration that died were put back as they were; ``job`` is none of them."""

    @property
    def quarantined(self) -> bool:
        """Whether too many processes died that ran it: it will not run again by itself."""
        return self.destination == keys.INTERRUPTED


DEFAULT_LIMIT = InterruptionLimit()
"""Where no setting says otherwise."""

OnRecovered: TypeAlias = Callable[[RecoveredJob], None]


class Reaper:
    """Looks after the working lists of one shard. Any number may run at once, in any process.

    ``grace`` is fed by the lease of the same process; ``dead`` are the limits of the dead set, ``limit`` that of deaths.
    """

    def __init__(
        self,
        client: "redis.Redis",
        on_recovered: OnRecovered,
        detector: FailureDetector,
        dead_set_limits: SetLimits,
        decoded_limit: int = DECODED_LIMIT,
        interruption_limit: InterruptionLimit = DEFAULT_LIMIT,
    ) -> None:
        self._client = client
        self._on_recovered = on_recovered
        self._detector = detector
        self._dead_set_limits = dead_set_limits
        self._decoded_limit = decoded_limit
        self._interruption_limit = interruption_limit
        self._cursor = 0

    def sweep(self, own: str = "") -> int:
        """Take back the jobs of every dead process, except ``own``; return their number.

        Costs two commands while nobody is late. Raises redis errors: a refusal that concerns one process's keys after the
        others have been looked at.
        """
        self._register_orphans()
        late: Any = self._client.zrangebyscore(keys.REGISTRY, "-inf", f"{self._detector.dead_before():.6f}")  # pyright: ignore[reportUnknownMemberType]
        refusal: ResponseError | None = None
        moved = 0
        for member in cast("list[bytes]", late):
            identity = member.decode(errors="backslashreplace")
            if identity == own:
                continue
            try:
                moved += self.reclaim(identity)
            except ResponseError as error:
                refusal = error
        if refusal is not None:
            raise refusal
        return moved

    def _register_orphans(self) -> None:
        """Look through some of the shard's keys, on from where the last sweep stopped, for working lists that the registry forgot.

        One that was struck off, stopped in the very moment before it parked a call, may send it when it wakes, take a job by it
        and be killed before it beats. Where SCAN is not allowed, nobody looks.
        """
        try:
            scanned: Any = self._client.scan(self._cursor, keys.WORKING_LISTS, _SCAN_COUNT, "list")
        except NoPermissionError:
            return
        self._cursor, found = cast("tuple[int, list[bytes]]", scanned)
        owners = [keys.owner(name.decode(errors="backslashreplace")) for name in found]
        if owners:
            REGISTER_ORPHAN(self._client, [keys.REGISTRY, *map(keys.lease, owners)], owners)

    def reclaim(self, identity: str) -> int:
        """Take back everything in one working list unless its owner may live; forget the owner when that is safe."""
        moved = 0
        while (found := self._inspect(identity)) is not None and found.page:
            results = self._reclaim_page(identity, found)
            moved += sum(result > 0 for result in results)
            if -1 in results or not any(results):
                break  # it lives, or others are at the same work
        queue = keys.migrated_queue(identity)
        if queue is not None and moved:
            self._on_recovered(RecoveredJob(identity, Job(), keys.queue(queue), migration_jobs=moved))
        if found is not None:
            unregister(self._client, identity, UNREGISTER_AFTER_S)
        return moved

    def _inspect(self, identity: str) -> "_DeadProcess | None":
        found: Any = INSPECT_DEAD(
            self._client,
            [keys.lease(identity), keys.working(identity), keys.REGISTRY, keys.process(identity), keys.STEADY_SINCE],
            [identity, _PAGE, f"{self._detector.lease_s:g}", f"{self._detector.required_steady_s:g}"],
        )
        if not found:
            return None
        now, length, said, *page = cast("list[Any]", found)
        evidence = RunEvidence.from_hash(dict(zip(said[::2], said[1::2], strict=True)))
        return _DeadProcess(f"{float(now) + _INSPECTION_VALID_S:.6f}", int(length), evidence, page)

    def _reclaim_page(self, identity: str, dead: "_DeadProcess") -> list[int]:
        if (queue := keys.migrated_queue(identity)) is not None:
            return self._restore_page(identity, queue, dead)
        # The head is the youngest; each goes to the right end in turn, so the oldest ends up next to run.
        ranked = zip(dead.page, range(dead.length - 1, -1, -1), strict=False)
        fates = [
            _disposition(data, dead.evidence, rank, self._decoded_limit, self._interruption_limit)
            for data, rank in ranked
        ]
        results = RECLAIM.each(self._client, [self._reclaim_call(identity, dead, fate) for fate in fates])
        for index, fate in enumerate(fates):
            if fate.tracked is not None and isinstance(results[index], NoPermissionError):
                # Before anything ran. Perhaps of its state alone, which may be missed; the job may not.
                stateless = self._reclaim_call(identity, dead, replace(fate, tracked=None))
                (results[index],) = RECLAIM.each(self._client, [stateless])
        for fate, result in zip(fates, results, strict=True):
            if isinstance(result, int) and result > 0:
                self._on_recovered(RecoveredJob(identity, Job(fate.payload), fate.destination, trimmed=result - 1))
        for result in results:
            if isinstance(result, RedisError):
                raise result  # what was done has been told
        return results

    def _restore_page(self, identity: str, queue: str, dead: "_DeadProcess") -> list[int]:
        """Put back what a migration had not come to: unread, as none of it can have run, and in its order."""
        places = [keys.lease(identity), keys.working(identity), keys.queue(queue), keys.QUEUES]
        moved: int = RESTORE(self._client, places, [dead.valid_until, _MAX_RESTORED_JOBS, _MAX_RESTORED_BYTES, queue])
        return [1] * moved if moved > 0 else [moved]

    def _reclaim_call(
        self, identity: str, dead: "_DeadProcess", disposition: "_Disposition"
    ) -> tuple[list[str], list[Any]]:
        limits = INTERRUPTED_SET_LIMITS if disposition.destination == keys.INTERRUPTED else self._dead_set_limits
        places = [keys.lease(identity), keys.working(identity), disposition.destination, keys.QUEUES]
        arguments = [disposition.fetched, disposition.data, dead.valid_until, disposition.queue, *limits]
        if disposition.tracked is not None:
            places.append(keys.status(disposition.tracked.jid))
            arguments += ["failed", disposition.tracked.ttl_s]
        else:
            arguments += ["", 0]
        holds = _resources_of(identity, disposition)
        return places, [*arguments, holds.on_requeue() if disposition.queue else holds.on_end()]


@dataclass(frozen=True, slots=True)
class _DeadProcess:
    """What a dead process left: the ``length`` of its list, its youngest jobs, and what it said about its runs."""

    valid_until: str
    length: int
    evidence: RunEvidence
    page: list[bytes]


@dataclass(frozen=True, slots=True)
class _Disposition:
    fetched: bytes
    destination: str
    queue: str
    data: bytes
    payload: Payload
    tracked: TrackedJob | None = None
    """Whose state says that it has failed: the job is given up, and nobody would write it later."""


def _disposition(
    data: bytes,
    evidence: RunEvidence,
    rank: int,
    decoded_limit: int = DECODED_LIMIT,
    limit: InterruptionLimit = DEFAULT_LIMIT,
) -> _Disposition:
    """Decide before anything is removed: back to its queue, quarantined after too many deaths, or dead if unreadable."""
    try:
        payload, queue = _read(data, decoded_limit)
        guilt = evidence.classify(data, payload, rank)
        changed = data if guilt == "not_started" else dumps(_mark_suspect(payload, guilt))
    except PayloadError as error:
        return _Disposition(data, keys.DEAD, "", dead_set_entry(data, error, time.time()), {})
    if guilt == "started" and limit.reached(payload, DEATH_COUNT):
        return _Disposition(data, keys.INTERRUPTED, "", changed, payload, tracked_job(payload))
    if may_exceed(len(data), LARGE_PAYLOAD):
        payload["args"] = []  # a page of large ones would take much memory, and nothing asks for the arguments
    return _Disposition(data, keys.queue(queue), queue, changed, payload)


def _resources_of(identity: str, disposition: "_Disposition") -> JobResources:
    """Return what a dead process's job may hold: what is not held is not missed."""
    payload = disposition.payload
    name = str(payload.get("class"))
    worker = registry.find(name)
    declaration = None if worker is None else worker.declaration()
    names = {name, name if declaration is None else declaration.wire_name, f"queue/{payload.get('queue')}"}
    member = slot_member(identity, slot_id(payload, disposition.fetched))
    slots = [Slot(keys.limit(name), member) for name in sorted(names)]
    return JobResources(lock_of(payload, None if declaration is None else declaration.lock_ttl_s), slots)


def _read(data: bytes, decoded_limit: int) -> tuple[Payload, str]:
    """Return the payload and its queue, the only thing that tells where it came from."""
    payload = decode(data, decoded_limit)
    queue = payload.get("queue")
    if not isinstance(queue, str) or not queue:
        raise PayloadError("it names no queue")
    return payload, queue


def _mark_suspect(payload: Payload, start_state: StartState) -> Payload:
    payload[SUSPECT_FIELD] = True
    if start_state == "started":
        payload[DEATH_COUNT] = count_of(payload, DEATH_COUNT) + 1
    return payload


class Reconciler:
    """Finds jobs that are in our own working list but not in our memory: a fetch whose reply was lost.

    Given back is only what one look did not know, and a later one still does not once every reply has been read that was under
    way during the first: two looks may come close together, and a reply may lie unread for as long as we are stopped. After
    trouble with Redis, when no connection is open on which one could come, one look is enough (``reconcile_idle``). What cannot
    be read, or names no queue, goes to the dead set (``wire/malformed.py``), limited by ``dead``.
    """

    def __init__(
        self,
        client: "redis.Redis",
        identity: str,
        in_flight: InFlight,
        on_recovered: OnRecovered,
        dead_set_limits: SetLimits,
        decoded_limit: int = DECODED_LIMIT,
    ) -> None:
        self._client = client
        self._identity = identity
        self._in_flight = in_flight
        self._on_recovered = on_recovered
        self._dead_set_limits = dead_set_limits
        self._decoded_limit = decoded_limit
        self._candidates: set[bytes] = set()
        self._snapshot = ReplySnapshot(0, 0)

    def reconcile(self) -> int:
        """Compare once; return how many jobs were given back. Raises redis errors."""
        custody = self._in_flight
        read = custody.replies.all_read_since(
            self._snapshot
        )  # first of all: then a suspect whose reply has been read is known
        returned = set[bytes]()
        self._candidates -= custody.swap_returned(returned)  # those were read, and the same bytes may have come again
        unknown = self._not_in_memory()
        if self._candidates and not read:
            self._candidates.intersection_update(unknown)
            return 0
        lost = [data for data in unknown if data in self._candidates and data not in returned]
        self._candidates = set(unknown)
        if unknown:
            self._snapshot = custody.replies.snapshot()
        else:
            custody.swap_returned(None)
        return self._requeue(lost)

    def reconcile_idle(self) -> int:
        """Compare while no fetch is under way and no call is parked; return how many jobs were given back. Raises redis errors.

        Safe beside a ``look`` of another thread: whoever finds a job in the list moves it.
        """
        return self._requeue(self._not_in_memory())

    def _not_in_memory(self) -> list[bytes]:
        """Return what is in the list and not in memory, oldest first."""
        known = self._in_flight.payloads()  # before the list is read: what is fetched in between is at worst a suspect
        listed = cast("list[bytes]", self._client.lrange(keys.working(self._identity), 0, -1))
        return [data for data in reversed(listed) if data not in known]

    def _requeue(self, lost: list[bytes]) -> int:
        self._in_flight.note_returned(lost)
        return sum(self._requeue_one(data) for data in reversed(lost))  # the youngest first, which keeps the order

    def _requeue_one(self, data: bytes) -> int:
        try:
            payload, queue = _read(data, self._decoded_limit)
        except PayloadError as error:
            payload, destination = Payload(), keys.DEAD
            stored = dead_set_entry(data, error, time.time())
            buried: Any = KILL(
                self._client, [keys.working(self._identity), keys.DEAD], [data, stored, *self._dead_set_limits]
            )
            moved, trimmed = int(buried >= 0), max(0, int(buried))
        else:
            destination, trimmed = keys.queue(queue), 0
            moved = requeue(self._client, self._identity, [(UnitOfWork(queue, data), data)])
        if moved:
            self._on_recovered(RecoveredJob(self._identity, Job(payload), destination, "lost reply", trimmed))
        return moved


def mark_dead(client: "redis.Redis", identity: str) -> None:
    """A process is known to be dead (its parent saw it die): remove its lease, so that the next sweep takes its jobs back."""
    MARK_DEAD(client, [keys.lease(identity), keys.REGISTRY], [identity])
    client.delete(identity, *keys.work(identity))
    client.srem(keys.PROCESSES, identity)


def unregister(client: "redis.Redis", identity: str, after_s: int) -> None:
    """Remove every trace of a process without a lease whose list is empty, ``after_s`` seconds after its last beat."""
    traces = [keys.process(identity), identity, *keys.work(identity), keys.signals(identity)]
    places = [keys.lease(identity), keys.working(identity), keys.REGISTRY, keys.PROCESSES, *traces]
    UNREGISTER(client, places, [identity, after_s])


def jittered(period_s: float) -> float:
    """Return ``period_s`` give or take a fifth, so that a fleet started at once does not sweep at once."""
    return period_s * (0.8 + 0.4 * secrets.randbelow(1000) / 1000)
