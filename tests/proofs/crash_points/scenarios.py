"""The scenarios of a job's life, each run by one process from its start to its end, in steps that are always the same."""

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, cast

from redis.exceptions import RedisError

from framework.admin.cancel import cancel_on_shard
from framework.admin.deleted_jobs import undo_matching
from framework.admin.entries import EntryAction, JobSetKind
from framework.admin.held_set import purge
from framework.admin.job_record import JobFilter, JobQuota
from framework.admin.queue_actions import clear_queue
from framework.admin.shard_job_set import ShardJobSet
from framework.admin.statistics import ignore_progress
from framework.declare.policy_options import WAITING_TTL
from framework.errors import BulkPushError, ShardUnavailableError
from framework.features.batches import keys as batch_keys
from framework.features.deduplication.left_locks import LeftLocks
from framework.features.packing.deferred_packer import DeferredPacker, DeferredReturner
from framework.features.packing.held_packer import HeldPacker
from framework.features.packing.packer import QueuePacker
from framework.fetch.blocks import unpack
from framework.recover.suspects import SUSPECT_FIELD
from framework.types import JobState
from framework.wire import keys
from framework.wire.blocks import is_block
from framework.wire.job import DEATH_COUNT
from framework.wire.resources import slot_member
from tests.proofs.crash_points import jobs
from tests.proofs.crash_points.environment import CaseEnvironment
from tests.proofs.crash_points.jobs import BATCH, KEPT_S, QUEUE, RETIRED, SAMPLE, SUB_QUEUE
from tests.proofs.crash_points.stepped_worker import SteppedWorker

DEAD = "points:1:dead"
"""The process that was dead before the case started."""

NAME = "tested"
OTHER_POLLER = "rival"
AWAY = jobs.AwayWorker.declaration().generated_queue
UNREADABLE, QUARANTINED, HOLDER = 901, 902, 903
"""The serials of jobs besides those of the batch."""

LEFT = f"{904:024x}"
"""The job of a lock that is left: another program has deleted the job."""

End: TypeAlias = Literal["done", "dead", "interrupted", "gone", "retired", "refused"]
"""The final place of a job: it ended and is in no key; in the set of this name; failed and in no key; never run and
counted, or not counted.
"""


@dataclass(frozen=True)
class ExpectedEnd:
    """The expected end of a job, and its last status, if it is tracked."""

    end: End = "done"
    state: JobState | None = None


Step: TypeAlias = Callable[[CaseEnvironment, SteppedWorker, int], None]


@dataclass(frozen=True)
class Scenario:
    """One scenario: ``prepare`` runs before the process starts; ``act``, of which every command is numbered, runs in
    it.
    """

    name: str
    says: str
    act: Step
    expected_end: Callable[[int], ExpectedEnd] = field(default=lambda _serial: ExpectedEnd())
    prepare: Callable[[CaseEnvironment, int], None] = field(default=lambda _environment, _batch: None)
    batches: tuple[int, ...] = (1, 8)
    crosses: bool = False
    """True if the jobs end on the other shard."""
    fair: bool = False
    """True if the jobs of the queue wait in sub-queues."""
    refuses: bool = False
    """True if a client middleware rejects every due job."""
    shares_limits: bool = False
    """True if limits hold on both shards together."""
    whole: bool = False
    """True if the suite also applies faults to commands that move no job."""
    greetings: bool = False
    """True if the HELLO commands of connections are also numbered."""
    repeated: bool = False
    """True for an action of an operator, which is repeated after the death of its program."""


# --- producers: a rejected push is repeated, as a caller does that needs each job to run


def _push(environment: CaseEnvironment, worker: Any, serials: Iterable[int]) -> None:
    for serial in serials:
        _until_accepted(environment, serial, lambda serial=serial: worker.perform_async(serial, SAMPLE))


def _push_later(environment: CaseEnvironment, worker: Any, serials: Iterable[int]) -> None:
    for serial in serials:
        _until_accepted(environment, serial, lambda serial=serial: worker.perform_in(3600, serial, SAMPLE))


def _until_accepted(environment: CaseEnvironment, serial: int, push: Callable[[], Any]) -> None:
    while True:
        try:
            environment.notes.note("accepted", serial, push() or "")  # of none: the job is a duplicate of one in doubt
        except ShardUnavailableError as error:
            environment.notes.note("doubted" if error.maybe_written else "refused", serial)
        else:
            return


