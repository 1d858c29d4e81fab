"""Pushes that a client middleware stands around: each job is a dict that it may change, send elsewhere or drop."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.declare.request import BulkRequest, PushRequest, Route
from framework.declare.slices import SLICE
from framework.errors import ExceedLimitError
from framework.middleware.chain import Call, Passage
from framework.push.normalize import NO_CONTEXT, Normalizer, Stamps
from framework.push.size_limiter import SizeLimiter
from framework.route.router import Router
from framework.shard.shard import Shard, Shards
from framework.shard.validator import Block
from framework.telemetry import context
from framework.types import Jid, Json, Payload
from framework.wire.ids import draw_jid, draw_jids
from framework.wire.status import Mark, tracked


class Around:
    """Takes jobs whose arguments are bound and checked through a compiled chain. Shared between threads."""

    def __init__(
        self,
        shards: Shards,
        router: Router,
        middleware: tuple[Call, ...],
        limiter: SizeLimiter,
        stamps: Stamps,
        clock: Callable[[], float],
    ) -> None:
        self._shards = shards
        self._router = router
        self._middleware = middleware
        self._limiter = limiter
        self._stamps = stamps
        self._normalizer = Normalizer(clock)

    def push(self, request: PushRequest) -> Jid | None:
        """Write one job and return its id, or ``None`` when it was dropped; errors as ``Client.push``."""
        route = self._router.route_push(request.declaration, request.options)
        shard = self._shards[route.shard]
        payload = self._payload(request, draw_jid(), request.args, route, self._stamped(request))
        entry = self._admit(payload, request.declaration, request.at, shard)
        if entry is None:
            return None
        queue, data = entry
        marks = _marks(payload, request.at)
        if request.at is None:
            shard.enqueue_one(queue, data, marks)
        else:
            shard.schedule(((request.at, data),), marks)
        return str(payload["jid"])

    def payload_bytes(self, request: PushRequest) -> bytes | None:
        """Return what ``push`` would write to a queue, without writing; ``None`` when it was dropped."""
        route = self._router.route_push(request.declaration, request.options)
        payload = self._payload(request, draw_jid(), request.args, route, NO_CONTEXT)
        entry = self._admit(payload, request.declaration, None, self._shards[route.shard])
        return None if entry is None else entry[1]

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
        admitted: list[Jid | None] = []
        waiting: dict[str, list[bytes]] = {}
        scheduled: list[tuple[float, bytes]] = []
        marks: list[Mark] = []
        drawn = draw_jids(len(slice_args))
        stamped = self._stamped(request)
        for index, (args, jid) in enumerate(zip(slice_args, drawn, strict=True), start):
            at = request.due(index)
            extra = context.meta(request.contexts[index]) if request.contexts else None
            payload = self._payload(request, jid, args, route, stamped, extra)
            try:
                entry = self._admit(payload, declaration, at, shard)
            except ExceedLimitError as error:
                raise error.of_job(index) from None
            admitted.append(None if entry is None else str(payload["jid"]))
            if entry is None:
                continue
            marks += _marks(payload, at)
            if at is None:
                waiting.setdefault(entry[0], []).append(entry[1])
            else:
                scheduled.append((at, entry[1]))
        if waiting:
            shard.enqueue(waiting, marks)
        if scheduled:
            shard.schedule(scheduled, marks)
        return admitted

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
        stamp = self._stamps(request.declaration)
        return NO_CONTEXT if stamp is None else stamp()

    def _admit(
        self, payload: Payload, declaration: Declaration, at: float | None, shard: Shard
    ) -> tuple[str, bytes] | None:
        """Take a payload through the client middleware; return queue and bytes, or ``None`` when it was dropped."""
        if at is None:
            payload["enqueued_at"] = self._normalizer.now()
        if self._middleware:
            worker = registry.find(declaration.wire_name)
            passage = Passage(self._middleware, worker, payload, payload["queue"], shard.pool)
            with Block((shard.name,)), passage as open_:
                if not open_:
                    return None
        return payload["queue"], self._limiter.encode(payload, big_payload=declaration.big_payload)


def _marks(payload: Payload, at: float | None) -> tuple[Mark, ...]:
    """Return what says that the job waits, if it is tracked; a middleware may have seen to that."""
    found = tracked(payload)
    return () if found is None else (found.mark_queued(at),)
