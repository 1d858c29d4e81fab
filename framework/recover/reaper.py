"""Return the jobs of dead processes to their queues.

A process is dead if its lease has expired and heartbeats have arrived without a gap for long enough; the scripts check both.
A supervisor that saw its child die removes the lease at once; the worker processes, which know the classes, return the jobs.
"""

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, cast

import redis
from redis.exceptions import NoPermissionError, RedisError, ResponseError

from framework.declare import registry
from framework.errors import PayloadError
from framework.recover.suspects import SUSPECT_FIELD, InterruptionLimit, RunEvidence, StartState, quarantine_counter
from framework.store.script import INSPECT_DEAD, MARK_DEAD, RECLAIM, REGISTER_ORPHAN, RESTORE, UNREGISTER
from framework.store.steps import BoundedSteps
from framework.text import decode_escaped
from framework.timings import STANDARD, Timings
from framework.types import Payload
from framework.wire import keys
from framework.wire.blocks import is_block
from framework.wire.footprint import DECODED_LIMIT, LARGE_PAYLOAD, may_exceed
from framework.wire.job import DEATH_COUNT, Job, count_of, decode, rewrite
from framework.wire.json import loads_object
from framework.wire.keys import (
    INTERRUPTED_SET_LIMITS,
    SetLimits,
    capsule_field,
    capsule_owner,
    capsules_of,
    split_owner,
)
from framework.wire.malformed import dead_set_entry
from framework.wire.resources import JobResources, Slot, lock_of, slot_id, slot_member
from framework.wire.status_key import TrackedJob, tracked_job
from framework.wire.sub_queues import return_queue
from framework.wire.waiters import AwaitedJob, awaited_job_of

# Jobs per inspection: a page of payloads is decoded in memory at once.
_PAGE = 50
_RESTORED_JOBS, _MAX_RESTORED_BYTES = (20, 500), 1_000_000
"""The fewest and the most jobs that one step restores, and its most bytes."""

# Every sweep looks for working lists without an owner: a process that was suspended before a blocking move may wake unregistered,
# receive a job, and be killed before its next heartbeat.
_SCAN_COUNT = 500
"""Keys that one sweep scans for working lists without an owner: a tenth of a millisecond of Redis's time."""

Cause: TypeAlias = Literal["death", "lost reply"]

DEFAULT_LIMIT = InterruptionLimit()
"""The limit without a setting."""

_MISSED_HEARTBEATS = 2
"""So many periods without a heartbeat are a gap: an outage as long may have cost a process its lease."""


@dataclass(frozen=True, slots=True)
class RecoveredJob:
    """A recovered job: its former owner, the cause, where it went, and how many older jobs were trimmed from that set."""

    owner: str
    job: Job
    destination: str
    cause: Cause = "death"
    trimmed: int = 0
    migration_jobs: int = 0
    """How many jobs of a dead migration went back unchanged; ``job`` is then empty."""

    @property
    def quarantined(self) -> bool:
        """Whether too many processes died while it ran: the job does not run again by itself."""
        return self.destination == keys.INTERRUPTED


OnRecovered: TypeAlias = Callable[[RecoveredJob], None]


# After an outage longer than a lease every lease has expired although every process is alive, so expiry alone proves nothing.
# A process counts as dead only if (a) its lease expired and (b) heartbeats, from any process, have arrived without a gap for
# one lease plus one heartbeat period (18 s). Redis stores the start of that period (``keys.STEADY_SINCE``), so a new process
# needs no warm-up. Exception: a parent that saw its child exit marks the child dead at once (decision 28).
class FailureDetector:
    """The limits, and Redis's clock as seen by one observer's heartbeats. One thread writes, any thread reads."""

    def __init__(self, lease_s: float, heartbeat_s: float) -> None:
        self.lease_s = lease_s
        self.max_gap_s = _MISSED_HEARTBEATS * heartbeat_s
        self.required_steady_s = lease_s + heartbeat_s
        # One tuple, replaced as a whole, so that a reader in another thread never sees parts of two heartbeats.
        self._observed = (0.0, 0.0, 0.0)
        """Last heartbeat and start of the steady period, by Redis's clock, and the last heartbeat by the monotonic clock."""

    @property
    def steady_since(self) -> float:
        """The start of the period without a gap, in seconds of Redis's clock; 0 before the first heartbeat."""
        return self._observed[1]

    def record_heartbeat(self, at: float, *, lease_held: bool) -> float:
        """Record a heartbeat at ``at`` of Redis's clock; return the seconds since the last one.

        A lease that had expired (``lease_held`` false) counts as a gap.
        """
        last, since, _ = self._observed
        step = at - last
        self._observed = (at, since if lease_held and 0 <= step <= self.max_gap_s else at, time.monotonic())
        return step

    def dead_before(self) -> float:
        """Return the time of Redis's clock before which a last heartbeat means an expired lease; -1 before the first heartbeat."""
        last, _, seen = self._observed
        return last + time.monotonic() - seen - self.lease_s if last else -1.0


