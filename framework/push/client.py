"""Push requests to the shard of their class, through the client middlewares if there are any."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from framework.declare.bulk import bind_all, json_chunks
from framework.declare.declaration import Declaration
from framework.declare.per_class import PerClass
from framework.declare.request import BulkRequest, DueTime, PushRequest, Route
from framework.errors import ArgumentsError, PayloadError
from framework.middleware.chain import Call
from framework.push.bulk import BulkPush
from framework.push.lock_port import PushLocks
from framework.push.middleware_push import MiddlewarePusher
from framework.push.normalize import (
    ExtraFieldsFactory,
    no_extra_fields,
    option_context,
    wire_value,
)
from framework.push.push_plan import PushPlan
from framework.push.schedule_writer import ScheduleWriter
from framework.push.size_limiter import OversizeReporter, SizeLimiter, SizeLimits
from framework.push.strict_arguments import StrictArgumentsCheck
from framework.push.template import JobTemplate
from framework.push.template_chunks import TemplateChunks, fit_chunks
from framework.push.unique_push import UniquePush, with_lock_key
from framework.route.router import Router
from framework.shard.shard import Shard
from framework.shard.shards import Shards
from framework.types import Jid
from framework.wire import keys
from framework.wire.ids import generate_jid
from framework.wire.job import wire_timestamp_json
from framework.wire.json import dumps_exact
from framework.wire.status_key import TrackedJob


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
        self._locks = locks
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
            # The arguments are one level deep in the payload, and the nesting limit is that of the payload.
            arguments = dumps_exact(args, outer_levels=1)
        except PayloadError as error:
            raise ArgumentsError(declaration.wire_name, f"refused: {error.reason}") from error
        if plan.unique is not None and (unique := plan.unique_push(scheduled=due is not None)) is not None:
            return self._push_unique(plan, unique, arguments, due)
        if len(arguments) >= plan.raw_size_limit:
            arguments = plan.template.fit_to_limit(arguments)
        jid, now = generate_jid(), wire_timestamp_json(self._clock())
        payload = plan.template.encode(arguments, jid.encode(), now, plan.ambient_fields(), scheduled=due is not None)
        if due is None:
            commands = (TrackedJob(jid, plan.status_ttl_s).queued_command(None),) if plan.status_ttl_s else ()
            plan.shard.enqueue_one(plan.template.queue, payload, commands)
        else:
            self._schedule_writer.write(plan.shard, payload, due, plan.tracked_job(jid))
        return jid

    def _push_unique(self, plan: PushPlan, unique: UniquePush, arguments: bytes, due: DueTime | None) -> Jid | None:
        """Write one job of a deduplicated class; return its id, or ``None`` for a duplicate."""
        (lock_key,) = unique.lock_keys([arguments])
        if len(arguments) >= plan.raw_size_limit:
            arguments = plan.template.fit_to_limit(arguments)
        if due is not None:
            self._schedule_writer.check_clock(plan.shard)
        jid, now, ambient = generate_jid(), wire_timestamp_json(self._clock()), plan.ambient_fields()
        arguments = with_lock_key(arguments, lock_key)
        payload = plan.template.encode(arguments, jid.encode(), now, ambient, scheduled=due is not None)
        return unique.push(payload, lock_key, jid, ambient, due)

    def push_up_to(self, request: PushRequest, limit: int, max_new: int | None = None) -> list[Jid]:
        """Write copies of a job until ``limit`` jobs of its class run or wait, at most ``max_new``; return the new ids.

        The first call only asks how many are missing, so that no unused copy is prepared. The script that writes counts again.
        Raises as ``push``.
        """
        if limit <= 0:
            return []
        request = self._checked(request)
        shard, base = self.shard(request), keys.limit(request.declaration.wire_name)
        _, missing = shard.enqueue_up_to(base, limit, ())
        prepared = self._middleware_pusher.prepare_copies(
            request, missing if max_new is None else min(max_new, missing)
        )
        if not prepared:
            return []
        written, _ = shard.enqueue_up_to(base, limit, [(job.queue, job.data, job.jid) for job in prepared])
        return [job.jid for job in prepared[:written]]

    def payload_bytes(self, request: PushRequest) -> bytes | None:
        """Return the bytes that ``push`` would write now, or ``None`` if a client middleware drops the job. Writes nothing."""
        return self._middleware_pusher.payload_bytes(self._checked(request))

    def push_bulk(self, request: BulkRequest) -> list[Jid | None]:
        """Write jobs in chunks of 1,000, one round trip each; return ids in input order, ``None`` for dropped jobs.

        The arguments of all jobs are checked before the first write. Their sizes are too, unless a client middleware may still
        change the arguments.

        Raises:
            ArgumentsError, ExceedLimitError: a job is refused; nothing was written.
            BulkPushError: a shard failed, or in a later chunk a client middleware raised or made a job too large. The error
                names the jobs that are written and those that may be. ``resume()`` continues it.
        """
        signature = request.declaration.signature
        coercer = self._strict_arguments.coercer(request.declaration)
        if self._has_middleware:
            prepare = self._middleware_pusher.chunk_source(request, bind_all(signature, request.args, coercer))
        else:
            plan = self._plan_for(request.declaration, request.options)
            unique = plan.unique_push(scheduled=request.due is not None)
            chunks = fit_chunks(plan.template, json_chunks(signature, request.args, coercer), unique)
            prepare = TemplateChunks(plan, request, chunks, unique, self._clock, self._schedule_writer).prepare
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
        shard = self._shards[route.shard]
        status_expiration = options.get("status_expiration", declaration.status_expiration)
        status_ttl_s = 0 if status_expiration is None else int(wire_value(status_expiration))
        unique = None
        if declaration.deduplicate is not None and declaration.deduplicates:
            unique = UniquePush(declaration, declaration.deduplicate, self._locks, shard, route.queue, status_ttl_s)
        return PushPlan(
            declaration,
            shard,
            template,
            option_context(options),
            status_ttl_s,
            self._extra_fields_for(declaration),
            template.raw_size_limit,
            unique,
        )
