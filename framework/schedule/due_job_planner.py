"""Plan the action for one due job before anything is moved. Moves nothing itself."""

from collections.abc import Callable
from functools import partial
from typing import Any

from pydantic_core import to_json

from framework.declare import registry
from framework.declare.declaration import Declaration, PerClass
from framework.errors import PayloadError
from framework.finish.status_writer import StatusWriter
from framework.middleware.chain import Call, ChainInvocation
from framework.process_clock import process_clock
from framework.push.argument_checks import SizeLimiter
from framework.push.deduplication import PushLocks
from framework.push.protection import NO_PROTECTION, PayloadProtection
from framework.recover.suspects import quarantine_counter
from framework.route.router import Router, movable_job
from framework.route.topology import QueueLocation
from framework.schedule.cross_shard import (
    CrossShardTransfer,
    DueAction,
    PollEvents,
    ShardTransfer,
    shard_of_token,
    token_for,
)
from framework.shard.routing_validator import RoutedScope
from framework.telemetry.job_events import JobsEnqueued, job_events
from framework.types import Jid, Payload
from framework.wire import keys
from framework.wire.compress import COMPRESSED, ORIGINAL_SIZE, decompress_arguments
from framework.wire.footprint import MemoryBudget
from framework.wire.job import (
    CHOSEN_QUEUE,
    CHOSEN_SHARD,
    DEFERRED,
    SCHEDULED_AT,
    TRANSFER,
    decode,
    fix_expiry,
    rewrite,
    timestamp,
    wire_timestamp,
)
from framework.wire.json import dumps, loads_object
from framework.wire.malformed import dead_set_entry
from framework.wire.protected import OFFLOADED, READ, is_encrypted
from framework.wire.resources import IDEMPOTENCY_KEY, JobResources, Lock, lock_of
from framework.wire.status_key import tracked_job
from framework.wire.sub_queues import arrival_queue
from framework.wire.waiters import AwaitedJob, JobEnd, awaited_job_of, leave_waiters


class _MemoryBudgetExhaustedError(BaseException):
    """Signal that running jobs use all memory for large payloads. A BaseException, so that no handler of job errors catches it."""


class DestinationResolver:
    """Resolve destinations for the process that polls ``shard``; ``router`` has the routing rules of this process.

    A queue that routing could have given to the class or one of its aliases (the generated name, its own ``queue``, that of
    any matching rule) counts as routed and follows today's rules, unless the payload says that it was chosen
    (``set(queue=...)``, ``retry_queue``). Any other queue stays, also for classes that are not registered here. A chosen shard
    (``set(shard=...)``) overrides the rules while it exists; the queue follows them nevertheless.
    """

    def __init__(self, router: Router, shard: str) -> None:
        self._router = router
        self._shard = shard
        self._routable = PerClass(self._routable_queues)

    @property
    def has_moves(self) -> bool:
        """Whether jobs are moving between shards."""
        return bool(self._router.moves)

    def resolve(self, payload: Payload) -> QueueLocation:
        """Return the destination of ``payload``. A move between shards applies to all of this.

        Raises:
            PayloadError: it has no queue name, and its class is not known here.
        """
        found = self._resolve(payload)
        moves = self._router.moves
        if not moves:
            return found
        job = movable_job(payload, found.queue)
        worker: Any = registry.find(payload["class"])
        if worker is not None and worker.declaration().is_iterable and moves.last_move(job, self._shard)[1] is not None:
            # Its cursor is here. In its queue it waits for the mover, which takes both (decision 283).
            return found._replace(shard=self._shard)
        return found._replace(shard=moves.shard_of(job, found.shard))

    def _resolve(self, payload: Payload) -> QueueLocation:
        queue = payload.get("queue")
        named = queue if isinstance(queue, str) and queue else None
        chosen = payload.get(CHOSEN_SHARD)
        shard = chosen if self._router.has_shard(chosen) else None
        worker: Any = registry.find(payload["class"])
        if worker is None:
            if named is None:
                raise PayloadError("it has no queue name, and its class is not known here")
            return QueueLocation(named, shard or self._shard)
        declaration: Declaration = worker.declaration()
        chosen_queue = named is not None and named in (payload.get(CHOSEN_QUEUE), payload.get("retry_queue"))
        if named is not None and (chosen_queue or named not in self._routable.get(declaration)):
            return QueueLocation(named, shard or self._unrouted_shard(declaration, payload))
        route = self._router.route(declaration)
        return QueueLocation(route.queue, shard or self._router.shard_of(declaration, payload))

    def _unrouted_shard(self, declaration: Declaration, payload: Payload) -> str:
        """Return the shard of a job whose queue no rule names: it stays, unless its class has several shards."""
        return self._shard if declaration.several_shards is None else self._router.shard_of(declaration, payload)

    def shards_of(self, declaration: Declaration) -> tuple[str, ...]:
        """Return the shards that get jobs of a class. Raises ConfigurationError."""
        return self._router.shards_of(declaration)

    def stay(self, payload: Payload, destination: QueueLocation) -> QueueLocation:
        """Return the place on this shard of a job that must not leave it: the queue of its payload, else that of ``destination``."""
        queue = payload.get("queue")
        return QueueLocation(queue if isinstance(queue, str) and queue else destination.queue, self._shard)

    def _routable_queues(self, declaration: Declaration) -> frozenset[str]:
        # Jobs pushed under a former name were routed by that name, to a queue that may no longer be served.
        names = [declaration, *map(declaration.with_wire_name, declaration.aliases)]
        rules = [match.rule for one in names for match in self._router.explain(one) if match.matches]
        queues = {declaration.queue, *(one.generated_queue for one in names), *(rule.queue for rule in rules)}
        return frozenset(queue for queue in queues if queue)


