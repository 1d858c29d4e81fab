"""The client: takes requests whose arguments are checked, runs the client middleware, writes to the class's shard."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.declare.request import BulkRequest, PushRequest, Route
from framework.errors import BulkPushError, ShardUnavailableError
from framework.middleware.chain import Call, Passage
from framework.push.encode import SizeLimits, encode
from framework.push.normalize import Normalizer
from framework.route.router import Router
from framework.shard.shard import Shard, Shards
from framework.telemetry import context
from framework.types import Jid, Json, Payload
from framework.wire.ids import draw_jid, draw_jids

BULK_SLICE = 1_000
"""Jobs per round trip (GitLab's and Sidekiq's figure)."""


class Client:
    """Pushes jobs. Safe to share between threads; connects when it first writes."""

    def __init__(
        self,
        shards: Shards,
        router: Router,
        *,
        middleware: tuple[Call, ...] = (),
        limits: SizeLimits | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._shards = shards
        self._router = router
        self._middleware = middleware
        self._limits = limits or SizeLimits()
        self._normalizer = Normalizer(clock)

    def route(self, declaration: Declaration) -> Route:
        """Return queue, shard and the rule that decided."""
        return self._router.route(declaration)

    def push(self, request: PushRequest) -> Jid | None:
        """Write one job and return its id, or ``None`` when a client middleware dropped it.

        Raises:
            ArgumentsError, ExceedLimitError: refused; nothing was written.
            ShardUnavailableError: the shard did not take it; see ``maybe_written``.
        """
        declaration = request.declaration
        declaration.signature.check(request.args)
        route = self._router.route(declaration)
        shard = self._shards[route.shard]
        payload = self._payload(request, draw_jid(), request.args, route)
        entry = self._admit(payload, declaration, request.at, shard)
        if entry is None:
            return None
        queue, data = entry
        if request.at is None:
            shard.enqueue_one(queue, data)
        else:
            shard.schedule(((request.at, data),))
        return str(payload["jid"])

    def payload_bytes(self, request: PushRequest) -> bytes | None:
        """Return what ``push`` would write now, without writing; ``None`` when a client middleware dropped it."""
        declaration = request.declaration
        declaration.signature.check(request.args)
        route = self._router.route(declaration)
        payload = self._payload(request, draw_jid(), request.args, route)
        entry = self._admit(payload, declaration, None, self._shards[route.shard])
        return None if entry is None else entry[1]

    def push_bulk(self, request: BulkRequest) -> list[Jid | None]:
        """Write jobs in slices of 1,000, one round trip each; return ids aligned with the input, ``None`` where dropped.

        Every job's arguments are checked before the first is written.

        Raises:
            ArgumentsError, ExceedLimitError: refused; nothing was written.
            BulkPushError: a later slice was refused (a middleware's own error included), or a shard failed; it says what is in.
        """
        check = request.declaration.signature.check
        for args in request.args:
            check(args)
        jids: list[Jid | None] = []
        for start in range(0, len(request.args), BULK_SLICE):
            try:
                jids += self._push_slice(request, start)
            except ShardUnavailableError as error:
                raise BulkPushError(jids, start, error) from error
            except Exception as error:  # a middleware may raise anything; the caller must learn what is in
                if start == 0:
                    raise
                raise BulkPushError(jids, start, error) from error
        return jids

    def _push_slice(self, request: BulkRequest, start: int) -> list[Jid | None]:
        declaration = request.declaration
        route = self._router.route(declaration)
        shard = self._shards[route.shard]
        slice_args = request.args[start : start + BULK_SLICE]
        drawn = draw_jids(len(slice_args))
        admitted: list[Jid | None] = []
        waiting: dict[str, list[bytes]] = {}
        scheduled: list[tuple[float, bytes]] = []
        for offset, (args, jid) in enumerate(zip(slice_args, drawn, strict=True)):
            at = request.at[start + offset] if isinstance(request.at, list) else request.at
            extra = context.meta(request.contexts[start + offset]) if request.contexts else None
            payload = self._payload(request, jid, args, route, extra)
            entry = self._admit(payload, declaration, at, shard)
            admitted.append(None if entry is None else str(payload["jid"]))
            if entry is None:
                continue
            if at is None:
                waiting.setdefault(entry[0], []).append(entry[1])
            else:
                scheduled.append((at, entry[1]))
        self._write(shard, waiting, scheduled)
        return admitted

    def _write(
        self, shard: Shard, waiting: Mapping[str, Sequence[bytes]], scheduled: Sequence[tuple[float, bytes]]
    ) -> None:
        if waiting:
            shard.enqueue(waiting)
        if scheduled:
            shard.schedule(scheduled)

    def _payload(
        self,
        request: PushRequest | BulkRequest,
        jid: Jid,
        args: list[Any],
        route: Route,
        extra: Mapping[str, Json] | None = None,
    ) -> Payload:
        queue = request.options.get("queue") or route.queue
        return self._normalizer.payload(request.declaration, args, jid, queue, options=request.options, extra=extra)

    def _admit(
        self, payload: Payload, declaration: Declaration, at: float | None, shard: Shard
    ) -> tuple[str, bytes] | None:
        """Take a payload through the client middleware; return queue and bytes, or ``None`` when it was dropped."""
        if at is None:
            payload["enqueued_at"] = self._normalizer.now()
        if self._middleware:
            worker = registry.find(declaration.wire_name)
            with Passage(self._middleware, worker, payload, payload["queue"], shard.client) as open_:
                if not open_:
                    return None
        return payload["queue"], encode(payload, self._limits, big_payload=declaration.big_payload)
