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
from framework.fetch.blame import SUSPECT, Evidence, Guilt
from framework.fetch.call import LEASE_MS
from framework.fetch.custody import Custody
from framework.fetch.grace import Grace
from framework.fetch.interruptions import KEEP_INTERRUPTED, InterruptionLimit, Keep
from framework.fetch.parking import PARK_S, REPLY_MARGIN_S
from framework.fetch.replies import Mark
from framework.fetch.requeue import requeue
from framework.fetch.unit_of_work import UnitOfWork
from framework.store.script import ADOPT, BURY, EXAMINE, FORGET, RECLAIM, RESTORE, RETIRE
from framework.types import Payload
from framework.wire import keys
from framework.wire.bounds import DECODED_LIMIT, LARGE, needs_look
from framework.wire.holds import Holds, Slot, lock_of, slot_id, slot_member
from framework.wire.job import DEATHS, Job, decode, times
from framework.wire.json import dumps
from framework.wire.malformed import quarantined
from framework.wire.status import Tracked, tracked

FORGET_AFTER_S = LEASE_MS // 1000 + 2 * int(PARK_S + REPLY_MARGIN_S)
"""Seconds since the last beat after which no parked call of a dead process can be alive."""

_PAGE = 50
_RESTORED_JOBS, _RESTORED_BYTES = 500, 1_000_000  # of one step: half a millisecond of Redis's time
_KEYS_A_SWEEP = 500
"""So many keys of the shard does one sweep look at in search of lists without an owner: a tenth of a millisecond of Redis's time."""

_VERDICT_S = 10.0
"""How long what an examination found may be acted upon; a command that a frozen Redis hears later does nothing."""

Cause: TypeAlias = Literal["death", "lost reply"]


@dataclass(frozen=True, slots=True)
class Recovered:
    """One job taken back: from whom and why, where it went, and how many older entries had to leave that set for it."""

    owner: str
    job: Job
    destination: str
    cause: Cause = "death"
    trimmed: int = 0
    unread: int = 0
    """So many jobs of a migration that died were put back as they were; ``job`` is none of them."""

    @property
    def quarantined(self) -> bool:
        """Whether too many processes died that ran it: it will not run again by itself."""
        return self.destination == keys.INTERRUPTED


NO_SETTING = InterruptionLimit()
"""Where no setting says otherwise."""

OnRecovered: TypeAlias = Callable[[Recovered], None]


