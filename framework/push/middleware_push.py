"""Push jobs as dicts: client middlewares may change, redirect or drop each job, and duplicates are dropped."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from framework.declare import registry
from framework.declare.bulk import CHUNK_SIZE
from framework.declare.declaration import Declaration
from framework.declare.per_class import PerClass
from framework.declare.policy_options import Deduplicate
from framework.declare.request import BulkRequest, DueTime, PushRequest, Route
from framework.errors import ArgumentsError, ExceedLimitError, ShardUnavailableError
from framework.middleware.chain import Call, ChainInvocation
from framework.push.bulk import PreparedChunk
from framework.push.lock_port import PushLocks
from framework.push.normalize import NO_CONTEXT, ExtraFields, ExtraFieldsFactory, Normalizer
from framework.push.schedule_writer import ScheduleWriter
from framework.push.size_limiter import SizeLimiter
from framework.push.unique_chunk import UniqueBatch, UniqueChunk
from framework.route.router import Router
from framework.shard.routing_validator import RoutedScope
from framework.shard.shard import Shard
from framework.shard.shards import Shards
from framework.telemetry import context
from framework.types import Jid, Json, Payload
from framework.wire.ids import generate_jid, generate_jids
from framework.wire.resources import IDEMPOTENCY_KEY, LockDetails, UniqueJobs, wal_positions_of
from framework.wire.status_key import StatusCommand, tracked_job


class PreparedJob(NamedTuple):
    """Hold a job ready to be written: its queue, its bytes, its due time and its payload."""

    queue: str
    data: bytes
    due: DueTime | None
    payload: Payload

    @property
    def jid(self) -> Jid:
        """Return the job's id, which a client middleware may have changed."""
        return str(self.payload["jid"])


