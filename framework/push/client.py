"""Push requests to the shard of their class, through the client middlewares if there are any."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from framework.declare.bulk import CHUNK_SIZE, BulkChunk, bind_all, json_chunks
from framework.declare.declaration import Declaration
from framework.declare.per_class import PerClass
from framework.declare.request import BulkRequest, PushRequest, Route
from framework.errors import ArgumentsError, ExceedLimitError, PayloadError
from framework.middleware.chain import Call
from framework.push.bulk import BulkPush, PreparedChunk
from framework.push.lock_port import PushLocks
from framework.push.middleware_push import MiddlewarePusher
from framework.push.normalize import (
    ExtraFields,
    ExtraFieldsFactory,
    inherited_context,
    no_extra_fields,
    option_context,
    wire_value,
)
from framework.push.schedule_writer import ScheduleWriter
from framework.push.size_limiter import OversizeReporter, SizeLimiter, SizeLimits
from framework.push.strict_arguments import StrictArgumentsCheck
from framework.push.template import JobTemplate
from framework.route.router import Router
from framework.shard.shard import Shard
from framework.shard.shards import Shards
from framework.telemetry import context
from framework.types import Jid, Json
from framework.wire import keys
from framework.wire.ids import generate_jid, generate_jids
from framework.wire.job import wire_timestamp_json
from framework.wire.json import dumps_exact
from framework.wire.status_key import StatusCommand, TrackedJob


class PushPlan(NamedTuple):
    """Hold everything that all jobs of one class with the same options share: destination, template, context, limits."""

    declaration: Declaration
    shard: Shard
    template: JobTemplate
    context: Mapping[str, Json]
    status_ttl_s: int
    """Seconds that their status is kept; 0 if they are not tracked."""
    extra_fields: ExtraFields | None
    raw_size_limit: int
    """Arguments of fewer bytes are written without a size check; 0 if the class is deduplicated."""
    deduplicates: bool

    def ambient_fields(self) -> Mapping[str, Json]:
        """Return the context fields and extra fields of a push made here and now."""
        ambient = inherited_context(self.declaration)
        if self.extra_fields is not None:
            ambient = {**ambient, **self.extra_fields()}
        return {**ambient, **self.context} if self.context else ambient

    def tracked_job(self, jid: Jid) -> TrackedJob | None:
        """Return the tracked job for a status, or ``None`` if the class is not tracked."""
        return TrackedJob(jid, self.status_ttl_s) if self.status_ttl_s else None

    def status_commands(self, jids: Sequence[Jid], times: Sequence[float | None]) -> list[StatusCommand]:
        """Return the commands that record jobs as queued, now or for their due times."""
        if not self.status_ttl_s:
            return []
        return [TrackedJob(jid, self.status_ttl_s).queued_command(at) for jid, at in zip(jids, times, strict=True)]


class Client:
    """Push jobs. Safe to share between threads; connects at the first write."""

    def __init__(
        self,
        shards: Shards,
        router: Router,
        locks: PushLocks,
        *,
        middleware: tuple[Call, ...] = (),
        limiter: SizeLimiter | None = None,
        strict_arguments: StrictArgumentsCheck | None = None,
        extra_fields: ExtraFieldsFactory = no_extra_fields,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._shards = shards
        self._router = router
        self._limiter = limiter or SizeLimiter(SizeLimits(), OversizeReporter())
        self._strict_arguments = strict_arguments or StrictArgumentsCheck()
        self._extra_fields_for = extra_fields
        self._clock = clock
        self._plans = PerClass(lambda declaration: self._make_plan(declaration, {}))
        self._schedule_writer = ScheduleWriter(clock)
        self._middleware_pusher = MiddlewarePusher(
            shards,
            router,
            middleware,
            self._limiter,
            extra_fields,
            locks,
            self._schedule_writer,
            clock,
        )
        self._has_middleware = bool(middleware)

    def route(self, declaration: Declaration) -> Route:
        """Return the queue, the shard and the deciding rule of a class."""
        return self._router.route(declaration)

    def shard(self, request: PushRequest) -> Shard:
        """Return the shard of a request."""
        return self._plan_for(request.declaration, request.options).shard

    def push(self, request: PushRequest) -> Jid | None:
        """Write one job; return its id, or ``None`` if a client middleware dropped it or it is a duplicate.

        Raises:
            ArgumentsError, ExceedLimitError: the job is refused; nothing was written.
            ShardUnavailableError: the shard did not confirm the write; see ``maybe_written``.
        """
        declaration, args, due, options = request
        try:
            declaration.signature.check(args)
        except ArgumentsError as error:
            request = self._coerced(request, error)
            args = request.args
        if self._has_middleware:
            return self._middleware_pusher.push(request)
        plan = self._plan_for(declaration, options)
        try:
            # One level: the arguments are a field of the payload, whose nesting is limited as a whole.
            arguments = dumps_exact(args, outer_levels=1)
        except PayloadError as error:
            raise ArgumentsError(declaration.wire_name, f"refused: {error.reason}") from error
        if len(arguments) >= plan.raw_size_limit:
            if plan.deduplicates:
                return self._middleware_pusher.push(request)
            arguments = plan.template.fit_to_limit(arguments)
        jid, now = generate_jid(), wire_timestamp_json(self._clock())
        payload = plan.template.encode(arguments, jid.encode(), now, plan.ambient_fields(), scheduled=due is not None)
        if due is None:
            commands = (TrackedJob(jid, plan.status_ttl_s).queued_command(None),) if plan.status_ttl_s else ()
            plan.shard.enqueue_one(plan.template.queue, payload, commands)
        else:
            self._schedule_writer.write(plan.shard, payload, due, plan.tracked_job(jid))
        return jid

    def push_up_to(self, request: PushRequest, limit: int, max_new: int | None = None) -> list[Jid]:
        """Write copies of a job until ``limit`` jobs of its class run or wait, at most ``max_new``; return the new ids.

        The first call only asks how many are missing, so that no unused copy is prepared. The script that writes decides again.

        Raises:
            Exception: as ``push``.
        """
        if limit <= 0:
            return []
        request = self._checked(request)
        shard, base = self.shard(request), keys.limit(request.declaration.wire_name)
        _, missing = shard.enqueue_up_to(base, limit, ())
        entries = self._middleware_pusher.prepare_copies(request, missing if max_new is None else min(max_new, missing))
        if not entries:
            return []
        written, _ = shard.enqueue_up_to(base, limit, [(entry.queue, entry.data, entry.jid) for entry in entries])
        return [entry.jid for entry in entries[:written]]

    def payload_bytes(self, request: PushRequest) -> bytes | None:
        """Return the bytes that ``push`` would write now, or ``None`` if a client middleware drops the job. Writes nothing."""
        return self._middleware_pusher.payload_bytes(self._checked(request))

    def push_bulk(self, request: BulkRequest) -> list[Jid | None]:
        """Write jobs in chunks of 1,000, one round trip each; return ids in input order, ``None`` for dropped jobs.

        The arguments of all jobs are checked before the first write. So are their sizes, unless there is a client middleware,
        which may change them.

        Raises:
            ArgumentsError, ExceedLimitError: a job is refused; nothing was written.
            BulkPushError: a shard failed; or in a later chunk a client middleware raised or left a job too large. The error
                says which jobs are written and which may be, and can be resumed.
        """
        signature = request.declaration.signature
        coercer = self._strict_arguments.coercer(request.declaration)
        if self._has_middleware or request.declaration.deduplicates:
            prepare = self._middleware_pusher.chunk_source(request, bind_all(signature, request.args, coercer))
        else:
            plan = self._plan_for(request.declaration, request.options)
            chunks = _fit_chunks(plan.template, json_chunks(signature, request.args, coercer))
            prepare = _TemplateChunks(plan, request, chunks, self._clock, self._schedule_writer).prepare
        if coercer is not None:
            coercer.log_complaints()
        return BulkPush(prepare).run()

    def _checked(self, request: PushRequest) -> PushRequest:
        """Return the request with strict arguments. Raises as ``push``."""
        try:
            request.declaration.signature.check(request.args)
        except ArgumentsError as error:
            return self._coerced(request, error)
        return request

    def _coerced(self, request: PushRequest, error: ArgumentsError) -> PushRequest:
        """Return the request with its arguments in JSON form.

        Raises:
            ArgumentsError: ``error``, if the class's mode is ``raise``.
        """
        return request._replace(args=self._strict_arguments.coerce(request.declaration, request.args, error))

    def _plan_for(self, declaration: Declaration, options: Mapping[str, Any]) -> PushPlan:
        return self._make_plan(declaration, options) if options else self._plans.get(declaration)

    def _make_plan(self, declaration: Declaration, options: Mapping[str, Any]) -> PushPlan:
        route = self._router.route_push(declaration, options)
        template = JobTemplate(declaration, route.queue, options, self._limiter)
        status_ttl = options.get("status_expiration", declaration.status_expiration)
        unique = declaration.deduplicates
        return PushPlan(
            declaration,
            self._shards[route.shard],
            template,
            option_context(options),
            status_ttl_s=0 if status_ttl is None else int(wire_value(status_ttl)),
            extra_fields=self._extra_fields_for(declaration),
            raw_size_limit=0 if unique else template.raw_size_limit,
            deduplicates=unique,
        )


class _TemplateChunks:
    """Prepare the chunks of one bulk without a dict per job. Frees the arguments of each prepared chunk."""

    def __init__(
        self,
        plan: PushPlan,
        request: BulkRequest,
        pending: deque[bytes],
        clock: Callable[[], float],
        schedule_writer: ScheduleWriter,
    ) -> None:
        self._plan = plan
        self._request = request
        self._pending = pending
        self._clock = clock
        self._schedule_writer = schedule_writer
        self._start = 0
        self._first_due_at: float | None = None

    def prepare(self) -> PreparedChunk | None:
        """See ``BulkPush``."""
        if not self._pending:
            return None
        request, plan, start, due = self._request, self._plan, self._start, self._request.due
        if due is not None and self._first_due_at is None:
            self._first_due_at = self._schedule_writer.first_due_at(plan.shard, due)
        # JSON escapes every line break inside of a string, so each line is one job.
        arguments = self._pending[0].split(b"\n")
        *jids, token = generate_jids(len(arguments) + 1)
        payloads = self._payloads(arguments, jids, scheduled=due is not None)
        times: list[float] | None = None
        if self._first_due_at is not None:
            times = [self._first_due_at + request.delay_s_of(index) for index in range(start, start + len(jids))]
        # Last: if a step above raises, `resume` prepares the same chunk again.
        self._pending.popleft()
        self._start += CHUNK_SIZE
        return _TemplateChunk(plan, jids, payloads, times, token)

    def _payloads(self, arguments: list[bytes], jids: list[Jid], *, scheduled: bool) -> list[bytes]:
        plan, contexts, raw = self._plan, self._request.contexts, [jid.encode() for jid in jids]
        now, ambient = wire_timestamp_json(self._clock()), plan.ambient_fields()
        if contexts is None:
            return plan.template.encode_many(arguments, raw, now, ambient, scheduled=scheduled)
        job_contexts = contexts[self._start : self._start + CHUNK_SIZE]
        return [
            plan.template.encode(args, jid, now, {**ambient, **context.meta(extra)}, scheduled=scheduled)
            for args, jid, extra in zip(arguments, raw, job_contexts, strict=True)
        ]


class _TemplateChunk:
    """Write one chunk of a bulk whose payloads come from a template."""

    def __init__(
        self, plan: PushPlan, jids: list[Jid], payloads: list[bytes], times: Sequence[float] | None, token: str
    ) -> None:
        self._plan = plan
        self._payloads = payloads
        self._times = times
        self._token = token
        self._tried = False
        self.jids: Sequence[Jid] = jids

    def write(self) -> Sequence[Jid | None]:
        """See ``PreparedChunk``."""
        plan, times, shard = self._plan, self._times, self._plan.shard
        # The token is checked before the statuses are written: the jobs of an earlier try may have started since, and
        # `queued` must not overwrite their status.
        if self._tried and shard.is_pushed(self._token):
            return self.jids
        self._tried = True
        if times is None:
            commands = plan.status_commands(self.jids, [None] * len(self.jids)) if plan.status_ttl_s else ()
            shard.enqueue(plan.template.queue, self._payloads, self._token, commands)
        else:
            shard.schedule(
                list(zip(times, self._payloads, strict=True)), self._token, plan.status_commands(self.jids, times)
            )
        return self.jids


def _fit_chunks(template: JobTemplate, chunks: Iterable[BulkChunk]) -> deque[bytes]:
    """Return the argument lines of all chunks, every job within the size limits.

    Raises:
        ExceedLimitError: names the first job that is too large.
    """
    fitted: deque[bytes] = deque()
    for number, (lines, longest) in enumerate(chunks):
        small = longest < template.raw_size_limit
        fitted.append(lines if small else b"\n".join(_fit_lines(template, lines.split(b"\n"), number * CHUNK_SIZE)))
    return fitted


def _fit_lines(template: JobTemplate, lines: list[bytes], start: int) -> Iterator[bytes]:
    for job, arguments in enumerate(lines, start):
        try:
            yield template.fit_to_limit(arguments)
        except ExceedLimitError as error:
            raise error.for_bulk_index(job) from None
