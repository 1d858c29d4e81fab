"""Build payloads as dicts that go through the client middlewares: these may change, redirect or drop each job."""

import sys
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.declare.request import CHUNK_SIZE, BulkRequest, DueTime, bind_all
from framework.errors import ArgumentsError, ExceedLimitError
from framework.middleware.chain import Call, ChainInvocation
from framework.push.argument_checks import SizeLimiter, StrictArgumentsCheck
from framework.push.deduplication import Deduplication, lock_details
from framework.push.job_batch import JobBatch, queued_status
from framework.push.normalize import Normalizer
from framework.shard.routing_validator import RoutedScope
from framework.shard.shard import Shard
from framework.telemetry import context
from framework.text import with_article
from framework.types import Jid, Json, Payload
from framework.wire.job import expires_in_of, generate_jid, generate_jids
from framework.wire.status_key import StatusCommand, tracked_job


class _Job(NamedTuple):
    """Hold a job that passed the chain: its bytes and its due time, and its payload."""

    data: bytes
    due: DueTime | None
    lock_key: str
    payload: Payload


class MiddlewarePayloads:
    """Build payloads through a compiled middleware chain, for one class with the same options. Shared between threads."""

    def __init__(
        self,
        declaration: Declaration,
        middleware: tuple[Call, ...],
        shard: Shard,
        queue: str,
        options: Mapping[str, Any],
        limiter: SizeLimiter,
        strict_arguments: StrictArgumentsCheck,
    ) -> None:
        self._declaration = declaration
        self._middleware = middleware
        self._shard = shard
        self._queue = queue
        self._options = options
        self._limiter = limiter
        self._strict_arguments = strict_arguments
        self._normalizer = Normalizer()

    def one(
        self, args: list[Any], due: DueTime | None, locks: Deduplication | None, extra: Mapping[str, Json]
    ) -> JobBatch | None:
        checked = self._strict_arguments.checked(self._declaration, args)
        job = self._prepare(checked, generate_jid(), due, locks, extra)
        return None if job is None else _batch({0: job}, locks)

    def check_bulk(self, request: BulkRequest, locks: Deduplication | None) -> deque[list[list[Any]]]:
        """See ``PayloadBuilder``. Sizes are not checked, because a client middleware may still change the arguments."""
        # The chain may change the arguments, and the lock keys are those of the changed ones.
        del locks
        coercer = self._strict_arguments.coercer(self._declaration)
        bound = bind_all(self._declaration.signature, request.args, coercer, request.start)
        if coercer is not None:
            coercer.log_complaints()
        return deque(bound[start : start + CHUNK_SIZE] for start in range(0, len(bound), CHUNK_SIZE))

    def chunk(
        self,
        arguments: list[list[Any]],
        start: int,
        request: BulkRequest,
        first_due_at: float | None,
        locks: Deduplication | None,
        extra: Mapping[str, Json],
    ) -> tuple[int, Sequence[JobBatch]]:
        """See ``PayloadBuilder``. A middleware may change the queue of a job, so there may be several batches."""
        by_queue: dict[tuple[str, bool], dict[int, _Job]] = {}
        delays_s = request.delays_s(start, len(arguments))
        for index, (args, jid) in enumerate(zip(arguments, generate_jids(len(arguments)), strict=True)):
            number = start + index
            own = context.meta(request.contexts[number]) if request.contexts else None
            due = None if request.due is None else DueTime(request.due.at + delays_s[index])
            try:
                job = self._prepare(args, jid, due, locks, extra, own)
            except ExceedLimitError as error:
                raise error.for_bulk_index(number) from None
            if job is None:
                continue
            # A due time set by a middleware stays. One computed with this host's clock is replaced by one of Redis's clock.
            if due is not None and job.due == due and first_due_at is not None:
                job = job._replace(due=DueTime(first_due_at + delays_s[index]))
            destination = ("", True) if job.due is not None else (job.payload["queue"], False)
            by_queue.setdefault(destination, {})[index] = job
        return len(arguments), [_batch(jobs, locks) for jobs in by_queue.values()]

    def _prepare(
        self,
        args: list[Any],
        jid: Jid,
        due: DueTime | None,
        locks: Deduplication | None,
        extra: Mapping[str, Json],
        own_context: Mapping[str, Json] | None = None,
    ) -> _Job | None:
        """Run a job through the chain; return it ready to be written, or ``None`` if it was dropped.

        A deduplicated job gets its lock key after the chain, because middlewares may change the arguments. The chain reads the
        due time of a delayed job in the field ``at`` (as in Sidekiq), by this host's clock.
        """
        declaration = self._declaration
        payload = self._normalizer.payload(
            declaration, args, jid, self._queue, options=self._options, job_context=own_context
        )
        payload.update(extra)
        if due is None:
            payload["enqueued_at"] = self._normalizer.now()
        else:
            payload["at"] = due.at
        worker = registry.find(declaration.wire_name)
        invocation = ChainInvocation(self._middleware, worker, payload, payload["queue"], self._shard.pool)
        with RoutedScope((self._shard.name,)), invocation as reached_end:
            if not reached_end:
                return None
        if due is not None:
            due = _due_after_middleware(declaration, payload.pop("at", due.at), due)
        lock_key = "" if locks is None else locks.set_key(payload)
        data = self._limiter.encode(payload, big_payload=declaration.big_payload, compress=declaration.compress)
        return _Job(data, due, lock_key, payload)


def _batch(jobs: Mapping[int, _Job], locks: Deduplication | None) -> JobBatch:
    """Return the batch of jobs for one destination, by their places in the chunk."""
    every = list(jobs.values())
    statuses = [_queued_status(job) for job in every]
    dues = [job.due for job in every if job.due is not None]
    batch = JobBatch(
        queue=every[0].payload["queue"],
        payloads=[job.data for job in every],
        # A client middleware may have changed the id.
        jids=[str(job.payload["jid"]) for job in every],
        dues=dues or None,
        indexes=list(jobs),
    )
    if locks is None:
        return batch._replace(statuses=[status for status in statuses if status])
    details = [
        lock_details(job.payload, job.due, status, expires_in_of(job.payload))
        for job, status in zip(every, statuses, strict=True)
    ]
    lock_keys = [job.lock_key for job in every]
    return batch._replace(unique=locks.unique_jobs(batch.payloads, lock_keys, batch.jids, details))


def _queued_status(job: _Job) -> StatusCommand:
    """Return the command that records a tracked job as queued, empty if untracked. A middleware may have set tracking."""
    tracked = tracked_job(job.payload)
    return () if tracked is None else queued_status(tracked, job.due)


def _due_after_middleware(declaration: Declaration, value: Any, due: DueTime) -> DueTime:
    """Return the due time after the chain: the value of ``at`` if a middleware changed it."""
    if value == due.at:
        return due
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        reason = f"is due at {with_article(type(value).__name__)}: a client middleware may put epoch seconds into `at`"
        raise ArgumentsError(declaration.wire_name, reason)
    return DueTime(float(value))