class Reaper:
    """Sweep the working lists of one shard. Any number of reapers may run at once, in any process.

    ``detector`` records the heartbeats of the same process.
    """

    def __init__(
        self,
        client: "redis.Redis",
        on_recovered: OnRecovered,
        detector: FailureDetector,
        dead_set_limits: SetLimits,
        decoded_limit: int = DECODED_LIMIT,
        interruption_limit: InterruptionLimit = DEFAULT_LIMIT,
        timings: Timings = STANDARD,
    ) -> None:
        self._client = client
        self._on_recovered = on_recovered
        self._detector = detector
        self._dead_set_limits = dead_set_limits
        self._decoded_limit = decoded_limit
        self._interruption_limit = interruption_limit
        self._timings = timings
        self._cursor = 0
        self._restores = BoundedSteps(*_RESTORED_JOBS)

    def sweep(self, own: str = "") -> int:
        """Return the jobs of every dead process, except ``own``, to their queues; return their number.

        Costs two commands while no process is late. Raises redis errors; if Redis refuses the keys of one process, only after
        the other processes were swept.
        """
        self._register_orphans()
        late: Any = self._client.zrangebyscore(keys.REGISTRY, "-inf", f"{self._detector.dead_before():.6f}")  # pyright: ignore[reportUnknownMemberType]
        refusal: ResponseError | None = None
        moved = 0
        for member in cast("list[bytes]", late):
            identity = decode_escaped(member)
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
        """Register the owners of working lists that are not in the registry; continue the scan of the last sweep.

        How such a list is left behind: a process is stopped (SIGSTOP) just before a blocking call, and unregistered. When it
        continues it sends the call, gets a job, and is killed before its next heartbeat. Where an ACL forbids SCAN, none is found.
        """
        try:
            scanned: Any = self._client.scan(self._cursor, keys.WORKING_LISTS, _SCAN_COUNT, "list")
        except NoPermissionError:
            return
        self._cursor, found = cast("tuple[int, list[bytes]]", scanned)
        places, arguments = [keys.REGISTRY], list[str]()
        for owner in (keys.owner(decode_escaped(name)) for name in found):
            identity, capsule = split_owner(owner)
            places += [keys.lease(owner), keys.process(owner)]
            arguments += [identity, capsule_field(capsule) if capsule else ""]
        if arguments:
            REGISTER_ORPHAN(self._client, places, arguments)

    def reclaim(self, identity: str) -> int:
        """Return every job of one process unless it may be alive; unregister it when that is safe."""
        moved, capsules = self._reclaim_list(identity)
        if capsules is None:
            return moved
        for capsule in capsules:
            moved += self._reclaim_list(capsule_owner(identity, capsule))[0]
        queue = keys.migrated_queue(identity)
        if queue is not None and moved:
            self._on_recovered(RecoveredJob(identity, Job(), keys.queue(queue), migration_jobs=moved))
        unregister(self._client, identity, self._timings.unregister_after_s, capsules)
        return moved

    def _reclaim_list(self, owner: str) -> tuple[int, Sequence[str] | None]:
        """Return how many jobs of one working list were returned, and the further capsules; ``None`` if the process may be alive."""
        moved = 0
        while (found := self._inspect(owner)) is not None and found.page:
            results = self._reclaim_page(owner, found)
            moved += sum(result > 0 for result in results)
            if -1 in results or not any(results):
                # The process is alive, or another reaper returns the same jobs.
                break
        return moved, None if found is None else found.capsules

    def _inspect(self, owner: str) -> "_DeadList | None":
        identity, capsule = split_owner(owner)
        found: Any = INSPECT_DEAD(
            self._client,
            [keys.lease(owner), keys.working(owner), keys.REGISTRY, keys.process(owner), keys.STEADY_SINCE],
            [identity, _PAGE, f"{self._detector.lease_s:g}", f"{self._detector.required_steady_s:g}"],
        )
        if not found:
            return None
        now, length, written, *page = cast("list[Any]", found)
        fields: dict[bytes, bytes] = dict(zip(written[::2], written[1::2], strict=True))
        evidence = RunEvidence.from_hash(fields, capsule)
        valid_until = f"{float(now) + self._timings.inspection_valid_s:.6f}"
        return _DeadList(valid_until, int(length), evidence, page, capsules_of(fields))

    def _reclaim_page(self, owner: str, dead: "_DeadList") -> list[int]:
        if (queue := keys.migrated_queue(owner)) is not None:
            return self._restore_page(owner, queue, dead)
        # The page begins with the youngest; each job goes to the head of its queue in turn, so the oldest is the next to run.
        # Not strict: the page may be only the beginning of the list.
        ranked = zip(dead.page, range(dead.length - 1, -1, -1), strict=False)
        dispositions = [
            _disposition(data, dead.evidence, rank, self._decoded_limit, self._interruption_limit)
            for data, rank in ranked
        ]
        results = RECLAIM.each(
            self._client, [self._reclaim_call(owner, dead, disposition) for disposition in dispositions]
        )
        for index, disposition in enumerate(dispositions):
            if disposition.tracked is not None and isinstance(results[index], NoPermissionError):
                # Redis refused the script before it ran, perhaps only its status key: move the job without its state.
                stateless = self._reclaim_call(owner, dead, replace(disposition, tracked=None))
                (results[index],) = RECLAIM.each(self._client, [stateless])
        for disposition, result in zip(dispositions, results, strict=True):
            if isinstance(result, int) and result > 0:
                identity, _ = split_owner(owner)
                self._on_recovered(
                    RecoveredJob(identity, Job(disposition.payload), disposition.destination, trimmed=result - 1)
                )
        for result in results:
            if isinstance(result, RedisError):
                # The jobs that moved were reported above.
                raise result
        return results

    def _restore_page(self, owner: str, queue: str, dead: "_DeadList") -> list[int]:
        """Return the jobs that a dead migration had not moved: undecoded, because none can have run, and in order."""
        places = [keys.lease(owner), keys.working(owner), keys.queue(queue), keys.QUEUES]
        with self._restores.step() as jobs:
            moved: int = RESTORE(self._client, places, [dead.valid_until, jobs, _MAX_RESTORED_BYTES, queue])
        return [1] * moved if moved > 0 else [moved]

    def _reclaim_call(self, owner: str, dead: "_DeadList", disposition: "_Disposition") -> tuple[list[str], list[Any]]:
        limits = INTERRUPTED_SET_LIMITS if disposition.destination == keys.INTERRUPTED else self._dead_set_limits
        places = [keys.lease(owner), keys.working(owner), disposition.destination, keys.QUEUES]
        arguments = [disposition.fetched, disposition.data, dead.valid_until, disposition.queue, *limits.arguments]
        if disposition.tracked is not None:
            places.append(keys.status(disposition.tracked.jid))
            arguments += ["failed", disposition.tracked.ttl_s]
        else:
            arguments += ["", 0]
        resources = _resources_of(owner, disposition)
        return places, [*arguments, resources.on_requeue() if disposition.queue else resources.on_end()]