class MiddlewarePusher:
    """Run jobs with bound and checked arguments through a compiled middleware chain and write them. Shared between threads."""

    def __init__(
        self,
        shards: Shards,
        router: Router,
        middleware: tuple[Call, ...],
        limiter: SizeLimiter,
        extra_fields: ExtraFieldsFactory,
        locks: PushLocks,
        schedule_writer: ScheduleWriter,
        clock: Callable[[], float],
    ) -> None:
        self._shards = shards
        self._router = router
        self._middleware = middleware
        self._limiter = limiter
        self._extra_fields: PerClass[ExtraFields | None] = PerClass(extra_fields)
        self._locks = locks
        self._schedule_writer = schedule_writer
        self._normalizer = Normalizer(clock)

    def push(self, request: PushRequest) -> Jid | None:
        """Write one job; return its id, or ``None`` if it was dropped. Raises the errors of ``Client.push``."""
        declaration, due = request.declaration, request.due
        route = self._router.route_push(declaration, request.options)
        shard = self._shards[route.shard]
        payload = self._build_payload(request, generate_jid(), request.args, route, self._current_extra_fields(request))
        policy = self._locks.policy(declaration, shard.name, scheduled=due is not None)
        entry = self._prepare_job(payload, declaration, due, shard, policy)
        if entry is None:
            return None
        if policy is not None:
            if entry.due is not None:
                self._schedule_writer.check_clock(shard)
            return self._unique_chunk(shard, declaration, policy, [entry]).write()[0]
        if entry.due is None:
            shard.enqueue_one(entry.queue, entry.data, _status_commands(entry))
        else:
            self._schedule_writer.write(shard, entry.data, entry.due, tracked_job(entry.payload))
        return entry.jid

    def prepare_copies(self, request: PushRequest, count: int) -> list[PreparedJob]:
        """Return ``count`` jobs that ``push`` would write to a queue now, without those that a middleware drops. Writes nothing."""
        declaration = request.declaration
        route = self._router.route_push(declaration, request.options)
        shard, extra_fields = self._shards[route.shard], self._current_extra_fields(request)
        payloads = (
            self._build_payload(request, generate_jid(), list(request.args), route, extra_fields) for _ in range(count)
        )
        prepared = (self._prepare_job(payload, declaration, None, shard, None) for payload in payloads)
        return [entry for entry in prepared if entry is not None]

    def payload_bytes(self, request: PushRequest) -> bytes | None:
        """Return the bytes that ``push`` would write to a queue, or ``None`` if the job would be dropped. Writes nothing."""
        route = self._router.route_push(request.declaration, request.options)
        payload = self._build_payload(request, generate_jid(), request.args, route, NO_CONTEXT)
        entry = self._prepare_job(payload, request.declaration, None, self._shards[route.shard])
        return None if entry is None else entry.data

    def chunk_source(self, request: BulkRequest, args: list[list[Any]]) -> Callable[[], PreparedChunk | None]:
        """Return a function that prepares one chunk per call."""
        return _PayloadChunks(
            self, request, args, self._router.route_push(request.declaration, request.options)
        ).prepare

    def first_due_at(self, route: Route, due: DueTime | None) -> float | None:
        """Return the due time of a bulk's first job by the clock of its Redis, or ``None`` for immediate jobs."""
        return None if due is None else self._schedule_writer.first_due_at(self._shards[route.shard], due)

    def prepare_chunk(
        self, request: BulkRequest, args: list[list[Any]], start: int, route: Route, first_due_at: float | None
    ) -> PreparedChunk:
        """Run the jobs of one chunk through the chain. ``first_due_at`` is the due time of the bulk's first job by Redis's clock."""
        declaration, shard = request.declaration, self._shards[route.shard]
        policy = self._locks.policy(declaration, shard.name, scheduled=request.due is not None)
        entries: list[PreparedJob | None] = []
        extra_fields = self._current_extra_fields(request)
        for index, (given, jid) in enumerate(zip(args, generate_jids(len(args)), strict=True), start):
            extra = context.meta(request.contexts[index]) if request.contexts else None
            payload = self._build_payload(request, jid, given, route, extra_fields, extra)
            due = None if request.due is None else DueTime(request.due.at + request.delay_s_of(index))
            try:
                entry = self._prepare_job(payload, declaration, due, shard, policy)
            except ExceedLimitError as error:
                raise error.for_bulk_index(index) from None

            # A due time set by a middleware stays. One computed with this host's clock is replaced by one of Redis's clock.
            if entry is not None and due is not None and entry.due == due and first_due_at is not None:
                entry = entry._replace(due=DueTime(first_due_at + request.delay_s_of(index)))
            entries.append(entry)
        if policy is None:
            return _PlainChunk(shard, entries)
        return self._unique_chunk(shard, declaration, policy, entries, generate_jid())

    def _unique_chunk(
        self,
        shard: Shard,
        declaration: Declaration,
        policy: Deduplicate,
        entries: Sequence[PreparedJob | None],
        token: str = "",
    ) -> UniqueChunk:
        """Return the writer of a deduplicated class's jobs, in one batch per queue: a middleware may have changed the queue."""
        by_queue: dict[str | None, dict[int, PreparedJob]] = {}
        for index, entry in enumerate(entries):
            if entry is not None:
                by_queue.setdefault(entry.queue if entry.due is None else None, {})[index] = entry
        terms = self._locks.lock_terms(declaration, policy)
        batches = [
            UniqueBatch(
                queue,
                list(jobs),
                UniqueJobs.of(terms, [job.data for job in jobs.values()], map(_lock_owner, jobs.values())),
            )
            for queue, jobs in by_queue.items()
        ]

        def log_duplicate(index: int, owner: Jid) -> None:
            entry = entries[index]
            assert entry is not None, "it was written"  # noqa: S101
            self._locks.log_duplicate(entry.payload, declaration, policy, owner)

        return UniqueChunk(shard, batches, len(entries), log_duplicate if declaration.idempotent else None, token)

    def _build_payload(
        self,
        request: PushRequest | BulkRequest,
        jid: Jid,
        args: list[Any],
        route: Route,
        extra_fields: Mapping[str, Json],
        job_context: Mapping[str, Json] | None = None,
    ) -> Payload:
        declaration, options = request.declaration, request.options
        payload = self._normalizer.payload(
            declaration, args, jid, route.queue, options=options, job_context=job_context
        )
        payload.update(extra_fields)
        return payload

    def _current_extra_fields(self, request: PushRequest | BulkRequest) -> Mapping[str, Json]:
        extra_fields = self._extra_fields.get(request.declaration)
        return NO_CONTEXT if extra_fields is None else extra_fields()

    def _prepare_job(
        self,
        payload: Payload,
        declaration: Declaration,
        due: DueTime | None,
        shard: Shard,
        policy: Deduplicate | None = None,
    ) -> PreparedJob | None:
        """Run a payload through the client middlewares; return the job to write, or ``None`` if it was dropped.

        With a ``policy`` the payload gets its lock key after the chain, because middlewares may change the arguments. The chain
        reads the due time of a delayed job in the field ``at`` (as in Sidekiq), by this host's clock.
        """
        if due is None:
            payload["enqueued_at"] = self._normalizer.now()
        if self._middleware:
            if due is not None:
                payload["at"] = due.at
            worker = registry.find(declaration.wire_name)
            invocation = ChainInvocation(self._middleware, worker, payload, payload["queue"], shard.pool)
            with RoutedScope((shard.name,)), invocation as reached_end:
                if not reached_end:
                    return None
            if due is not None:
                due = _due_after_middleware(declaration, payload.pop("at", due.at), due)
        if policy is not None:
            self._locks.set_key(payload, declaration, payload["args"])
        data = self._limiter.encode(payload, big_payload=declaration.big_payload, compress=declaration.compress)
        return PreparedJob(payload["queue"], data, due, payload)