class DueJobPlanner:
    """Plan the actions of one process. The client middlewares run here, with the queue that the job goes to."""

    def __init__(
        self,
        events: PollEvents,
        destinations: DestinationResolver,
        transfer: CrossShardTransfer,
        status_writer: StatusWriter,
        *,
        middleware: tuple[Call, ...] = (),
        limiter: SizeLimiter,
        locks: PushLocks | None,
        budget: MemoryBudget | None = None,
        protection: PayloadProtection = NO_PROTECTION,
        postpones: Callable[[Declaration, Payload], float] | None = None,
    ) -> None:
        """``postpones`` returns for how many seconds a deferred job stays where it is: no job of its class may start now."""
        self._postpones = postpones
        self._events = events
        self._destinations = destinations
        self._transfer = transfer
        self._status_writer = status_writer
        self._middleware = middleware
        self._limiter = limiter
        self._locks = locks
        self._budget = budget or MemoryBudget()
        self._reserved = 0
        self._protection = protection
        self._reader = protection.reader

    def plan(self, source: str, member: bytes, due: float | None = None) -> DueAction | ShardTransfer:
        """Return the action for ``member``, which is due in ``source`` since ``due`` (epoch seconds). Raises nothing."""
        try:
            return self._plan(source, member, due)
        except PayloadError as error:
            report = partial(self._events.due_job_malformed, source, member, error)
            stored = dead_set_entry(member, error, process_clock.now())
            return DueAction(member, "dead", stored, on_done=report, lock_argument=_resources_of(member))
        except Exception as error:  # noqa: BLE001 - a middleware's error for one job must not stop the poller for all
            return DueAction(member, "delay", on_done=partial(self._events.due_job_failed, source, error))
        except _MemoryBudgetExhaustedError:
            return DueAction(member, "delay")
        finally:
            if self._reserved:
                self._budget.release(self._reserved)
                self._reserved = 0

    def _reserve(self, memory: int) -> None:
        """Reserve memory for a large job, or delay it: waiting is no option, since running jobs may hold the budget for hours."""
        if self._reserved:
            self._budget.release(self._reserved)
        taken = self._budget.try_acquire(self._reserved + memory)
        self._reserved = taken or 0
        if taken is None:
            raise _MemoryBudgetExhaustedError

    def _decompress(self, payload: Payload) -> None:
        limits = self._limiter.limits
        decompress_arguments(payload, limits.decompressed_limit, limits.decoded_limit, self._reserve, self._reader)

    def _plan(self, source: str, member: bytes, due: float | None) -> DueAction | ShardTransfer:
        payload = decode(member, self._limiter.limits.decoded_limit, self._reserve)
        if (delay_s := self._postponed_s(source, payload)) > 0:
            return DueAction(member, "delay", b"%.6f" % delay_s)
        # Read before the middlewares, which may change the payload.
        lock, awaited = lock_of(payload, None), awaited_job_of(payload)
        self._choose_lock_key(payload)
        destination = self._destinations.resolve(payload)
        if awaited is not None and awaited.stays and self._transfer.is_remote(destination.shard):
            # Its batch is on this shard and counts it here; its caller waits for an answer here.
            destination = self._destinations.stay(payload, destination)
        if (first := self._step_before_transfer(member, payload, destination)) is not None:
            return first
        remote = self._transfer.is_remote(destination.shard)
        token = payload.pop(TRANSFER, "")
        payload.pop("at", None)
        payload.pop(DEFERRED, None)
        payload["queue"] = destination.queue
        # Only of a scheduled job: what the retry set has began to wait before its first run.
        scheduled = due if source == keys.SCHEDULE else None
        fix_expiry(payload, scheduled)
        payload.pop(SCHEDULED_AT, None)
        # Other programs may write any score.
        if (since := timestamp(scheduled)) is not None:
            payload[SCHEDULED_AT] = wire_timestamp(since)
        payload["enqueued_at"] = wire_timestamp(process_clock.now())
        if self._middleware and not self._run_middleware(payload, destination):
            # The status is written before the job is removed: after a death in between the job is planned again.
            write_status = partial(self._status_writer.write_last_if_tracked, payload, "discarded")
            report = partial(self._events.due_job_dropped, source, payload)
            return DueAction(
                member, "remove", before=write_status, on_done=report, lock_argument=_on_end(lock, awaited, "skipped")
            )
        queue = str(payload["queue"])
        lock_request, tell_duplicate = self._lock_request(payload, destination.shard)
        if remote and awaited is not None:
            leave_waiters(payload)
        data = _encode(member, payload)
        enqueued = _enqueued(payload, queue, destination.shard, len(data)) if job_events.observers else None
        if remote:
            return ShardTransfer(
                member,
                data,
                arrival_queue(payload, queue),
                destination.shard,
                token,
                lock_request,
                _on_transfer(lock, awaited),
                tell_duplicate,
                enqueued,
                looks_here=self._destinations.has_moves,
            )
        queue = arrival_queue(payload, queue)
        return DueAction(
            member, "queue", data, queue, lock_argument=lock_request, on_duplicate=tell_duplicate, enqueued=enqueued
        )

    def _step_before_transfer(
        self, member: bytes, payload: Payload, destination: QueueLocation
    ) -> DueAction | ShardTransfer | None:
        """Return the action that comes before a job may go to its destination."""
        token, shard = payload.get(TRANSFER), destination.shard
        marked_for = shard_of_token(token) if isinstance(token, str) else ""
        called_off = marked_for != shard and self._transfer.may_have(marked_for)
        other = marked_for if called_off else shard
        # First: a job that is not marked is free to go elsewhere while that shard is away.
        if self._transfer.is_remote(other) and self._transfer.is_unavailable(other):
            return DueAction(member, "delay")
        if called_off:
            gone = _on_transfer(lock_of(payload, None), awaited_job_of(payload))
            return ShardTransfer(member, b"", destination.queue, other, str(token), resources=gone, calls_off=True)
        if self._transfer.is_remote(shard) and not (isinstance(token, str) and token):
            payload[TRANSFER] = token_for(shard)
            return DueAction(member, "mark", rewrite(member, payload))
        return None

    def _postponed_s(self, source: str, payload: Payload) -> float:
        # A job that was not deferred before is, when it is fetched: so the job says why it waits.
        if self._postpones is None or source != keys.SCHEDULE or payload.get(DEFERRED) is not True:
            return 0.0
        worker: Any = registry.find(payload["class"])
        return 0.0 if worker is None else self._postpones(worker.declaration(), payload)

    def _lock_request(self, payload: Payload, shard: str) -> tuple[bytes, Callable[[Jid], None] | None]:
        """Return the encoded lock request of a deduplicated job, and the callback for a duplicate. Sets the job's lock key."""
        worker: Any = registry.find(payload["class"])
        jid = payload.get("jid")
        locks = self._locks
        if locks is None or worker is None or not isinstance(jid, str) or not jid:
            return b"", None
        declaration: Declaration = worker.declaration()
        policy = locks.policy(declaration, shard, scheduled=False)
        foreign = IDEMPOTENCY_KEY in payload and lock_of(payload, None) is None
        # A job whose window is over needs no lock: a later push has begun a window of its own.
        if policy is None or foreign or policy.has_window or not self._set_lock_key(locks, declaration, payload):
            return b"", None
        tracked = tracked_job(payload)
        status_command = tracked.command("discarded") if tracked is not None else None
        lock_request = locks.lock_request(payload, declaration, policy, status_command)
        on_duplicate = partial(locks.log_duplicate, payload, declaration, policy) if declaration.idempotent else None
        return lock_request.encode(), on_duplicate

    def _set_lock_key(self, locks: PushLocks, declaration: Declaration, payload: Payload) -> bool:
        """Set the lock key of a job that has none yet; return false for a job that equals no other."""
        if IDEMPOTENCY_KEY in payload:
            return True
        decompressed = dict(payload)
        try:
            self._decompress(decompressed)
            locks.set_key(payload, declaration, decompressed["args"])
            if is_encrypted(payload):
                self._protection.hide_lock_key(payload)
        except PayloadError:
            # Another writer's damaged arguments: its run handles them.
            return False
        return True

    def _choose_lock_key(self, payload: Payload) -> None:
        """Set the lock key of a job whose class is on several shards: it chooses one of them."""
        worker: Any = registry.find(payload["class"])
        if self._locks is None or worker is None or not worker.declaration().deduplicates:
            return
        declaration: Declaration = worker.declaration()
        shards = self._destinations.shards_of(declaration)
        if len(shards) == 1:
            return
        # Asked of one shard, so that all processes agree.
        policy = self._locks.policy(declaration, shards[0], scheduled=False)
        if policy is not None and not policy.has_window:
            self._set_lock_key(self._locks, declaration, payload)

    def _run_middleware(self, payload: Payload, destination: QueueLocation) -> bool:
        """Run the client middlewares over the payload with decompressed arguments; return whether they let the job pass."""
        stored = {name: payload[name] for name in ("args", COMPRESSED, ORIGINAL_SIZE) if name in payload}
        # Only a job that has a right signature gets another one: a forged job must not become a signed one.
        signed = self._protection.is_signed(payload)
        self._decompress(payload)
        before = to_json(payload["args"])
        worker: Any = registry.find(payload["class"])
        pool = self._transfer.pool(destination.shard)
        invocation = ChainInvocation(self._middleware, worker or payload["class"], payload, destination.queue, pool)
        with RoutedScope((destination.shard,)), invocation as reached_end:
            pass
        payload.pop(READ, None)
        if reached_end and to_json(payload["args"]) == before:
            # Unchanged arguments keep their compressed bytes.
            payload.update(stored)
            if signed:
                # The middleware may have changed other covered fields, such as the context.
                self._protection.sign(payload)
        elif reached_end:
            # A blob of the former arguments is left to the sweep: this step may not be the one that moves the job.
            payload.pop(OFFLOADED, None)
            self._limit_size(payload, None if worker is None else worker.declaration())
            self._protection.protect(payload, sign=signed)
        return reached_end

    def _limit_size(self, payload: Payload, declaration: Declaration | None) -> None:
        """Apply the size limits to arguments that a middleware has changed, as at a push."""
        big_payload = declaration is not None and declaration.big_payload
        compress = declaration is None or declaration.compress
        try:
            self._limiter.limit_payload(payload, dumps(payload["args"]), big_payload=big_payload, compress=compress)
        except PayloadError as error:
            raise _middleware_error(error) from error