def _push_bulk(
    environment: CaseEnvironment, serials: Sequence[int], push: Callable[[list[tuple[Any, ...]]], Any]
) -> None:
    try:
        jids = push([(serial, SAMPLE) for serial in serials])
    except BulkPushError as error:
        doubted = getattr(error.__cause__, "maybe_written", True)
        for serial in serials[error.failed_from :]:
            environment.notes.note("doubted" if doubted else "refused", serial)
        _push_bulk(environment, serials[error.failed_from :], push)
    else:
        for serial, jid in zip(serials, jids, strict=True):
            environment.notes.note("accepted", serial, jid)


def _push_and_resume(
    environment: CaseEnvironment, serials: Sequence[int], push: Callable[[list[tuple[Any, ...]]], Any]
) -> None:
    """Push in bulk; resume each failed push until every job is written, so that none is in doubt."""
    go_on, before = lambda: push([(serial, SAMPLE) for serial in serials]), list[Any]()
    while True:
        try:
            jids = before + go_on()
        except BulkPushError as error:
            go_on, before = error.resume, error.jids
        else:
            break
    for serial, jid in zip(serials, jids, strict=True):
        environment.notes.note("accepted", serial, jid)


def _serials(batch: int) -> list[int]:
    return list(range(1, batch + 1))


# --- the state before the process starts


def _waiting(
    worker: Any, place: str = keys.queue(QUEUE), *, locked: bool = False, **fields: Any
) -> Callable[[CaseEnvironment, int], None]:
    """Write jobs of a class to a place, as another producer does; ``worker`` is the class, or the name of a removed
    one.

    ``locked``: each job owns a lock until it has ended, and no job owns it afterwards.
    """
    if isinstance(worker, str):
        name = worker
    else:
        name, fields["retry"] = worker.declaration().wire_name, worker.retry
        if worker.declaration().status_expiration is not None:
            fields["status_expiration"] = KEPT_S

    def prepare(environment: CaseEnvironment, batch: int) -> None:
        for serial in _serials(batch):
            environment.write(name, serial, place, **fields, **(environment.lock(serial) if locked else {}))

    return prepare


def _batched(environment: CaseEnvironment, batch: int) -> None:
    """Write jobs of a batch of this framework, which counts each once."""
    environment.clients["main"].hset(
        batch_keys.batch(BATCH), mapping={"total": batch, "pending": batch, "ttl_s": KEPT_S}
    )
    _waiting(jobs.FailsOnceWorker, locked=True, bid=BATCH)(environment, batch)


def _unloaded(environment: CaseEnvironment, batch: int) -> None:
    _waiting(jobs.FailsOnceWorker, locked=True)(environment, batch)
    for client in environment.clients.values():
        client.script_flush()


def _half_stopped(stopped: Any) -> Callable[[CaseEnvironment, int], None]:
    """Write a batch whose middle job is of this class and stops the process in its run."""

    def prepare(environment: CaseEnvironment, batch: int) -> None:
        for serial in _serials(batch):
            worker = stopped if serial == (batch + 1) // 2 else jobs.PlainWorker
            environment.write(worker.declaration().wire_name, serial, keys.queue(QUEUE), **environment.lock(serial))

    return prepare


def _dead_process(environment: CaseEnvironment, batch: int) -> None:
    """Leave a dead process with a batch in flight, malformed bytes, and a job that killed two other processes before.
    All readable jobs own locks and slots.
    """
    place, client = keys.working(DEAD), environment.clients["main"]
    plain = jobs.TrackedWorker.declaration().wire_name
    often = {SUSPECT_FIELD: True, DEATH_COUNT: 2, "status_expiration": KEPT_S}
    quarantined = environment.write(plain, QUARANTINED, place, **often, **environment.lock(QUARANTINED))
    for serial in _serials(batch):
        environment.write(plain, serial, place, status_expiration=KEPT_S, **environment.lock(serial))
    slots = [slot_member(DEAD, f"{serial:024x}") for serial in (*_serials(batch), QUARANTINED)]
    client.zadd(keys.limit(plain) + ":running", dict.fromkeys(slots, 1_000_000_000))
    environment.write_unreadable(UNREADABLE, place)
    client.set(keys.lease(DEAD), 1, px=15_000)
    client.zadd(keys.REGISTRY, {DEAD: 1_000_000_000})
    digest = hashlib.sha1(quarantined, usedforsecurity=False).hexdigest()
    client.hset(keys.process(DEAD), mapping={"slots": 4, digest: 1})