@dataclass(frozen=True, slots=True)
class _DeadList:
    """A list of a dead process: its ``length``, its youngest jobs, the evidence of their runs, and the further capsules."""

    valid_until: str
    length: int
    evidence: RunEvidence
    page: list[bytes]
    capsules: Sequence[str]


@dataclass(frozen=True, slots=True)
class _Disposition:
    """The destination of one job of a dead process, and the bytes stored there."""

    fetched: bytes
    destination: str
    queue: str
    data: bytes
    payload: Payload
    tracked: TrackedJob | None = None
    """Set if the job is given up: the same script writes its state, as no process would write it later."""
    awaited: AwaitedJob | None = None
    """Set if the job is given up, and a batch counts it as dead, or a caller gets an error."""
    counter: str = ""
    """The series in which a job that is given up is counted."""


def _disposition(
    data: bytes,
    evidence: RunEvidence,
    rank: int,
    decoded_limit: int = DECODED_LIMIT,
    limit: InterruptionLimit = DEFAULT_LIMIT,
) -> _Disposition:
    """Decide before anything moves: back to its queue, quarantined after too many deaths, or dead if malformed."""
    try:
        payload, queue = read_queue(data, decoded_limit)
        # A block of jobs has not started, and its bytes are compared where it waits.
        start_state = "not_started" if is_block(data) else evidence.classify(data, payload, rank)
        changed = data if start_state == "not_started" else rewrite(data, _mark_suspect(payload, start_state))
    except PayloadError as error:
        stored, awaited = dead_set_entry(data, error, time.time()), awaited_job_of(loads_object(data))
        counter = quarantine_counter(loads_object(data).get("class"), "malformed")
        return _Disposition(data, keys.DEAD, "", stored, {}, awaited=awaited, counter=counter)
    if start_state == "started" and limit.reached(payload, DEATH_COUNT):
        tracked, awaited = tracked_job(payload), awaited_job_of(payload)
        counter = quarantine_counter(payload.get("class"), "death")
        return _Disposition(data, keys.INTERRUPTED, "", changed, payload, tracked, awaited, counter)
    if may_exceed(len(data), LARGE_PAYLOAD):
        # A page of large jobs would take much memory, and no caller reads the arguments.
        payload["args"] = []
    queue = return_queue(queue, data)
    return _Disposition(data, keys.queue(queue), queue, changed, payload)