def _enqueued(payload: Payload, queue: str, shard: str, size: int) -> JobsEnqueued:
    jid = payload.get("jid")
    return JobsEnqueued(
        payload["class"], queue=queue, shard=shard, jids=(jid if isinstance(jid, str) else None,), sizes=(size,)
    )


def _resources_of(member: bytes) -> str:
    """Return the resources of a member that cannot be planned, as far as it can be read."""
    try:
        payload = decode(member)
    except PayloadError:
        payload = loads_object(member)
    counter = quarantine_counter(payload.get("class"), "malformed")
    held = JobResources(lock_of(payload, None), awaited=awaited_job_of(payload), end_word="dead", counter=counter)
    return held.on_end()


def _on_end(lock: Lock | None, awaited: AwaitedJob | None, end_word: JobEnd) -> str:
    return "" if lock is None and awaited is None else JobResources(lock, awaited=awaited, end_word=end_word).on_end()


def _on_transfer(lock: Lock | None, awaited: AwaitedJob | None) -> str:
    return _on_end(lock, awaited, "" if awaited is None else "removed")


def _encode(member: bytes, payload: Payload) -> bytes:
    """Return the payload's bytes. An error here is the fault of a middleware, not of the member."""
    try:
        return rewrite(member, payload)
    except PayloadError as error:
        raise _middleware_error(error) from error


def _middleware_error(error: PayloadError) -> ValueError:
    return ValueError(f"a client middleware changed a due job: {error.reason}")
