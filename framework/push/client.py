"""The client: takes requests, runs the client middleware where there is any, writes to the class's shard."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from framework.declare.declaration import Declaration
from framework.declare.request import BulkRequest, PushRequest, Route
from framework.declare.slices import SLICE, Slice, bind_all, json_slices
from framework.errors import ArgumentsError, ExceedLimitError, PayloadError
from framework.middleware.chain import Call
from framework.push.around import Around
from framework.push.bulk import BulkPush, PreparedSlice
from framework.push.deduplication import Deduplicator, deduplicates
from framework.push.delays import Delays
from framework.push.normalize import Stamp, Stamps, handed_down, no_stamps, option_context, wire_value
from framework.push.size_limiter import SizeLimiter, SizeLimits, TrackedPayloads
from framework.push.strictness import Strictness
from framework.push.template import JobTemplate
from framework.route.router import Router
from framework.shard.shard import Shard
from framework.shard.shards import Shards
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

    def tracked(self, jid: Jid) -> Tracked | None:
        """Return what says that a job is tracked, ``None`` when it is not."""
        return Tracked(jid, self.kept_s) if self.kept_s else None

    def marks(self, jids: Sequence[Jid], times: Sequence[float | None]) -> list[Mark]:
        """Return what says that jobs wait, now or for these times."""
        if not self.kept_s:
            return []
        return [Tracked(jid, self.kept_s).mark_queued(at) for jid, at in zip(jids, times, strict=True)]


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
        self._delays = Delays(clock)
        self._around = Around(
            shards, router, middleware, self._limiter, stamps, deduplicator or Deduplicator(), self._delays, clock
        )
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
        declaration, args, due, options = request
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
        payload = way.template.one(arguments, jid.encode(), now, way.ambient(), waits=due is not None)
        if due is None:
            marks = (Tracked(jid, way.kept_s).mark_queued(None),) if way.kept_s else ()
            way.shard.enqueue_one(way.template.queue, payload, marks)
        else:
            self._delays.write(way.shard, payload, due, way.tracked(jid))
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
                too large. It says what is in, what may be, and can be resumed.
        """
        signature = request.declaration.signature
        loosener = self._strictness.loosener(request.declaration)
        if self._has_middleware or deduplicates(request.declaration):
            prepare = self._around.bulk(request, bind_all(signature, request.args, loosener))
        else:
            way = self._way(request.declaration, request.options)
            waiting = _fitted(way.template, json_slices(signature, request.args, loosener))
            prepare = _Source(way, request, waiting, self._clock, self._delays).prepare
        if loosener is not None:
            loosener.tell()
        return BulkPush(prepare).run()

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


class _Source:
    """The slices of one bulk of a class that needs no dict for each job; what is prepared is let go of."""

    def __init__(
        self, way: Way, request: BulkRequest, waiting: deque[bytes], clock: Callable[[], float], delays: Delays
    ) -> None:
        self._way = way
        self._request = request
        self._waiting = waiting
        self._clock = clock
        self._delays = delays
        self._start = 0
        self._first: float | None = None

    def prepare(self) -> PreparedSlice | None:
        """See ``BulkPush``."""
        if not self._waiting:
            return None
        request, way, start, due = self._request, self._way, self._start, self._request.due
        if due is not None and self._first is None:
            self._first = self._delays.begin(way.shard, due)
        arguments = self._waiting[0].split(b"\n")
        *jids, token = draw_jids(len(arguments) + 1)
        payloads = self._payloads(arguments, jids, waits=due is not None)
        times: list[float] | None = None
        if self._first is not None:
            times = [self._first + request.offset(index) for index in range(start, start + len(jids))]
        self._waiting.popleft()
        self._start += SLICE
        return _Written(way, jids, payloads, times, token)

    def _payloads(self, arguments: list[bytes], jids: list[Jid], *, waits: bool) -> list[bytes]:
        way, contexts, raw = self._way, self._request.contexts, [jid.encode() for jid in jids]
        now, ambient = stamp_json(self._clock()), way.ambient()
        if contexts is None:
            return way.template.many(arguments, raw, now, ambient, waits=waits)
        own = contexts[self._start : self._start + SLICE]
        return [
            way.template.one(args, jid, now, {**ambient, **context.meta(extra)}, waits=waits)
            for args, jid, extra in zip(arguments, raw, own, strict=True)
        ]


class _Written:
    """One slice of such a bulk."""

    def __init__(
        self, way: Way, jids: list[Jid], payloads: list[bytes], times: Sequence[float] | None, token: str
    ) -> None:
        self._way = way
        self._payloads = payloads
        self._times = times
        self._token = token
        self._tried = False
        self.jids: Sequence[Jid] = jids

    def write(self) -> Sequence[Jid | None]:
        """See ``PreparedSlice``."""
        way, times, shard = self._way, self._times, self._way.shard
        # Asked before the states are written: those of jobs that are in may have gone on since.
        if self._tried and shard.is_pushed(self._token):
            return self.jids
        self._tried = True
        if times is None:
            marks = way.marks(self.jids, [None] * len(self.jids)) if way.kept_s else ()
            shard.enqueue(way.template.queue, self._payloads, self._token, marks)
        else:
            shard.schedule(list(zip(times, self._payloads, strict=True)), self._token, way.marks(self.jids, times))
        return self.jids


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