class Reaper:
    """Looks after the working lists of one shard. Any number may run at once, in any process.

    ``grace`` is fed by the lease of the same process; ``dead`` are the limits of the dead set, ``limit`` that of deaths.
    """

    def __init__(
        self,
        client: "redis.Redis",
        on_recovered: OnRecovered,
        grace: Grace,
        dead: Keep,
        decoded_limit: int = DECODED_LIMIT,
        limit: InterruptionLimit = NO_SETTING,
    ) -> None:
        self._client = client
        self._on_recovered = on_recovered
        self._grace = grace
        self._dead = dead
        self._decoded_limit = decoded_limit
        self._limit = limit
        self._cursor = 0

    def sweep(self, own: str = "") -> int:
        """Take back the jobs of every dead process, except ``own``; return their number.

        Costs two commands while nobody is late. Raises redis errors: a refusal that concerns one process's keys after the
        others have been looked at.
        """
        self._adopt()
        late: Any = self._client.zrangebyscore(keys.REGISTRY, "-inf", f"{self._grace.horizon():.6f}")  # pyright: ignore[reportUnknownMemberType]
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

    def _adopt(self) -> None:
        """Look through some of the shard's keys, on from where the last sweep stopped, for working lists that the registry forgot.

        One that was struck off, stopped in the very moment before it parked a call, may send it when it wakes, take a job by it
        and be killed before it beats. Where SCAN is not allowed, nobody looks.
        """
        try:
            scanned: Any = self._client.scan(self._cursor, keys.WORKING_LISTS, _KEYS_A_SWEEP, "list")
        except NoPermissionError:
            return
        self._cursor, found = cast("tuple[int, list[bytes]]", scanned)
        owners = [keys.owner(name.decode(errors="backslashreplace")) for name in found]
        if owners:
            ADOPT(self._client, [keys.REGISTRY, *map(keys.lease, owners)], owners)

    def reclaim(self, identity: str) -> int:
        """Take back everything in one working list unless its owner may live; forget the owner when that is safe."""
        moved = 0
        while (found := self._examine(identity)) is not None and found.page:
            results = self._reclaim_page(identity, found)
            moved += sum(result > 0 for result in results)
            if -1 in results or not any(results):
                break  # it lives, or others are at the same work
        queue = keys.migrated(identity)
        if queue is not None and moved:
            self._on_recovered(Recovered(identity, Job(), keys.queue(queue), unread=moved))
        if found is not None:
            forget(self._client, identity, FORGET_AFTER_S)
        return moved

    def _examine(self, identity: str) -> "_Estate | None":
        found: Any = EXAMINE(
            self._client,
            [keys.lease(identity), keys.working(identity), keys.REGISTRY, keys.runs(identity), keys.BEATS],
            [identity, _PAGE, f"{self._grace.lease_s:g}", f"{self._grace.grace_s:g}"],
        )
        if not found:
            return None
        now, length, said, *page = cast("list[Any]", found)
        evidence = Evidence.of(dict(zip(said[::2], said[1::2], strict=True)))
        return _Estate(f"{float(now) + _VERDICT_S:.6f}", int(length), evidence, page)

    def _reclaim_page(self, identity: str, found: "_Estate") -> list[int]:
        if (queue := keys.migrated(identity)) is not None:
            return self._restore_page(identity, queue, found)
        # The head is the youngest; each goes to the right end in turn, so the oldest ends up next to run.
        ranked = zip(found.page, range(found.length - 1, -1, -1), strict=False)
        fates = [_fate(data, found.evidence, rank, self._decoded_limit, self._limit) for data, rank in ranked]
        results = RECLAIM.each(self._client, [self._move(identity, found, fate) for fate in fates])
        for index, fate in enumerate(fates):
            if fate.tracked is not None and isinstance(results[index], NoPermissionError):
                # Before anything ran. Perhaps of its state alone, which may be missed; the job may not.
                stateless = self._move(identity, found, replace(fate, tracked=None))
                (results[index],) = RECLAIM.each(self._client, [stateless])
        for fate, result in zip(fates, results, strict=True):
            if isinstance(result, int) and result > 0:
                self._on_recovered(Recovered(identity, Job(fate.payload), fate.key, trimmed=result - 1))
        for result in results:
            if isinstance(result, RedisError):
                raise result  # what was done has been told
        return results

    def _restore_page(self, identity: str, queue: str, found: "_Estate") -> list[int]:
        """Put back what a migration had not come to: unread, as none of it can have run, and in its order."""
        places = [keys.lease(identity), keys.working(identity), keys.queue(queue), keys.QUEUES]
        moved: int = RESTORE(self._client, places, [found.until, _RESTORED_JOBS, _RESTORED_BYTES, queue])
        return [1] * moved if moved > 0 else [moved]

    def _move(self, identity: str, found: "_Estate", fate: "_Fate") -> tuple[list[str], list[Any]]:
        limits = KEEP_INTERRUPTED if fate.key == keys.INTERRUPTED else self._dead
        places = [keys.lease(identity), keys.working(identity), fate.key, keys.QUEUES]
        arguments = [fate.found, fate.data, found.until, fate.queue, *limits]
        if fate.tracked is not None:
            places.append(keys.status(fate.tracked.jid))
            arguments += ["failed", fate.tracked.kept_s]
        else:
            arguments += ["", 0]
        holds = _holds_of(identity, fate)
        return places, [*arguments, holds.goes_back() if fate.queue else holds.ended()]


@dataclass(frozen=True, slots=True)
class _Estate:
    """What a dead process left: the ``length`` of its list, its youngest jobs, and what it said about its runs."""

    until: str
    length: int
    evidence: Evidence
    page: list[bytes]


@dataclass(frozen=True, slots=True)
class _Fate:
    found: bytes
    key: str
    queue: str
    data: bytes
    payload: Payload
    tracked: Tracked | None = None
    """Whose state says that it has failed: the job is given up, and nobody would write it later."""


def _fate(
    data: bytes,
    evidence: Evidence,
    rank: int,
    decoded_limit: int = DECODED_LIMIT,
    limit: InterruptionLimit = NO_SETTING,
) -> _Fate:
    """Decide before anything is removed: back to its queue, quarantined after too many deaths, or dead if unreadable."""
    try:
        payload, queue = _read(data, decoded_limit)
        guilt = evidence.guilt(data, payload, rank)
        changed = data if guilt == "waited" else dumps(_suspected(payload, guilt))
    except PayloadError as error:
        return _Fate(data, keys.DEAD, "", quarantined(data, error, time.time()), {})
    if guilt == "ran" and limit.reached(payload, DEATHS):
        return _Fate(data, keys.INTERRUPTED, "", changed, payload, tracked(payload))
    if needs_look(len(data), LARGE):
        payload["args"] = []  # a page of large ones would take much memory, and nothing asks for the arguments
    return _Fate(data, keys.queue(queue), queue, changed, payload)


def _holds_of(identity: str, fate: "_Fate") -> Holds:
    """Return what a dead process's job may hold: what is not held is not missed."""
    payload = fate.payload
    name = str(payload.get("class"))
    worker = registry.find(name)
    declaration = None if worker is None else worker.declaration()
    names = {name, name if declaration is None else declaration.wire_name, f"queue/{payload.get('queue')}"}
    member = slot_member(identity, slot_id(payload, fate.found))
    slots = [Slot(keys.limit(name), member) for name in sorted(names)]
    return Holds(lock_of(payload, None if declaration is None else declaration.lock_ttl_s), slots)


