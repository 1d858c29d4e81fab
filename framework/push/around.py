"""Pushes that take a dict for each job: a client middleware may change it, send it elsewhere or drop it; duplicates are dropped."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.declare.policies import Deduplicate
from framework.declare.request import BulkRequest, Due, PushRequest, Route
from framework.declare.slices import SLICE
from framework.errors import ArgumentsError, ExceedLimitError, ShardUnavailableError
from framework.middleware.chain import Call, Passage
from framework.push.bulk import PreparedSlice
from framework.push.deduplication import Deduplicator
from framework.push.delays import Delays
from framework.push.normalize import NO_CONTEXT, Normalizer, Stamp, Stamps
from framework.push.size_limiter import SizeLimiter
from framework.route.router import Router
from framework.shard.shard import Shard
from framework.shard.shards import Shards
from framework.shard.validator import Block
from framework.telemetry import context
from framework.types import Jid, Json, Payload
from framework.wire.ids import draw_jid, draw_jids
from framework.wire.status import Mark, tracked


class Entry(NamedTuple):
    """A job that is to be written: where, its bytes, when it is due, and what they are."""

    queue: str
    data: bytes
    due: Due | None
    payload: Payload

    @property
    def jid(self) -> Jid:
        """Return its id, which a middleware may have changed."""
        return str(self.payload["jid"])


class Around:
    """Takes jobs whose arguments are bound and checked through a compiled chain. Shared between threads."""

    def __init__(
        self,
        shards: Shards,
        router: Router,
        middleware: tuple[Call, ...],
        limiter: SizeLimiter,
        stamps: Stamps,
        deduplicator: Deduplicator,
        delays: Delays,
        clock: Callable[[], float],
    ) -> None:
        self._shards = shards
        self._router = router
        self._middleware = middleware
        self._limiter = limiter
        self._stamps = stamps
        self._found: dict[str, tuple[Declaration, Stamp | None]] = {}
        self._deduplicator = deduplicator
        self._delays = delays
        self._normalizer = Normalizer(clock)

    def push(self, request: PushRequest) -> Jid | None:
        """Write one job and return its id, or ``None`` when it was dropped; errors as ``Client.push``."""
        declaration, due = request.declaration, request.due
        route = self._router.route_push(declaration, request.options)
        shard = self._shards[route.shard]
        payload = self._payload(request, draw_jid(), request.args, route, self._stamped(request))
        policy = self._deduplicator.policy(declaration, shard.name, scheduled=due is not None)
        entry = self._admit(payload, declaration, due, shard, policy)
        if entry is None:
            return None
        if policy is not None:
            if entry.due is not None:
                self._delays.look(shard)
            steps = self._steps(declaration, policy, [entry])
            return _Claimed(shard, steps, [entry], self._teller(declaration, policy)).write()[0]
        if entry.due is None:
            shard.enqueue_one(entry.queue, entry.data, _marks(entry))
        else:
            self._delays.write(shard, entry.data, entry.due, tracked(entry.payload))
        return entry.jid

    def copies(self, request: PushRequest, count: int) -> list[Entry]:
        """Return what so many pushes would write to a queue now, without writing; those that were dropped are left out."""
        declaration = request.declaration
        route = self._router.route_push(declaration, request.options)
        shard, stamped = self._shards[route.shard], self._stamped(request)
        payloads = (self._payload(request, draw_jid(), list(request.args), route, stamped) for _ in range(count))
        admitted = (self._admit(payload, declaration, None, shard, None) for payload in payloads)
        return [entry for entry in admitted if entry is not None]

    def payload_bytes(self, request: PushRequest) -> bytes | None:
        """Return what ``push`` would write to a queue, without writing; ``None`` when it was dropped."""
        route = self._router.route_push(request.declaration, request.options)
        payload = self._payload(request, draw_jid(), request.args, route, NO_CONTEXT)
        entry = self._admit(payload, request.declaration, None, self._shards[route.shard])
        return None if entry is None else entry.data

    def bulk(self, request: BulkRequest, args: list[list[Any]]) -> Callable[[], PreparedSlice | None]:
        """Return what prepares slice after slice."""
        return _Source(self, request, args, self._router.route_push(request.declaration, request.options)).prepare

    def begin(self, route: Route, due: Due | None) -> float | None:
        """Return when the first job of a bulk is due, by the clock of the Redis that it goes to; ``None`` for now."""
        return None if due is None else self._delays.begin(self._shards[route.shard], due)

    def prepare(
        self, request: BulkRequest, args: list[list[Any]], start: int, route: Route, first: float | None
    ) -> PreparedSlice:
        """Take the jobs of one slice through the chain; ``first``: when the bulk's first job is due, by Redis's clock."""
        declaration, shard = request.declaration, self._shards[route.shard]
        policy = self._deduplicator.policy(declaration, shard.name, scheduled=request.due is not None)
        entries: list[Entry | None] = []
        stamped = self._stamped(request)
        for index, (given, jid) in enumerate(zip(args, draw_jids(len(args)), strict=True), start):
            extra = context.meta(request.contexts[index]) if request.contexts else None
            payload = self._payload(request, jid, given, route, stamped, extra)
            due = None if request.due is None else Due(request.due.at + request.offset(index))
            try:
                entry = self._admit(payload, declaration, due, shard, policy)
            except ExceedLimitError as error:
                raise error.of_job(index) from None
            # A moment that a middleware chose stays; what this host's clock made of the delay becomes what Redis's does.
            if entry is not None and due is not None and entry.due == due and first is not None:
                entry = entry._replace(due=Due(first + request.offset(index)))
            entries.append(entry)
        if policy is None:
            return _Written(shard, entries)
        steps = self._steps(declaration, policy, entries)
        return _Claimed(shard, steps, entries, self._teller(declaration, policy), draw_jid())

    def _steps(self, declaration: Declaration, policy: Deduplicate, entries: Sequence[Entry | None]) -> "list[_Step]":
        """Return the steps that write jobs of a deduplicated class, each with its lock: one for each queue."""
        steps: dict[str | None, _Step] = {}
        for number, entry in enumerate(entries):
            if entry is not None:
                queue = entry.queue if entry.due is None else None
                step = steps.setdefault(queue, _Step(queue))
                step.numbers.append(number)
                step.entries.append(entry)
                step.jobs.append(self._job(entry, declaration, policy))
        return list(steps.values())

    def _teller(self, declaration: Declaration, policy: Deduplicate) -> "_Tell":
        """Return what tells of a job that had an owner, and returns its id, ``None`` if it was dropped."""

        def tell(entry: Entry, owner: Jid) -> Jid | None:
            if not owner or not declaration.idempotent:
                return entry.jid
            self._deduplicator.tell(entry.payload, declaration, policy, owner)
            return None

        return tell

    def _job(self, entry: Entry, declaration: Declaration, policy: Deduplicate) -> tuple[bytes, bytes]:
        marks = _marks(entry)
        mark = marks[0] if marks else None
        return entry.data, self._deduplicator.claim(entry.payload, declaration, policy, entry.due, mark).told()

    def _payload(
        self,
        request: PushRequest | BulkRequest,
        jid: Jid,
        args: list[Any],
        route: Route,
        stamped: Mapping[str, Json],
        extra: Mapping[str, Json] | None = None,
    ) -> Payload:
        declaration, options = request.declaration, request.options
        payload = self._normalizer.payload(declaration, args, jid, route.queue, options=options, extra=extra)
        payload.update(stamped)
        return payload

    def _stamped(self, request: PushRequest | BulkRequest) -> Mapping[str, Json]:
        declaration = request.declaration
        found = self._found.get(declaration.wire_name)
        # A reloaded class has a new declaration under its old name.
        if found is None or found[0] is not declaration:
            found = self._found[declaration.wire_name] = (declaration, self._stamps(declaration))
        stamp = found[1]
        return NO_CONTEXT if stamp is None else stamp()

    def _admit(
        self,
        payload: Payload,
        declaration: Declaration,
        due: Due | None,
        shard: Shard,
        policy: Deduplicate | None = None,
    ) -> Entry | None:
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
            passage = Passage(self._middleware, worker, payload, payload["queue"], shard.pool)
            with Block((shard.name,)), passage as open_:
                if not open_:
                    return None
            if due is not None:
                due = _chosen(declaration, payload.pop("at", due.at), due)
        if policy is not None:
            self._deduplicator.name(payload, declaration, payload["args"])
        data = self._limiter.encode(payload, big_payload=declaration.big_payload, compress=declaration.compress)
        return Entry(payload["queue"], data, due, payload)


def _chosen(declaration: Declaration, said: Any, due: Due) -> Due:
    """Return when a job is due after its chain: at another moment where a middleware has put one in ``at``."""
    if said == due.at:
        return due
    if isinstance(said, bool) or not isinstance(said, int | float) or not abs(said) <= sys.float_info.max:
        reason = f"is due at a {type(said).__name__}: a client middleware may put epoch seconds into `at`"
        raise ArgumentsError(declaration.wire_name, reason)
    return Due(float(said))


def _marks(entry: Entry) -> tuple[Mark, ...]:
    """Return what says that the job waits, if it is tracked; a middleware may have seen to that."""
    found = tracked(entry.payload)
    if found is None:
        return ()
    due = entry.due
    if due is not None and due.delay_s is not None:
        return (found.mark_delayed(due.delay_s),)
    return (found.mark_queued(None if due is None else due.at),)


class _Source:
    """The slices of one bulk, made when their turn comes."""

    def __init__(self, around: Around, request: BulkRequest, args: list[list[Any]], route: Route) -> None:
        self._around = around
        self._request = request
        self._args = args
        self._route = route
        self._start = 0
        self._first: float | None = None

    def prepare(self) -> PreparedSlice | None:
        """See ``BulkPush``."""
        start, route = self._start, self._route
        if start >= len(self._args):
            return None
        if self._first is None:
            self._first = self._around.begin(route, self._request.due)
        made = self._around.prepare(self._request, self._args[start : start + SLICE], start, route, self._first)
        self._start += SLICE
        return made


class _Written:
    """A slice of jobs that are written beside one another: for each queue, and for the schedule set, in one step."""

    def __init__(self, shard: Shard, entries: Sequence[Entry | None]) -> None:
        self._shard = shard
        self._entries = entries
        self._steps: dict[str | None, list[Entry]] = {}
        for entry in entries:
            if entry is not None:
                self._steps.setdefault(entry.queue if entry.due is None else None, []).append(entry)
        self._tokens = dict(zip(self._steps, draw_jids(len(self._steps)), strict=True))
        self._tried: set[str | None] = set()

    @property
    def jids(self) -> Sequence[Jid]:
        """See ``PreparedSlice``."""
        return [entry.jid for entry in self._entries if entry is not None]

    def write(self) -> Sequence[Jid | None]:
        """See ``PreparedSlice``."""
        for queue, entries in list(self._steps.items()):
            token = self._tokens[queue]
            try:
                # Asked before the states are written: those of jobs that are in may have gone on since.
                if queue not in self._tried or not self._shard.is_pushed(token):
                    self._tried.add(queue)
                    self._write(queue, entries, token)
            except ShardUnavailableError as error:
                error.maybe_written = error.maybe_written or len(self._steps) < len(self._tokens)
                raise
            del self._steps[queue]
        return [None if entry is None else entry.jid for entry in self._entries]

    def _write(self, queue: str | None, entries: Sequence[Entry], token: str) -> None:
        marks = [mark for entry in entries for mark in _marks(entry)]
        if queue is not None:
            self._shard.enqueue(queue, [entry.data for entry in entries], token, marks)
        else:
            scheduled = [(entry.due.at, entry.data) for entry in entries if entry.due is not None]
            self._shard.schedule(scheduled, token, marks)


@dataclass(slots=True)
class _Step:
    """Jobs of a deduplicated class for one queue, or the schedule set, and where in the slice they stand."""

    queue: str | None
    numbers: list[int] = field(default_factory=list[int])
    entries: list[Entry] = field(default_factory=list[Entry])
    jobs: list[tuple[bytes, bytes]] = field(default_factory=list[tuple[bytes, bytes]])


_Tell: TypeAlias = Callable[[Entry, Jid], Jid | None]


class _Claimed:
    """A slice of jobs of a deduplicated class: each is written with its lock, or dropped."""

    def __init__(
        self, shard: Shard, steps: Sequence[_Step], entries: Sequence[Entry | None], tell: _Tell, token: str = ""
    ) -> None:
        self._shard = shard
        self._left = list(enumerate(steps))
        self._found: list[Jid | None] = [None] * len(entries)
        self._tell = tell
        self._token = token
        self._some = False
        self.jids: Sequence[Jid] = [entry.jid for entry in entries if entry is not None]

    def write(self) -> Sequence[Jid | None]:
        """See ``PreparedSlice``; steps that were done before are not repeated, one in doubt says again what it found."""
        while self._left:
            position, step = self._left[0]
            token = f"{self._token}:{position}" if self._token else ""
            try:
                owners = self._shard.admit(step.queue, step.jobs, token)
            except ShardUnavailableError as error:
                error.maybe_written = error.maybe_written or self._some
                raise
            self._some = True
            del self._left[0]
            for number, entry, owner in zip(step.numbers, step.entries, owners, strict=True):
                self._found[number] = self._tell(entry, owner)
        return self._found