def _slot_of_the_dead(environment: CaseEnvironment, batch: int) -> None:
    """Leave a dead process with the only slot; the jobs of the batch wait in the queue."""
    worker = jobs.LimitedWorker.declaration().wire_name
    environment.write(worker, HOLDER, keys.working(DEAD), **environment.lock(HOLDER))
    environment.clients["main"].zadd(f"{keys.limit(worker)}:running", {slot_member(DEAD, f"{HOLDER:024x}"): 1e10})
    environment.clients["main"].set(keys.lease(DEAD), 1, px=15_000)
    environment.clients["main"].zadd(keys.REGISTRY, {DEAD: 1_000_000_000})
    _waiting(jobs.LimitedWorker, locked=True)(environment, batch)


def _paused(environment: CaseEnvironment, batch: int) -> None:
    """Pause a class of which jobs wait."""
    environment.pause(jobs.OnceWorker.declaration().wire_name)
    _waiting(jobs.OnceWorker, locked=True)(environment, batch)


def _held(environment: CaseEnvironment, batch: int) -> None:
    """Write jobs that a pause holds; it is over."""
    name, client = jobs.TrackedWorker.declaration().wire_name, environment.clients["main"]
    for serial in _serials(batch):
        place = keys.working(DEAD)
        data = environment.write(name, serial, place, status_expiration=KEPT_S, **environment.lock(serial))
        client.zadd(keys.paused_jobs(name), {b'["%b"]\n%b' % (QUEUE.encode(), data): serial})
        client.delete(place)
    client.sadd(keys.PAUSED_CLASSES, name)


def _deleted(environment: CaseEnvironment, batch: int) -> None:
    """Write jobs of the schedule set that an operator has deleted."""
    _waiting(jobs.TrackedWorker, keys.SCHEDULE)(environment, batch)
    shard, wanted = environment.shard("main"), JobFilter()
    scheduled = ShardJobSet(shard, "scheduled", environment.settings)
    scheduled.act_on_matching(wanted, "delete", math.inf, ignore_progress, quota=JobQuota(wanted))
    shard.close()


