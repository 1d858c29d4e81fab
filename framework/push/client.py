"""The client: takes requests, runs the client middleware where there is any, writes to the class's shard."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from framework.declare.declaration import Declaration
from framework.declare.request import BulkRequest, Pace, PushRequest, Route
from framework.declare.slices import SLICE, Slice, bind_all, json_slices
from framework.errors import ArgumentsError, BulkPushError, ExceedLimitError, PayloadError, ShardUnavailableError
from framework.middleware.chain import Call
from framework.push.around import Around
from framework.push.deduplication import Deduplicator, deduplicates
from framework.push.normalize import Stamp, Stamps, handed_down, no_stamps, option_context, wire_value
from framework.push.size_limiter import SizeLimiter, SizeLimits, TrackedPayloads
from framework.push.strictness import Strictness
from framework.push.template import JobTemplate
from framework.route.router import Router
from framework.shard.shard import Shard, Shards
from framework.telemetry import context
from framework.types import Jid, Json
from framework.wire import keys
from framework.wire.ids import draw_jid, draw_jids
from framework.wire.job import stamp_json
from framework.wire.json import dumps_exact
from framework.wire.status import Mark, Tracked


class Way(NamedTuple):
    """Where the jobs of one class and set of options go, and what else is the same for all of them: worked out once."""

    declaration: Declaration
    shard: Shard
    template: JobTemplate
    context: Mapping[str, Json]
    kept_s: int
    """How long their states are kept; 0: they are not tracked."""
    stamp: Stamp | None
    unquestioned: int
    """Arguments of fewer bytes are written as they are; 0 where jobs may be duplicates of others."""
    deduplicates: bool

    def ambient(self) -> Mapping[str, Json]:
        """Return the context of a push made here and now, and what it is stamped with."""
        ambient = handed_down(self.declaration)
        if self.stamp is not None:
            ambient = {**ambient, **self.stamp()}
        return {**ambient, **self.context} if self.context else ambient

    def mark(self, jid: Jid, at: float | None) -> Mark:
        """Return what says that a job waits."""
        return Tracked(jid, self.kept_s).mark_queued(at)


class Client:
    """Pushes jobs. Safe to share between threads; connects when it first writes."""

    def __init__(
        self,
        shards: Shards,
        router: Router,
        *,
        middleware: tuple[Call, ...] = (),
        limiter: SizeLimiter | None = None,
        strictness: Strictness | None = None,
        stamps: Stamps = no_stamps,
        deduplicator: Deduplicator | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._shards = shards
        self._router = router
        self._limiter = limiter or SizeLimiter(SizeLimits(), TrackedPayloads())
        self._strictness = strictness or Strictness()
        self._stamps = stamps
        self._clock = clock
        self._ways: dict[str, Way] = {}
        self._around = Around(shards, router, middleware, self._limiter, stamps, deduplicator or Deduplicator(), clock)
        self._has_middleware = bool(middleware)

    def route(self, declaration: Declaration) -> Route:
        """Return queue, shard and the rule that decided."""
        return self._router.route(declaration)

    def shard(self, request: PushRequest) -> Shard:
        """Return the shard that the job goes to."""
        return self._way(request.declaration, request.options).shard

    def push(self, request: PushRequest) -> Jid | None:
        """Write one job and return its id, or ``None`` when a client middleware dropped it or it is a duplicate.

        Raises:
            ArgumentsError, ExceedLimitError: refused; nothing was written.
            ShardUnavailableError: the shard did not take it; see ``maybe_written``.
        """
        declaration, args, at, options = request
        try:
            declaration.signature.check(args)
        except ArgumentsError as error:
            request = self._loosened(request, error)
            args = request.args
        if self._has_middleware:
            return self._around.push(request)
        way = self._way(declaration, options)
        try:
            arguments = dumps_exact(args, inside=1)
        except PayloadError as error:
            raise ArgumentsError(declaration.wire_name, f"refused: {error.reason}") from error
        if len(arguments) >= way.unquestioned:
            if way.deduplicates:
                return self._around.push(request)
            arguments = way.template.fitted(arguments)
        jid, now = draw_jid(), stamp_json(self._clock())
        payload = way.template.one(arguments, jid.encode(), now, way.ambient(), waits=at is not None)
        marks = (way.mark(jid, at),) if way.kept_s else ()
        if at is None:
            way.shard.enqueue_one(way.template.queue, payload, marks)
        else:
            way.shard.schedule(((at, payload),), marks)
        return jid

    def fill(self, request: PushRequest, limit: int, most: int | None = None) -> list[Jid]:
        """Write copies of a job until ``limit`` of its class run or wait, at most ``most``; return the ids of the new ones.

        How many are missing is asked first, so that no copy is made in vain, and decided in the step that writes them.
        Raises as ``push``.
        """
        if limit <= 0:
            return []
        try:
            request.declaration.signature.check(request.args)
        except ArgumentsError as error:
            request = self._loosened(request, error)
        shard, base = self.shard(request), keys.limit(request.declaration.wire_name)
        _, missing = shard.fill(base, limit, ())
        entries = self._around.copies(request, missing if most is None else min(most, missing))
        if not entries:
            return []
        written, _ = shard.fill(base, limit, [(entry.queue, entry.data, entry.jid) for entry in entries])
        return [entry.jid for entry in entries[:written]]

    def payload_bytes(self, request: PushRequest) -> bytes | None:
        """Return what ``push`` would write now, without writing; ``None`` when a client middleware dropped it."""
        try:
            request.declaration.signature.check(request.args)
        except ArgumentsError as error:
            request = self._loosened(request, error)
        return self._around.payload_bytes(request)

    def push_bulk(self, request: BulkRequest) -> list[Jid | None]:
        """Write jobs in slices of 1,000, one round trip each; return ids aligned with the input, ``None`` where dropped.

        Every job's arguments are checked before the first is written, and so are their sizes unless there is a client
        middleware, which may change them.

        Raises:
            ArgumentsError, ExceedLimitError: refused; nothing was written.
            BulkPushError: a shard failed; or the chain of client middlewares did for a later slice, or left it a job that is
                too large. It says what is in.
        """
        signature = request.declaration.signature
        loosener = self._strictness.loosener(request.declaration)
        written: Iterator[Sequence[Jid | None]]
        if self._has_middleware or deduplicates(request.declaration):
            written = self._around.slices(request, bind_all(signature, request.args, loosener))
        else:
            way = self._way(request.declaration, request.options)
            written = self._slices(way, request, _fitted(way.template, json_slices(signature, request.args, loosener)))
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

    def _slices(self, way: Way, request: BulkRequest, waiting: deque[bytes]) -> Iterator[list[Jid]]:
        """Write slice after slice; what is written is let go of."""
        start = 0
        while waiting:
            arguments = waiting.popleft().split(b"\n")
            yield self._write(way, request, arguments, start)
            start += SLICE

    def _write(self, way: Way, request: BulkRequest, arguments: list[bytes], start: int) -> list[Jid]:
        jids = draw_jids(len(arguments))
        raw = [jid.encode() for jid in jids]
        now, waits, ambient = stamp_json(self._clock()), request.at is not None, way.ambient()
        if request.contexts is None:
            payloads = way.template.many(arguments, raw, now, ambient, waits=waits)
        else:
            own = request.contexts[start : start + SLICE]
            payloads = [
                way.template.one(args, jid, now, {**ambient, **context.meta(extra)}, waits=waits)
                for args, jid, extra in zip(arguments, raw, own, strict=True)
            ]
        if request.at is None:
            marks = [way.mark(jid, None) for jid in jids] if way.kept_s else ()
            way.shard.enqueue({way.template.queue: payloads}, marks)
            return jids
        at = request.at
        due = [at.due(start + index) if isinstance(at, Pace) else at for index in range(len(jids))]
        marks = [way.mark(jid, at) for jid, at in zip(jids, due, strict=True)] if way.kept_s else ()
        way.shard.schedule(list(zip(due, payloads, strict=True)), marks)
        return jids

    def _loosened(self, request: PushRequest, error: ArgumentsError) -> PushRequest:
        """Return the request with its arguments as JSON gives them; raises ``error`` where the class's mode wants them strict."""
        return request._replace(args=self._strictness.loosened(request.declaration, request.args, error))

    def _way(self, declaration: Declaration, options: Mapping[str, Any]) -> Way:
        if options:
            return self._find_way(declaration, options)
        way = self._ways.get(declaration.wire_name)
        # A reloaded class has a new declaration under its old name.
        if way is None or way.declaration is not declaration:
            way = self._ways[declaration.wire_name] = self._find_way(declaration, options)
        return way

    def _find_way(self, declaration: Declaration, options: Mapping[str, Any]) -> Way:
        route = self._router.route_push(declaration, options)
        template = JobTemplate(declaration, route.queue, options, self._limiter)
        kept = options.get("status_expiration", declaration.status_expiration)
        kept_s = 0 if kept is None else int(wire_value(kept))
        shard, stamp, looks = self._shards[route.shard], self._stamps(declaration), deduplicates(declaration)
        unquestioned = 0 if looks else template.unquestioned
        return Way(declaration, shard, template, option_context(options), kept_s, stamp, unquestioned, looks)


def _fitted(template: JobTemplate, slices: Iterable[Slice]) -> deque[bytes]:
    """Return the lines of all slices, every job within the size limits; raises ExceedLimitError naming the first that is not."""
    found: deque[bytes] = deque()
    for number, (lines, longest) in enumerate(slices):
        small = longest < template.unquestioned
        found.append(lines if small else b"\n".join(_fit_each(template, lines.split(b"\n"), number * SLICE)))
    return found


def _fit_each(template: JobTemplate, lines: list[bytes], start: int) -> Iterator[bytes]:
    for job, arguments in enumerate(lines, start):
        try:
            yield template.fitted(arguments)
        except ExceedLimitError as error:
            raise error.of_job(job) from None