def _due_after_middleware(declaration: Declaration, value: Any, due: DueTime) -> DueTime:
    """Return the due time after the chain: the value of ``at`` if a middleware changed it."""
    if value == due.at:
        return due
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        reason = f"is due at a {type(value).__name__}: a client middleware may put epoch seconds into `at`"
        raise ArgumentsError(declaration.wire_name, reason)
    return DueTime(float(value))


def _status_commands(entry: PreparedJob) -> tuple[StatusCommand, ...]:
    """Return the command that records a tracked job as queued or delayed; empty if untracked. A middleware may have set tracking."""
    found = tracked_job(entry.payload)
    if found is None:
        return ()
    due = entry.due
    if due is not None and due.delay_s is not None:
        return (found.delayed_command(due.delay_s),)
    return (found.queued_command(None if due is None else due.at),)


def _lock_owner(entry: PreparedJob) -> tuple[str, Jid, LockDetails]:
    """Return the lock key, the jid and the details of a job's lock request."""
    commands = _status_commands(entry)
    delay_s = None if entry.due is None else entry.due.delay_s
    at = None if entry.due is None or delay_s is not None else entry.due.at
    details = LockDetails(wal_positions_of(entry.payload), at, delay_s, commands[0][2:] if commands else ())
    return entry.payload[IDEMPOTENCY_KEY], entry.jid, details


class _PayloadChunks:
    """Prepare the chunks of one bulk push one after the other."""

    def __init__(self, pusher: MiddlewarePusher, request: BulkRequest, args: list[list[Any]], route: Route) -> None:
        self._pusher = pusher
        self._request = request
        self._args = args
        self._route = route
        self._start = 0
        self._first_due_at: float | None = None

    def prepare(self) -> PreparedChunk | None:
        """See ``BulkPush``."""
        start, route = self._start, self._route
        if start >= len(self._args):
            return None
        if self._first_due_at is None:
            self._first_due_at = self._pusher.first_due_at(route, self._request.due)
        chunk = self._pusher.prepare_chunk(
            self._request, self._args[start : start + CHUNK_SIZE], start, route, self._first_due_at
        )
        # Last: if a middleware raises, `resume` prepares the same chunk again.
        self._start += CHUNK_SIZE
        return chunk


class _PlainChunk:
    """Write the jobs of one chunk: one atomic write for each queue and one for the schedule set."""

    def __init__(self, shard: Shard, entries: Sequence[PreparedJob | None]) -> None:
        self._shard = shard
        self._entries = entries
        self._pending_by_queue: dict[str | None, list[PreparedJob]] = {}
        for entry in entries:
            if entry is not None:
                self._pending_by_queue.setdefault(entry.queue if entry.due is None else None, []).append(entry)
        self._tokens = dict(zip(self._pending_by_queue, generate_jids(len(self._pending_by_queue)), strict=True))
        self._tried: set[str | None] = set()

    @property
    def jids(self) -> Sequence[Jid]:
        """See ``PreparedChunk``."""
        return [entry.jid for entry in self._entries if entry is not None]

    def write(self) -> Sequence[Jid | None]:
        """See ``PreparedChunk``."""
        for queue, entries in list(self._pending_by_queue.items()):
            token = self._tokens[queue]
            try:
                # The token is checked before the statuses are written: the jobs of an earlier try may have started since,
                # and `queued` must not overwrite their status.
                if queue not in self._tried or not self._shard.is_pushed(token):
                    self._tried.add(queue)
                    self._write(queue, entries, token)
            except ShardUnavailableError as error:
                error.maybe_written = error.maybe_written or len(self._pending_by_queue) < len(self._tokens)
                raise
            del self._pending_by_queue[queue]
        return [None if entry is None else entry.jid for entry in self._entries]

    def _write(self, queue: str | None, entries: Sequence[PreparedJob], token: str) -> None:
        commands = [command for entry in entries for command in _status_commands(entry)]
        if queue is not None:
            self._shard.enqueue(queue, [entry.data for entry in entries], token, commands)
        else:
            scheduled = [(entry.due.at, entry.data) for entry in entries if entry.due is not None]
            self._shard.schedule(scheduled, token, commands)