def _left_lock(environment: CaseEnvironment, batch: int) -> None:
    """Let jobs wait whose locks last as long, half of them for less than half of it by now, and leave the lock of another job."""
    client = environment.clients["main"]
    weeks_ms = round(WAITING_TTL.total_seconds() * 1_000)
    for serial in _serials(batch):
        lock = environment.lock(serial, since="1700000000.123456")
        environment.write(jobs.OnceWorker.declaration().wire_name, serial, keys.queue(QUEUE), **lock)
        client.pexpire(keys.lock(str(serial)), weeks_ms if serial % 2 else weeks_ms // 3)
    left = keys.lock("left")
    client.hset(left, mapping={"jid": LEFT, "since": "1700000000.123456"})
    client.pexpire(left, weeks_ms)


def _in_turn(environment: CaseEnvironment, batch: int) -> None:
    """Let jobs wait in a sub-queue that has a turn."""
    _waiting(jobs.PlainWorker, keys.queue(SUB_QUEUE))(environment, batch)
    environment.clients["main"].sadd(keys.QUEUES, SUB_QUEUE)
    environment.clients["main"].zadd(keys.turns(QUEUE), {SUB_QUEUE.removeprefix(f"{QUEUE}~"): 1})


# --- the process at work


def _work(_environment: CaseEnvironment, worker: SteppedWorker, _batch: int) -> None:
    worker.heartbeat()
    worker.work()


def _work_twice(environment: CaseEnvironment, worker: SteppedWorker, batch: int) -> None:
    _work(environment, worker, batch)
    environment.make_due()
    worker.poll()
    worker.work()


def _schedule(environment: CaseEnvironment, worker: SteppedWorker, batch: int) -> None:
    _push_later(environment, jobs.PlainWorker, _serials(batch))
    worker.heartbeat()
    environment.make_due()
    worker.poll()


def _arrive(environment: CaseEnvironment, worker: SteppedWorker, _batch: int) -> None:
    worker.heartbeat()
    worker.arrival = lambda: _waiting(jobs.PlainWorker)(environment, 1)
    worker.work()


def _stop(_environment: CaseEnvironment, worker: SteppedWorker, _batch: int) -> None:
    jobs.stop_process[:] = [worker.stop]
    worker.heartbeat()
    worker.record()
    worker.work()
    worker.leave()


def _promote(_environment: CaseEnvironment, worker: SteppedWorker, _batch: int) -> None:
    worker.heartbeat()
    worker.poll()


def _cross(_environment: CaseEnvironment, worker: SteppedWorker, _batch: int) -> None:
    worker.heartbeat()
    worker.poll()
    worker.poll()


def _race(environment: CaseEnvironment, worker: SteppedWorker, _batch: int) -> None:
    """Let another poller move the due jobs after this one has read them."""
    worker.heartbeat()
    worker.overtaken_by(SteppedWorker(environment, OTHER_POLLER))
    worker.poll()


def _recover(environment: CaseEnvironment, worker: SteppedWorker, _batch: int) -> None:
    worker.heartbeat()
    worker.mark_dead(DEAD)
    worker.sweep()
    environment.age([DEAD])
    worker.sweep()


def _wait_for_slot(_environment: CaseEnvironment, worker: SteppedWorker, _batch: int) -> None:
    """Wait for the slot of a dead process: the jobs get it one after the other, and run."""
    worker.heartbeat()
    worker.work()
    worker.mark_dead(DEAD)
    worker.sweep()
    worker.work()


def _divide(_environment: CaseEnvironment, worker: SteppedWorker, _batch: int) -> None:
    """Let jobs wait until their shard has a portion of the limit: one after the other gets the slot, and runs."""
    worker.heartbeat()
    worker.work()
    worker.keep_portions()
    worker.work()


def _park(environment: CaseEnvironment, worker: SteppedWorker, _batch: int) -> None:
    """Hold the jobs of a paused class; after the pause they return to their queue and run."""
    worker.heartbeat()
    worker.learn()
    worker.work()
    environment.resume()
    worker.release_paused()
    worker.work()


def _park_packed(environment: CaseEnvironment, worker: SteppedWorker, _batch: int) -> None:
    """Hold the jobs of a paused class, and pack them; after the pause they leave their block, return to their queue and run."""
    worker.heartbeat()
    worker.learn()
    worker.work()
    shard, packed = environment.shard("main"), False
    packer = HeldPacker(shard.client, keys.paused_jobs(jobs.OnceWorker.declaration().wire_name).encode(), 0, 2)
    while not packed:
        try:
            packed = not packer.step()
        except (RedisError, OSError):
            continue
    shard.close()
    environment.resume()
    worker.release_paused()
    worker.work()


def _pack_deferred(environment: CaseEnvironment, worker: SteppedWorker, _batch: int) -> None:
    """Pack deferred jobs; they return to the schedule set before they are due, then go to their queue and run."""
    worker.heartbeat()
    shard = environment.shard("main")
    packer = DeferredPacker(shard.client, 0, 2, 2, stays_s=-math.inf)
    for step in (packer.step, DeferredReturner(shard.client, lambda _declaration, _payload: 0.0).step):
        goes_on = True
        while goes_on:
            try:
                goes_on = step()
            except (RedisError, OSError):
                continue
    shard.close()
    worker.poll()
    worker.work()


def _reconcile_absent(environment: CaseEnvironment, worker: SteppedWorker, batch: int) -> None:
    """Do as ``_reconcile``, after the process has found its list absent and has stopped reading it."""
    worker.heartbeat()
    worker.sweep()
    worker.record()
    _lose_replies(environment, worker, batch)
    worker.sweep()
    worker.record()
    worker.sweep()
    worker.work()
    worker.sweep()


def _reconcile(environment: CaseEnvironment, worker: SteppedWorker, batch: int) -> None:
    """Return the jobs in the own working list whose fetch had no reply."""
    worker.heartbeat()
    _lose_replies(environment, worker, batch)
    worker.sweep()
    worker.work()
    worker.sweep()


def _lose_replies(environment: CaseEnvironment, worker: SteppedWorker, batch: int) -> None:
    place = keys.working(worker.identity)
    _waiting(jobs.PlainWorker, place)(environment, batch)
    environment.write_unreadable(UNREADABLE, place)


def _ended_unlocked(place: str) -> Callable[[CaseEnvironment, int], None]:
    """Write jobs of a deduplicated class that have ended: their locks are free."""

    def prepare(environment: CaseEnvironment, batch: int) -> None:
        _waiting(jobs.OnceWorker, place, locked=True)(environment, batch)
        for serial in _serials(batch):
            environment.clients["main"].delete(keys.lock(str(serial)))

    return prepare


def _ticks_due(environment: CaseEnvironment, batch: int) -> None:
    environment.make_ticks_due(batch)


def _push_ticks(environment: CaseEnvironment, worker: SteppedWorker, _batch: int) -> None:
    """Lead, and push the job of each due tick; a successor does the same when the lease has expired."""
    worker.heartbeat()
    environment.forget_leaders()
    worker.push_ticks()
    # Every tick has its job now, whichever process has pushed it. The checks find one that has none, or two.
    for serial in _serials(environment.ticks):
        environment.notes.note("accepted", serial)
    worker.work()


def _operate(kind: JobSetKind, action: EntryAction, at: float | None = None) -> Step:
    """Act on all jobs of a set, and go on after each failure, as an operator does."""

    def act(environment: CaseEnvironment, _worker: SteppedWorker, _batch: int) -> None:
        shard = environment.shard("main")
        entries = ShardJobSet(shard, kind, environment.settings)
        wanted = JobFilter()
        while not entries.act_on_matching(
            wanted, action, math.inf, ignore_progress, quota=JobQuota(wanted), at=at
        ).completed:
            pass
        shard.close()

    return act


def _clear(selects: Callable[[bytes], bool]) -> Step:
    """Clear the queue of the selected jobs, and go on after each failure, as an operator does."""

    def act(environment: CaseEnvironment, _worker: SteppedWorker, _batch: int) -> None:
        shard, cleared = environment.shard("main"), False
        while not cleared:
            try:
                clear_queue(shard.client, QUEUE, lambda _dropped: None, selects)
                cleared = True
            except (RedisError, OSError):
                continue
        shard.close()

    return act


def _packed(step: Step, queue: str = QUEUE) -> Step:
    """Pack the waiting jobs, and go on after each failure, as the task of a process does; then take the step."""

    def act(environment: CaseEnvironment, worker: SteppedWorker, batch: int) -> None:
        shard, packed = environment.shard("main"), False
        packer = QueuePacker(shard.client, queue, 0, max(1, batch // 2))
        while not packed:
            try:
                packed = not packer.pack()
            except (RedisError, OSError):
                continue
        shard.close()
        step(environment, worker, batch)

    return act


def _delete_left_locks(environment: CaseEnvironment, worker: SteppedWorker, _batch: int) -> None:
    """Look for left locks by two passes, each again after a failure; then the jobs run."""
    shard, deleted = environment.shard("main"), 0
    locks, passes = LeftLocks(shard.client), 0
    while passes < 2:
        try:
            deleted += locks.check()
            passes += 1
        except (RedisError, OSError):
            continue
    shard.close()
    _work(environment, worker, _batch)


def _push_full(push: Step) -> Step:
    """Push a small class to a Redis without memory; it has room again before the jobs run."""

    def act(environment: CaseEnvironment, worker: SteppedWorker, batch: int) -> None:
        environment.fill(above=100_000)
        push(environment, worker, batch)
        environment.fill(above=None)

    return act


def _pack_into_store(environment: CaseEnvironment, worker: SteppedWorker, batch: int) -> None:
    """Pack the waiting jobs into the payload store, and unpack them, each again after a failure; then they run."""
    shard = environment.shard("main")
    packer = QueuePacker(shard.client, QUEUE, 0, batch, store=environment.blocks)

    def unpack_next() -> bool:
        block = cast("bytes | None", shard.client.lindex(keys.queue(QUEUE), -1))
        return block is not None and is_block(block) and unpack(shard.client, QUEUE, block)

    for step in (packer.pack, unpack_next):
        done = False
        while not done:
            try:
                done = not step()
            except (RedisError, OSError):
                continue
    shard.close()
    _work(environment, worker, batch)


def _undo(environment: CaseEnvironment, worker: SteppedWorker, _batch: int) -> None:
    """Bring deleted jobs back, and go on after each failure, as an operator does; then they run."""
    shard, wanted = environment.shard("main"), JobFilter()
    while not undo_matching(shard, wanted, environment.settings, math.inf, quota=JobQuota(wanted)).completed:
        pass
    shard.close()
    worker.heartbeat()
    worker.poll()
    worker.work()


def _drop_held(environment: CaseEnvironment, worker: SteppedWorker, _batch: int) -> None:
    """Drop held jobs, and go on after each failure, as an operator does; then a process finds none of their class."""
    shard, wanted, done = environment.shard("main"), JobFilter(), False
    sizes = environment.settings.size_limit
    while not done:
        try:
            quota = JobQuota(wanted)
            done = purge(shard, wanted, sizes, math.inf, ignore_progress, quota=quota, dry_run=False).completed
        except (RedisError, OSError):
            continue
    shard.close()
    worker.heartbeat()
    worker.release_paused()


def _work_uncounted(environment: CaseEnvironment, worker: SteppedWorker, batch: int) -> None:
    """Another program has deleted the counts of blocks."""
    environment.clients["main"].delete(keys.PACKED, keys.PACKED_BLOCKS)
    _work(environment, worker, batch)


def _clear_others(environment: CaseEnvironment, worker: SteppedWorker, batch: int) -> None:
    _clear(lambda _data: False)(environment, worker, batch)
    _work(environment, worker, batch)


def _cancel(environment: CaseEnvironment, worker: SteppedWorker, _batch: int) -> None:
    """Cancel the jobs, and go on after each failure, as an operator does; then let a process end them."""
    shard, done = environment.shard("main"), False
    wanted = JobFilter(cls=jobs.TrackedWorker.declaration().wire_name)
    while not done:
        try:
            settings, quota = environment.settings, JobQuota(wanted)
            done = cancel_on_shard(shard, wanted, settings, math.inf, ignore_progress, quota=quota).completed
        except (RedisError, OSError):
            continue
    shard.close()
    worker.heartbeat()
    worker.learn()
    worker.work()


def _other_work(_environment: CaseEnvironment, worker: SteppedWorker, _batch: int) -> None:
    worker.heartbeat()
    worker.record()
    worker.sweep()
    worker.poll()
    worker.heartbeat()


def _dead_process_end(serial: int) -> ExpectedEnd:
    if serial == UNREADABLE:
        return ExpectedEnd("dead")
    return ExpectedEnd("interrupted", "failed") if serial == QUARANTINED else ExpectedEnd(state="completed")


def _lost_end(serial: int) -> ExpectedEnd:
    return ExpectedEnd("dead") if serial == UNREADABLE else ExpectedEnd()


def _always(end: End = "done", state: JobState | None = None) -> Callable[[int], ExpectedEnd]:
    return lambda _serial: ExpectedEnd(end, state)


def _pushing(worker: Any) -> Step:
    return lambda environment, _worker, batch: _push(environment, worker, _serials(batch))


SCENARIOS: dict[str, Scenario] = {
    one.name: one
    for one in (
        Scenario(
            "connect",
            "push one, the greeting of the connection included",
            _pushing(jobs.PlainWorker),
            batches=(1,),
            whole=True,
            greetings=True,
        ),
        Scenario("push", "push one by one", _pushing(jobs.PlainWorker)),
        Scenario(
            "bulk",
            "push in bulk",
            lambda environment, _worker, batch: _push_bulk(environment, _serials(batch), jobs.PlainWorker.perform_bulk),
        ),
        Scenario(
            "bulk resumed",
            "push in bulk, and resume what failed",
            lambda environment, _worker, batch: _push_and_resume(
                environment, _serials(batch), jobs.PlainWorker.perform_bulk
            ),
        ),
        Scenario(
            "bulk resumed locked",
            "push in bulk, each with its lock, and resume what failed",
            lambda environment, _worker, batch: _push_and_resume(
                environment, _serials(batch), jobs.OnceWorker.perform_bulk
            ),
            batches=(1, 2),
        ),
        Scenario(
            "bulk later",
            "push in bulk, tracked, due later",
            lambda environment, _worker, batch: _push_bulk(
                environment, _serials(batch), lambda args: jobs.TrackedWorker.perform_bulk_in(3600, args)
            ),
            _always(state="completed"),
        ),
        Scenario(
            "push tracked",
            "push one by one, tracked",
            _pushing(jobs.TrackedWorker),
            _always(state="completed"),
            batches=(1, 2),
        ),
        Scenario(
            "push full",
            "push one by one to a Redis without memory",
            _push_full(_pushing(jobs.PlainWorker)),
            batches=(1,),
        ),
        Scenario(
            "push full locked",
            "the same, each with its lock",
            _push_full(_pushing(jobs.OnceWorker)),
            batches=(1,),
        ),
        Scenario(
            "bulk full",
            "push in bulk to a Redis without memory, and resume what failed",
            _push_full(
                lambda environment, _worker, batch: _push_and_resume(
                    environment, _serials(batch), jobs.PlainWorker.perform_bulk
                )
            ),
        ),
        Scenario("push locked", "push one by one, each with its lock", _pushing(jobs.OnceWorker), batches=(1,)),
        Scenario("schedule", "push for later, promote", _schedule, whole=True),
        Scenario("run", "fetch, run, acknowledge", _work, prepare=_waiting(jobs.PlainWorker), whole=True),
        Scenario(
            "run locked",
            "let go of a lock with the job",
            _work,
            prepare=_waiting(jobs.OnceWorker, locked=True),
            batches=(1,),
        ),
        Scenario("packed", "pack, unpack, run", _packed(_work), prepare=_waiting(jobs.PlainWorker), whole=True),
        Scenario(
            "packed in store",
            "pack into the payload store, unpack, run",
            _pack_into_store,
            prepare=_waiting(jobs.PlainWorker),
            whole=True,
        ),
        Scenario(
            "packed cleared",
            "pack, clear the queue of none of the jobs, run",
            _packed(_clear_others),
            prepare=_waiting(jobs.PlainWorker),
        ),
        Scenario(
            "packed in turn",
            "pack in a sub-queue, unpack, run",
            _packed(_work, SUB_QUEUE),
            prepare=_in_turn,
            fair=True,
            whole=True,
        ),
        Scenario(
            "packed uncounted",
            "pack, lose the counts, take the block like a job, return its jobs, run",
            _packed(_work_uncounted),
            prepare=_waiting(jobs.PlainWorker),
            whole=True,
        ),
        Scenario("blocked", "a blocking call returns the job", _arrive, batches=(1,), whole=True),
        Scenario("run sync", "acknowledge each before the next", _work, prepare=_waiting(jobs.SyncWorker)),
        Scenario(
            "run rerun",
            "end those that no duplicate repeats",
            _work,
            prepare=_waiting(jobs.RerunWorker, locked=True),
        ),
        Scenario("run tracked", "the state is kept", _work, _always(state="completed"), _waiting(jobs.TrackedWorker)),
        Scenario(
            "iterated",
            "iterate an item, yield, resume at the cursor",
            _work,
            prepare=_waiting(jobs.IteratedWorker, locked=True),
            batches=(1, 2),
        ),
        Scenario(
            "suspect", "a death is announced that may come", _work, prepare=_waiting(jobs.PlainWorker, aw_suspect=True)
        ),
        Scenario("unloaded", "the server has lost the scripts", _work_twice, _always(), _unloaded, batches=(1,)),
        Scenario(
            "retry", "fail, wait, promote, run", _work_twice, _always(), _waiting(jobs.FailsOnceWorker, locked=True)
        ),
        Scenario("batch", "the same, as jobs of a batch", _work_twice, _always(), _batched),
        Scenario(
            "later",
            "ask to run later, wait, promote, run",
            _work_twice,
            _always(),
            _waiting(jobs.LaterWorker, locked=True),
        ),
        Scenario(
            "dead", "fail for the last time", _work, _always("dead", "failed"), _waiting(jobs.DeadWorker, locked=True)
        ),
        Scenario(
            "dropped",
            "fail without retries and dead set",
            _work,
            _always("gone"),
            _waiting(jobs.DroppedWorker, locked=True),
        ),
        Scenario(
            "discarded",
            "ask to be forgotten",
            _work,
            _always("gone", state="discarded"),
            _waiting(jobs.DiscardedWorker, locked=True),
        ),
        Scenario("retired", "the class was removed", _work, _always("retired"), _waiting(RETIRED, locked=True)),
        Scenario("stop", "TERM in the middle of a batch", _stop, _always(), _half_stopped(jobs.StoppedWorker)),
        Scenario("cut off", "one still runs at the deadline", _stop, _always(), _half_stopped(jobs.CutOffWorker)),
        Scenario(
            "refused",
            "due, and refused by a middleware",
            _promote,
            _always("refused", "discarded"),
            _waiting(jobs.TrackedWorker, keys.SCHEDULE),
            refuses=True,
        ),
        Scenario(
            "cross",
            "due on another shard",
            _cross,
            prepare=_waiting(jobs.AwayWorker, keys.SCHEDULE, queue=AWAY),
            crosses=True,
        ),
        Scenario("race", "two pollers at the same jobs", _race, prepare=_waiting(jobs.PlainWorker, keys.SCHEDULE)),
        Scenario("recover", "reclaim the jobs of a dead process", _recover, _dead_process_end, _dead_process),
        Scenario(
            "divided",
            "wait for a portion of the limit of all shards, run",
            _divide,
            prepare=_waiting(jobs.LimitedWorker, locked=True),
            shares_limits=True,
            whole=True,
        ),
        Scenario("limited", "wait for a slot, be handed it", _wait_for_slot, prepare=_slot_of_the_dead, batches=(1,)),
        Scenario(
            "retried",
            "an operator retries dead jobs",
            _operate("dead", "retry"),
            prepare=_ended_unlocked(keys.DEAD),
            repeated=True,
        ),
        Scenario(
            "requeued",
            "an operator gives interrupted jobs one more run",
            _operate("interrupted", "requeue"),
            _always(state="completed"),
            _waiting(jobs.TrackedWorker, keys.INTERRUPTED),
            batches=(1,),
            repeated=True,
        ),
        Scenario(
            "enqueued",
            "an operator enqueues jobs before they are due",
            _operate("scheduled", "enqueue_now"),
            prepare=_waiting(jobs.OnceWorker, keys.SCHEDULE, locked=True),
            batches=(1,),
            repeated=True,
        ),
        Scenario(
            "rescheduled",
            "an operator changes when failed jobs are due",
            _operate("retry", "reschedule", 3600),
            prepare=_waiting(jobs.OnceWorker, keys.RETRY, locked=True),
            batches=(1,),
            repeated=True,
        ),
        Scenario(
            "killed",
            "an operator moves jobs to the dead set before they are due",
            _operate("scheduled", "kill"),
            _always("dead", "failed"),
            _waiting(jobs.DeadWorker, keys.SCHEDULE, locked=True),
            batches=(1,),
            repeated=True,
        ),
        Scenario(
            "deleted",
            "an operator deletes jobs before they are due",
            _operate("scheduled", "delete"),
            _always("refused", "discarded"),
            _waiting(jobs.TrackedWorker, keys.SCHEDULE, locked=True),
            batches=(1,),
            repeated=True,
        ),
        Scenario(
            "undone",
            "an operator brings deleted jobs back, and they run",
            _undo,
            _always(state="completed"),
            _deleted,
            batches=(1,),
            repeated=True,
        ),
        Scenario(
            "dropped held",
            "an operator drops held jobs",
            _drop_held,
            _always("refused", "discarded"),
            _held,
            batches=(1,),
            repeated=True,
        ),
        Scenario(
            "left lock",
            "delete the lock of a job that another program deleted, renew those of the others, run",
            _delete_left_locks,
            prepare=_left_lock,
            batches=(2,),
            repeated=True,
            whole=True,
        ),
        Scenario(
            "cleared",
            "an operator clears a queue",
            _clear(lambda _data: True),
            _always("refused", "discarded"),
            _waiting(jobs.TrackedWorker, locked=True),
            batches=(1,),
            repeated=True,
        ),
        Scenario(
            "kept",
            "an operator clears a queue of other jobs, run these",
            _clear_others,
            _always(state="completed"),
            _waiting(jobs.TrackedWorker),
            batches=(2,),
        ),
        Scenario(
            "cancelled",
            "an operator cancels jobs before they are due",
            _operate("scheduled", "cancel"),
            _always("refused", "cancelled"),
            _waiting(jobs.TrackedWorker, keys.SCHEDULE, locked=True),
            batches=(1,),
            repeated=True,
        ),
        Scenario(
            "cancelled in queue",
            "an operator cancels jobs in a queue, and a process ends them",
            _cancel,
            _always("refused", "cancelled"),
            _waiting(jobs.TrackedWorker, locked=True),
            batches=(1,),
            repeated=True,
        ),
        Scenario(
            "cron",
            "push the jobs of due ticks, run",
            _push_ticks,
            _always(state="completed"),
            _ticks_due,
            whole=True,
            repeated=True,
        ),
        Scenario("paused", "be held, return to the queue, run", _park, prepare=_paused, batches=(1,)),
        Scenario(
            "paused packed",
            "be held, packed, unpacked, return to the queue, run",
            _park_packed,
            prepare=_paused,
            batches=(4,),
        ),
        Scenario(
            "deferred packed",
            "be deferred, packed, unpacked, go to the queue when it is due, run",
            _pack_deferred,
            prepare=_waiting(jobs.PlainWorker, keys.SCHEDULE, deferred=True, deferred_by="feature_flag"),
            batches=(4,),
        ),
        Scenario("reconcile", "return jobs that no thread knows of", _reconcile, _lost_end),
        Scenario(
            "absent",
            "the same, after the process had found its list absent",
            _reconcile_absent,
            _lost_end,
            batches=(1,),
            whole=True,
        ),
        Scenario(
            "periodic",
            "the periodic work of a process",
            _other_work,
            prepare=_waiting(jobs.PlainWorker),
            batches=(1,),
            whole=True,
        ),
    )
}