def _resources_of(owner: str, disposition: "_Disposition") -> JobResources:
    """Return every resource that the job of a dead process may have had: the script ignores the others."""
    payload = disposition.payload
    worker = registry.find(str(payload.get("class")))
    declaration = None if worker is None else worker.declaration()
    slots = slots_in_list(owner, payload, disposition.fetched)
    lock = lock_of(payload, None if declaration is None else declaration.lock_ttl_s)
    return JobResources(lock, slots, awaited=disposition.awaited, end_word="dead", counter=disposition.counter)


def slots_in_list(owner: str, payload: Payload, data: bytes) -> list[Slot]:
    """Return every slot that a job in the working list of ``owner`` may have, of its class or its queue."""
    name = str(payload.get("class"))
    worker = registry.find(name)
    names = {name, name if worker is None else worker.declaration().wire_name, f"queue/{payload.get('queue')}"}
    member = slot_member(owner, slot_id(payload, data))
    return [Slot(keys.limit(name), member) for name in sorted(names)]


def read_queue(data: bytes, decoded_limit: int) -> tuple[Payload, str]:
    """Return the payload and its field ``queue``: the working list does not say which queue the job came from."""
    payload = decode(data, decoded_limit)
    queue = payload.get("queue")
    if not isinstance(queue, str) or not queue:
        raise PayloadError("the payload has no queue name")
    return payload, queue


def _mark_suspect(payload: Payload, start_state: StartState) -> Payload:
    payload[SUSPECT_FIELD] = True
    if start_state == "started":
        payload[DEATH_COUNT] = count_of(payload, DEATH_COUNT) + 1
    return payload


def mark_dead(client: "redis.Redis", identity: str) -> None:
    """Remove the lease of a process whose parent saw it die, so that the next sweep returns its jobs."""
    MARK_DEAD(client, [keys.lease(identity), keys.REGISTRY], [identity])
    client.delete(identity, *keys.work(identity))
    client.srem(keys.PROCESSES, identity)


def unregister(client: "redis.Redis", identity: str, after_s: float, capsules: Sequence[str] = ()) -> None:
    """Remove the keys of a process without a lease whose lists are empty, ``after_s`` seconds after its last heartbeat.

    ``capsules`` are the further ones.
    """
    lists = [keys.working(capsule_owner(identity, capsule)) for capsule in ("", *capsules)]
    traces = [keys.process(identity), identity, *keys.work(identity), keys.signals(identity)]
    UNREGISTER(
        client,
        [keys.lease(identity), keys.REGISTRY, keys.PROCESSES, *lists, *traces],
        [identity, after_s, len(lists)],
    )


def jittered(period_s: float) -> float:
    """Return ``period_s`` plus or minus a fifth, so that processes started together do not sweep together."""
    return period_s * (0.8 + 0.4 * secrets.randbelow(1000) / 1000)
