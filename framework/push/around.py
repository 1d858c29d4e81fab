"""Pushes that take a dict for each job: a client middleware may change it, send it elsewhere or drop it; duplicates are dropped."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.declare.policies import Deduplicate
from framework.declare.request import BulkRequest, PushRequest, Route
from framework.declare.slices import SLICE
from framework.errors import ExceedLimitError, ShardUnavailableError
from framework.middleware.chain import Call, Passage
from framework.push.deduplication import Deduplicator
from framework.push.normalize import NO_CONTEXT, Normalizer, Stamp, Stamps
from framework.push.size_limiter import SizeLimiter
from framework.route.router import Router
from framework.shard.shard import Shard, Shards
from framework.shard.validator import Block
from framework.telemetry import context
from framework.types import Jid, Json, Payload
from framework.wire.ids import draw_jid, draw_jids
from framework.wire.status import Mark, tracked


class Entry(NamedTuple):
    """A job that is to be written: where, its bytes, when it is due, and what they are."""

    queue: str
    data: bytes
    at: float | None
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
        clock: Callable[[], float],
    ) -> None:
        self._shards = shards
        self._router = router
        self._middleware = middleware
        self._limiter = limiter
        self._stamps = stamps
        self._found: dict[str, tuple[Declaration, Stamp | None]] = {}
        self._deduplicator = deduplicator
        self._normalizer = Normalizer(clock)

    def push(self, request: PushRequest) -> Jid | None:
        """Write one job and return its id, or ``None`` when it was dropped; errors as ``Client.push``."""
        declaration, at = request.declaration, request.at
        route = self._router.route_push(declaration, request.options)
        shard = self._shards[route.shard]
        payload = self._payload(request, draw_jid(), request.args, route, self._stamped(request))
        policy = self._deduplicator.policy(declaration, shard.name, scheduled=at is not None)
        entry = self._admit(payload, declaration, at, shard, policy)
        if entry is None:
            return None
        if policy is not None:
            return self._claim(shard, declaration, policy, [entry])[0]
        marks = _marks(payload, at)
        if at is None:
            shard.enqueue_one(entry.queue, entry.data, marks)
        else:
            shard.schedule(((at, entry.data),), marks)
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

    def slices(self, request: BulkRequest, args: list[list[Any]]) -> Iterator[list[Jid | None]]:
        """Write slice after slice and tell the ids of each."""
        route = self._router.route_push(request.declaration, request.options)
        for start in range(0, len(args), SLICE):
            yield self._push_slice(request, args[start : start + SLICE], start, route)

    def _push_slice(
        self, request: BulkRequest, slice_args: list[list[Any]], start: int, route: Route
    ) -> list[Jid | None]:
        declaration = request.declaration
        shard = self._shards[route.shard]
        policy = self._deduplicator.policy(declaration, shard.name, scheduled=request.at is not None)
        entries: list[Entry | None] = []
        drawn = draw_jids(len(slice_args))
        stamped = self._stamped(request)
        for index, (args, jid) in enumerate(zip(slice_args, drawn, strict=True), start):
            extra = context.meta(request.contexts[index]) if request.contexts else None
            payload = self._payload(request, jid, args, route, stamped, extra)
            try:
                entries.append(self._admit(payload, declaration, request.due(index), shard, policy))
            except ExceedLimitError as error:
                raise error.of_job(index) from None
        admitted = [entry for entry in entries if entry is not None]
        if policy is None:
            _write(shard, admitted)
            return [None if entry is None else entry.jid for entry in entries]
        found = iter(self._claim(shard, declaration, policy, admitted))
        return [None if entry is None else next(found) for entry in entries]

    def _claim(
        self, shard: Shard, declaration: Declaration, policy: Deduplicate, entries: Sequence[Entry]
    ) -> list[Jid | None]:
        """Write jobs of a deduplicated class, each with its lock; return their ids, ``None`` where it was dropped."""
        tell, jids = self._deduplicator.tell, dict[int, Jid | None]()
        groups: dict[str | None, list[int]] = {}
        for number, entry in enumerate(entries):
            groups.setdefault(entry.queue if entry.at is None else None, []).append(number)
        for queue, numbers in groups.items():
            jobs = [self._job(entries[number], declaration, policy) for number in numbers]
            try:
                owners = shard.admit(queue, jobs)
            except ShardUnavailableError as error:
                error.maybe_written = error.maybe_written or bool(jids)
                raise
            for number, owner in zip(numbers, owners, strict=True):
                entry = entries[number]
                jids[number] = entry.jid if not owner or not declaration.idempotent else None
                if jids[number] is None:
                    tell(entry.payload, declaration, policy, owner)
        return [jids[number] for number in range(len(entries))]

    def _job(self, entry: Entry, declaration: Declaration, policy: Deduplicate) -> tuple[bytes, bytes]:
        marks = _marks(entry.payload, entry.at)
        mark = marks[0] if marks else None
        return entry.data, self._deduplicator.claim(entry.payload, declaration, policy, entry.at, mark).told()

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
        at: float | None,
        shard: Shard,
        policy: Deduplicate | None = None,
    ) -> Entry | None:
        """Take a payload through the client middleware; return what is to be written, ``None`` when it was dropped.

        With a ``policy`` it names its lock: what the middlewares have made of its arguments makes it equal to others.
        """
        if at is None:
            payload["enqueued_at"] = self._normalizer.now()
        if self._middleware:
            worker = registry.find(declaration.wire_name)
            passage = Passage(self._middleware, worker, payload, payload["queue"], shard.pool)
            with Block((shard.name,)), passage as open_:
                if not open_:
                    return None
        if policy is not None:
            self._deduplicator.name(payload, declaration, payload["args"])
        data = self._limiter.encode(payload, big_payload=declaration.big_payload)
        return Entry(payload["queue"], data, at, payload)


def _write(shard: Shard, entries: Sequence[Entry]) -> None:
    waiting: dict[str, list[bytes]] = {}
    marks: list[Mark] = []
    for entry in entries:
        marks += _marks(entry.payload, entry.at)
        if entry.at is None:
            waiting.setdefault(entry.queue, []).append(entry.data)
    if waiting:
        shard.enqueue(waiting, marks)
    scheduled = [(entry.at, entry.data) for entry in entries if entry.at is not None]
    if scheduled:
        shard.schedule(scheduled, marks)


def _marks(payload: Payload, at: float | None) -> tuple[Mark, ...]:
    """Return what says that the job waits, if it is tracked; a middleware may have seen to that."""
    found = tracked(payload)
    return () if found is None else (found.mark_queued(at),)
