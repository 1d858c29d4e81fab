"""Pushes that take a dict for each job: a client middleware may change it, send it elsewhere or drop it; duplicates are dropped."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from framework.declare import registry
from framework.declare.bulk import CHUNK_SIZE
from framework.declare.declaration import Declaration
from framework.declare.policy_options import Deduplicate
from framework.declare.request import BulkRequest, DueTime, PushRequest, Route
from framework.errors import ArgumentsError, ExceedLimitError, ShardUnavailableError
from framework.middleware.chain import Call, ChainInvocation
from framework.push.bulk import PreparedChunk
from framework.push.deduplication import Deduplicator
from framework.push.normalize import NO_CONTEXT, ExtraFields, ExtraFieldsFactory, Normalizer
from framework.push.schedule_writer import ScheduleWriter
from framework.push.size_limiter import SizeLimiter
from framework.route.router import Router
from framework.shard.routing_validator import RoutedScope
from framework.shard.shard import Shard
from framework.shard.shards import Shards
from framework.telemetry import context
from framework.types import Jid, Json, Payload
from framework.wire.ids import generate_jid, generate_jids
from framework.wire.status_key import StatusCommand, tracked_job


class PreparedJob(NamedTuple):
    """A job that is to be written: where, its bytes, when it is due, and what they are."""

    queue: str
    data: bytes
    due: DueTime | None
    payload: Payload

    @property
    def jid(self) -> Jid:
        """Return its id, which a middleware may have changed."""
        return str(self.payload["jid"])


class MiddlewarePusher:
    """Takes jobs whose arguments are bound and checked through a compiled chain. Shared between threads."""

    def __init__(
        self,
        shards: Shards,
        router: Router,
        middleware: tuple[Call, ...],
        limiter: SizeLimiter,
        extra_fields: ExtraFieldsFactory,
        deduplicator: Deduplicator,
        schedule_writer: ScheduleWriter,
        clock: Callable[[], float],
    ) -> None:
        self._shards = shards
        self._router = router
        self._middleware = middleware
        self._limiter = limiter
        self._extra_fields_for = extra_fields
        self._extra_fields_by_class: dict[str, tuple[Declaration, ExtraFields | None]] = {}
        self._deduplicator = deduplicator
        self._schedule_writer = schedule_writer
        self._normalizer = Normalizer(clock)

    def push(self, request: PushRequest) -> Jid | None:
        """Write one job and return its id, or ``None`` when it was dropped; errors as ``Client.push``."""
        declaration, due = request.declaration, request.due
        route = self._router.route_push(declaration, request.options)
        shard = self._shards[route.shard]
        payload = self._build_payload(request, generate_jid(), request.args, route, self._current_extra_fields(request))
        policy = self._deduplicator.policy(declaration, shard.name, scheduled=due is not None)
        entry = self._prepare_job(payload, declaration, due, shard, policy)
        if entry is None:
            return None
        if policy is not None:
            if entry.due is not None:
                self._schedule_writer.check_clock(shard)
            steps = self._group_by_queue(declaration, policy, [entry])
            return _DeduplicatedChunk(shard, steps, [entry], self._result_resolver(declaration, policy)).write()[0]
        if entry.due is None:
            shard.enqueue_one(entry.queue, entry.data, _status_commands(entry))
        else:
            self._schedule_writer.write(shard, entry.data, entry.due, tracked_job(entry.payload))
        return entry.jid

    def prepare_copies(self, request: PushRequest, count: int) -> list[PreparedJob]:
        """Return what so many pushes would write to a queue now, without writing; those that were dropped are left out."""
        declaration = request.declaration
        route = self._router.route_push(declaration, request.options)
        shard, stamped = self._shards[route.shard], self._current_extra_fields(request)
        payloads = (
            self._build_payload(request, generate_jid(), list(request.args), route, stamped) for _ in range(count)
        )
        admitted = (self._prepare_job(payload, declaration, None, shard, None) for payload in payloads)
        return [entry for entry in admitted if entry is not None]

    def payload_bytes(self, request: PushRequest) -> bytes | None:
        """Return what ``push`` would write to a queue, without writing; ``None`` when it was dropped."""
        route = self._router.route_push(request.declaration, request.options)
        payload = self._build_payload(request, generate_jid(), request.args, route, NO_CONTEXT)
        entry = self._prepare_job(payload, request.declaration, None, self._shards[route.shard])
        return None if entry is None else entry.data

    def chunk_source(self, request: BulkRequest, args: list[list[Any]]) -> Callable[[], PreparedChunk | None]:
        """Return what prepares slice after slice."""
        return _PayloadChunks(
            self, request, args, self._router.route_push(request.declaration, request.options)
        ).prepare

    def first_due_at(self, route: Route, due: DueTime | None) -> float | None:
        """Return when the first job of a bulk is due, by the clock of the Redis that it goes to; ``None`` for now."""
        return None if due is None else self._schedule_writer.first_due_at(self._shards[route.shard], due)

    def prepare_chunk(
        self, request: BulkRequest, args: list[list[Any]], start: int, route: Route, first_due_at: float | None
    ) -> PreparedChunk:
        """Take the jobs of one slice through the chain; ``first``: when the bulk's first job is due, by Redis's clock."""
        declaration, shard = request.declaration, self._shards[route.shard]
        policy = self._deduplicator.policy(declaration, shard.name, scheduled=request.due is not None)
        entries: list[PreparedJob | None] = []
        stamped = self._current_extra_fields(request)
        for index, (given, jid) in enumerate(zip(args, generate_jids(len(args)), strict=True), start):
            extra = context.meta(request.contexts[index]) if request.contexts else None
            payload = self._build_payload(request, jid, given, route, stamped, extra)
            due = None if request.due is None else DueTime(request.due.at + request.delay_s_of(index))
            try:
                entry = self._prepare_job(payload, declaration, due, shard, policy)
            except ExceedLimitError as error:
                raise error.for_bulk_index(index) from None
            # A moment that a middleware chose stays; what this host's clock made of the delay becomes what Redis's does.
            if entry is not None and due is not None and entry.due == due and first_due_at is not None:
                entry = entry._replace(due=DueTime(first_due_at + request.delay_s_of(index)))
            entries.append(entry)
        if policy is None:
            return _PlainChunk(shard, entries)
        steps = self._group_by_queue(declaration, policy, entries)
        return _DeduplicatedChunk(shard, steps, entries, self._result_resolver(declaration, policy), generate_jid())

    def _group_by_queue(
        self, declaration: Declaration, policy: Deduplicate, entries: Sequence[PreparedJob | None]
    ) -> "list[_QueueBatch]":
        """Return the steps that write jobs of a deduplicated class, each with its lock: one for each queue."""
        steps: dict[str | None, _QueueBatch] = {}
        for number, entry in enumerate(entries):
            if entry is not None:
                queue = entry.queue if entry.due is None else None
                step = steps.setdefault(queue, _QueueBatch(queue))
                step.indexes.append(number)
                step.entries.append(entry)
                step.jobs.append(self._encode_with_lock_request(entry, declaration, policy))
        return list(steps.values())

    def _result_resolver(self, declaration: Declaration, policy: Deduplicate) -> "_ResolveResult":
        """Return what tells of a job that had an owner, and returns its id, ``None`` if it was dropped."""

        def tell(entry: PreparedJob, owner: Jid) -> Jid | None:
            if not owner or not declaration.idempotent:
                return entry.jid
            self._deduplicator.log_duplicate(entry.payload, declaration, policy, owner)
            return None

        return tell

    def _encode_with_lock_request(
        self, entry: PreparedJob, declaration: Declaration, policy: Deduplicate
    ) -> tuple[bytes, bytes]:
        marks = _status_commands(entry)
        mark = marks[0] if marks else None
        return entry.data, self._deduplicator.lock_request(entry.payload, declaration, policy, entry.due, mark).encode()

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
        declaration = request.declaration
        found = self._extra_fields_by_class.get(declaration.wire_name)
        # A reloaded class has a new declaration under its old name.
        if found is None or found[0] is not declaration:
            found = self._extra_fields_by_class[declaration.wire_name] = (
                declaration,
                self._extra_fields_for(declaration),
            )
        stamp = found[1]
        return NO_CONTEXT if stamp is None else stamp()

    def _prepare_job(
        self,
        payload: Payload,
        declaration: Declaration,
        due: DueTime | None,
        shard: Shard,
        policy: Deduplicate | None = None,
    ) -> PreparedJob | None:
        """Take a payload through the client middleware; return what is to be written, ``None`` when it was dropped.

        With a ``policy`` it names its lock: what the middlewares have made of its arguments makes it equal to others. The chain
        sees when a job for later is due, in the field ``at`` (Sidekiq), by this host's clock.
        """
        if due is None:
            payload["enqueued_at"] = self._normalizer.now()
        if self._middleware:
            if due is not None:
                payload["at"] = due.at
            worker = registry.find(declaration.wire_name)
            passage = ChainInvocation(self._middleware, worker, payload, payload["queue"], shard.pool)
            with RoutedScope((shard.name,)), passage as open_:
                if not open_:
                    return None
            if due is not None:
                due = _due_after_middleware(declaration, payload.pop("at", due.at), due)
        if policy is not None:
            self._deduplicator.set_key(payload, declaration, payload["args"])
        data = self._limiter.encode(payload, big_payload=declaration.big_payload, compress=declaration.compress)
        return PreparedJob(payload["queue"], data, due, payload)


def _due_after_middleware(declaration: Declaration, value: Any, due: DueTime) -> DueTime:
    """Return when a job is due after its chain: at another moment where a middleware has put one in ``at``."""
    if value == due.at:
        return due
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        reason = f"is due at a {type(value).__name__}: a client middleware may put epoch seconds into `at`"
        raise ArgumentsError(declaration.wire_name, reason)
    return DueTime(float(value))


def _status_commands(entry: PreparedJob) -> tuple[StatusCommand, ...]:
    """Return what says that the job waits, if it is tracked; a middleware may have seen to that."""
    found = tracked_job(entry.payload)
    if found is None:
        return ()
    due = entry.due
    if due is not None and due.delay_s is not None:
        return (found.delayed_command(due.delay_s),)
    return (found.queued_command(None if due is None else due.at),)


class _PayloadChunks:
    """The slices of one bulk, made when their turn comes."""

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
        made = self._pusher.prepare_chunk(
            self._request, self._args[start : start + CHUNK_SIZE], start, route, self._first_due_at
        )
        self._start += CHUNK_SIZE
        return made


class _PlainChunk:
    """A slice of jobs that are written beside one another: for each queue, and for the schedule set, in one step."""

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
                # Asked before the states are written: those of jobs that are in may have gone on since.
                if queue not in self._tried or not self._shard.is_pushed(token):
                    self._tried.add(queue)
                    self._write(queue, entries, token)
            except ShardUnavailableError as error:
                error.maybe_written = error.maybe_written or len(self._pending_by_queue) < len(self._tokens)
                raise
            del self._pending_by_queue[queue]
        return [None if entry is None else entry.jid for entry in self._entries]

    def _write(self, queue: str | None, entries: Sequence[PreparedJob], token: str) -> None:
        marks = [mark for entry in entries for mark in _status_commands(entry)]
        if queue is not None:
            self._shard.enqueue(queue, [entry.data for entry in entries], token, marks)
        else:
            scheduled = [(entry.due.at, entry.data) for entry in entries if entry.due is not None]
            self._shard.schedule(scheduled, token, marks)


@dataclass(slots=True)
class _QueueBatch:
    """Jobs of a deduplicated class for one queue, or the schedule set, and where in the slice they stand."""

    queue: str | None
    indexes: list[int] = field(default_factory=list[int])
    entries: list[PreparedJob] = field(default_factory=list[PreparedJob])
    jobs: list[tuple[bytes, bytes]] = field(default_factory=list[tuple[bytes, bytes]])


_ResolveResult: TypeAlias = Callable[[PreparedJob, Jid], Jid | None]


class _DeduplicatedChunk:
    """A slice of jobs of a deduplicated class: each is written with its lock, or dropped."""

    def __init__(
        self,
        shard: Shard,
        batches: Sequence[_QueueBatch],
        entries: Sequence[PreparedJob | None],
        resolve_result: _ResolveResult,
        token: str = "",
    ) -> None:
        self._shard = shard
        self._remaining = list(enumerate(batches))
        self._results: list[Jid | None] = [None] * len(entries)
        self._resolve_result = resolve_result
        self._token = token
        self._any_written = False
        self.jids: Sequence[Jid] = [entry.jid for entry in entries if entry is not None]

    def write(self) -> Sequence[Jid | None]:
        """See ``PreparedChunk``; steps that were done before are not repeated, one in doubt says again what it found."""
        while self._remaining:
            position, step = self._remaining[0]
            token = f"{self._token}:{position}" if self._token else ""
            try:
                owners = self._shard.enqueue_unique(step.queue, step.jobs, token)
            except ShardUnavailableError as error:
                error.maybe_written = error.maybe_written or self._any_written
                raise
            self._any_written = True
            del self._remaining[0]
            for number, entry, owner in zip(step.indexes, step.entries, owners, strict=True):
                self._results[number] = self._resolve_result(entry, owner)
        return self._results
