"""The client: takes requests, runs the client middleware where there is any, writes to the class's shard."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from framework.declare.declaration import Declaration
from framework.declare.request import BulkRequest, PushRequest, Route
from framework.declare.slices import SLICE, bind_all, json_slices
from framework.errors import ArgumentsError, BulkPushError, PayloadError, ShardUnavailableError
from framework.middleware.chain import Call
from framework.push.around import Around
from framework.push.encode import SizeLimits
from framework.push.normalize import handed_down
from framework.push.strictness import Strictness
from framework.push.template import JobTemplate
from framework.route.router import Router
from framework.shard.shard import Shard, Shards
from framework.telemetry import context
from framework.types import Jid
from framework.wire.ids import draw_jid, draw_jids
from framework.wire.job import stamp_json
from framework.wire.json import dumps_exact


class Way(NamedTuple):
    """Where one class's jobs go, worked out once."""

    declaration: Declaration
    shard: Shard
    template: JobTemplate


class Client:
    """Pushes jobs. Safe to share between threads; connects when it first writes."""

    def __init__(
        self,
        shards: Shards,
        router: Router,
        *,
        middleware: tuple[Call, ...] = (),
        limits: SizeLimits | None = None,
        strictness: Strictness | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._shards = shards
        self._router = router
        self._limits = limits or SizeLimits()
        self._strictness = strictness or Strictness()
        self._clock = clock
        self._ways: dict[str, Way] = {}
        self._around = Around(shards, router, middleware, self._limits, clock)
        self._has_middleware = bool(middleware)

    def route(self, declaration: Declaration) -> Route:
        """Return queue, shard and the rule that decided."""
        return self._router.route(declaration)

    def push(self, request: PushRequest) -> Jid | None:
        """Write one job and return its id, or ``None`` when a client middleware dropped it.

        Raises:
            ArgumentsError, ExceedLimitError: refused; nothing was written.
            ShardUnavailableError: the shard did not take it; see ``maybe_written``.
        """
        declaration, args, at, options = request
        try:
            declaration.signature.check(args)
        except ArgumentsError as error:
            args = self._strictness.loosened(declaration, args, error)
            request = request._replace(args=args)
        if self._has_middleware:
            return self._around.push(request)
        way = self._way(declaration, options)
        try:
            arguments = dumps_exact(args, inside=1)
        except PayloadError as error:
            raise ArgumentsError(declaration.wire_name, f"refused: {error.reason}") from error
        jid, now = draw_jid(), stamp_json(self._clock())
        payload = way.template.one(arguments, jid.encode(), now, handed_down(declaration), waits=at is not None)
        if at is None:
            way.shard.enqueue_one(way.template.queue, payload)
        else:
            way.shard.schedule(((at, payload),))
        return jid

    def payload_bytes(self, request: PushRequest) -> bytes | None:
        """Return what ``push`` would write now, without writing; ``None`` when a client middleware dropped it."""
        try:
            request.declaration.signature.check(request.args)
        except ArgumentsError as error:
            request = request._replace(args=self._strictness.loosened(request.declaration, request.args, error))
        return self._around.payload_bytes(request)

    def push_bulk(self, request: BulkRequest) -> list[Jid | None]:
        """Write jobs in slices of 1,000, one round trip each; return ids aligned with the input, ``None`` where dropped.

        Every job's arguments are checked before the first is written.

        Raises:
            ArgumentsError, ExceedLimitError: refused; nothing was written.
            BulkPushError: a later slice was refused (a middleware's own error included), or a shard failed; it says what is in.
        """
        signature = request.declaration.signature
        loosener = self._strictness.loosener(request.declaration)
        written: Iterator[Sequence[Jid | None]]
        if self._has_middleware:
            written = self._around.slices(request, bind_all(signature, request.args, loosener))
        else:
            written = self._slices(request, deque(json_slices(signature, request.args, loosener)))
        if loosener is not None:
            loosener.tell()
        jids: list[Jid | None] = []
        try:
            for admitted in written:
                jids += admitted
        except ShardUnavailableError as error:
            raise BulkPushError(jids, len(jids), error) from error
        except Exception as error:  # a middleware may raise anything; the caller must learn what is in
            if not jids:
                raise
            raise BulkPushError(jids, len(jids), error) from error
        return jids

    def _slices(self, request: BulkRequest, waiting: deque[bytes]) -> Iterator[list[Jid]]:
        """Write slice after slice; what is written is let go of."""
        start = 0
        while waiting:
            arguments = waiting.popleft().split(b"\n")
            yield self._write(request, arguments, start)
            start += SLICE

    def _write(self, request: BulkRequest, arguments: list[bytes], start: int) -> list[Jid]:
        way = self._way(request.declaration, request.options)
        jids = draw_jids(len(arguments))
        raw = [jid.encode() for jid in jids]
        now, waits, ambient = stamp_json(self._clock()), request.at is not None, handed_down(request.declaration)
        if request.contexts is None:
            payloads = way.template.many(arguments, raw, now, ambient, waits=waits)
        else:
            own = request.contexts[start : start + SLICE]
            payloads = [
                way.template.one(args, jid, now, {**ambient, **context.meta(extra)}, waits=waits)
                for args, jid, extra in zip(arguments, raw, own, strict=True)
            ]
        if request.at is None:
            way.shard.enqueue({way.template.queue: payloads})
            return jids
        at = request.at
        due = [at] * len(jids) if isinstance(at, float | int) else at[start : start + SLICE]
        way.shard.schedule(list(zip(due, payloads, strict=True)))
        return jids

    def _way(self, declaration: Declaration, options: Mapping[str, Any]) -> Way:
        if options:
            return self._find_way(declaration, options)
        way = self._ways.get(declaration.wire_name)
        # A reloaded class has a new declaration under its old name.
        if way is None or way.declaration is not declaration:
            way = self._ways[declaration.wire_name] = self._find_way(declaration, options)
        return way

    def _find_way(self, declaration: Declaration, options: Mapping[str, Any]) -> Way:
        route = self._router.route(declaration)
        queue = options.get("queue") or route.queue
        template = JobTemplate(declaration, queue, options, self._limits)
        return Way(declaration, self._shards[route.shard], template)