def _read(data: bytes, decoded_limit: int) -> tuple[Payload, str]:
    """Return the payload and its queue, the only thing that tells where it came from."""
    payload = decode(data, decoded_limit)
    queue = payload.get("queue")
    if not isinstance(queue, str) or not queue:
        raise PayloadError("it names no queue")
    return payload, queue


def _suspected(payload: Payload, guilt: Guilt) -> Payload:
    payload[SUSPECT] = True
    if guilt == "ran":
        payload[DEATHS] = times(payload, DEATHS) + 1
    return payload


class Reconciler:
    """Finds jobs that are in our own working list but not in our memory: a fetch whose reply was lost.

    Given back is only what one look did not know, and a later one still does not once every reply has been read that was under
    way during the first: two looks may come close together, and a reply may lie unread for as long as we are stopped. After
    trouble with Redis, when no connection is open on which one could come, one look is enough (``look_at_rest``). What cannot
    be read, or names no queue, goes to the dead set (``wire/malformed.py``), limited by ``dead``.
    """

    def __init__(
        self,
        client: "redis.Redis",
        identity: str,
        custody: Custody,
        on_recovered: OnRecovered,
        dead: Keep,
        decoded_limit: int = DECODED_LIMIT,
    ) -> None:
        self._client = client
        self._identity = identity
        self._custody = custody
        self._on_recovered = on_recovered
        self._dead = dead
        self._decoded_limit = decoded_limit
        self._suspects: set[bytes] = set()
        self._mark = Mark(0, 0)

    def look(self) -> int:
        """Compare once; return how many jobs were given back. Raises redis errors."""
        custody = self._custody
        read = custody.replies.read_since(self._mark)  # first of all: then a suspect whose reply has been read is known
        returned = set[bytes]()
        self._suspects -= custody.swap_returned(returned)  # those were read, and the same bytes may have come again
        unknown = self._unknown()
        if self._suspects and not read:
            self._suspects.intersection_update(unknown)
            return 0
        lost = [data for data in unknown if data in self._suspects and data not in returned]
        self._suspects = set(unknown)
        if unknown:
            self._mark = custody.replies.mark()
        else:
            custody.swap_returned(None)
        return self._give_back(lost)

    def look_at_rest(self) -> int:
        """Compare while no fetch is under way and no call is parked; return how many jobs were given back. Raises redis errors.

        Safe beside a ``look`` of another thread: whoever finds a job in the list moves it.
        """
        return self._give_back(self._unknown())

    def _unknown(self) -> list[bytes]:
        """Return what is in the list and not in memory, oldest first."""
        known = self._custody.known()  # before the list is read: what is fetched in between is at worst a suspect
        listed = cast("list[bytes]", self._client.lrange(keys.working(self._identity), 0, -1))
        return [data for data in reversed(listed) if data not in known]

    def _give_back(self, lost: list[bytes]) -> int:
        self._custody.note_returned(lost)
        return sum(self._return(data) for data in reversed(lost))  # the youngest first, which keeps the order

    def _return(self, data: bytes) -> int:
        try:
            payload, queue = _read(data, self._decoded_limit)
        except PayloadError as error:
            payload, destination = Payload(), keys.DEAD
            stored = quarantined(data, error, time.time())
            buried: Any = BURY(self._client, [keys.working(self._identity), keys.DEAD], [data, stored, *self._dead])
            moved, trimmed = int(buried >= 0), max(0, int(buried))
        else:
            destination, trimmed = keys.queue(queue), 0
            moved = requeue(self._client, self._identity, [(UnitOfWork(queue, data), data)])
        if moved:
            self._on_recovered(Recovered(self._identity, Job(payload), destination, "lost reply", trimmed))
        return moved


def retire(client: "redis.Redis", identity: str) -> None:
    """A process is known to be dead (its parent saw it die): remove its lease, so that the next sweep takes its jobs back."""
    RETIRE(client, [keys.lease(identity), keys.REGISTRY], [identity])
    client.delete(identity, *keys.work(identity))
    client.srem(keys.PROCESSES, identity)


def forget(client: "redis.Redis", identity: str, after_s: int) -> None:
    """Remove every trace of a process without a lease whose list is empty, ``after_s`` seconds after its last beat."""
    traces = [keys.runs(identity), identity, *keys.work(identity), keys.signals(identity)]
    places = [keys.lease(identity), keys.working(identity), keys.REGISTRY, keys.PROCESSES, *traces]
    FORGET(client, places, [identity, after_s])


def draw_pause(period_s: float) -> float:
    """Return ``period_s`` give or take a fifth, so that a fleet started at once does not sweep at once."""
    return period_s * (0.8 + 0.4 * secrets.randbelow(1000) / 1000)
