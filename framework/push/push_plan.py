"""Build payload bytes from a part computed once per class and options (the plan) and the few values of each job.

The result equals the output of ``Normalizer`` and ``SizeLimiter.encode``, which pushes with client middlewares use. Tests prove
that both agree.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

from framework.declare.declaration import Declaration
from framework.declare.request import CHUNK_SIZE, NO_OPTIONS, BulkRequest, DueTime, json_chunks
from framework.errors import ArgumentsError, ExceedLimitError, PayloadError
from framework.process_clock import process_clock
from framework.push.argument_checks import SizeLimiter, StrictArgumentsCheck
from framework.push.deduplication import NO_DETAILS, Deduplication, lock_details
from framework.push.job_batch import (
    TASK_FIELDS,
    Destination,
    JobBatch,
    PayloadBuilder,
    PushLimit,
    PushRecorder,
    queued_status,
)
from framework.push.normalize import (
    NO_CONTEXT,
    ExtraFields,
    class_context,
    class_fields,
    inherited_context,
    option_context,
    option_fields,
    wire_value,
)
from framework.route.job_places import JobPlaces
from framework.shard.shard import Shard
from framework.telemetry import context
from framework.telemetry.context import CORRELATION_ID
from framework.telemetry.job_events import JobsEnqueued, job_events
from framework.types import Jid, Json
from framework.wire.job import generate_jid, generate_jids, wire_timestamp_json
from framework.wire.json import dumps, dumps_exact, loads
from framework.wire.resources import IDEMPOTENCY_KEY
from framework.wire.status_key import QueuedCommands, StatusCommand, TrackedJob, tracked_job

R = TypeVar("R")


class PushSpans(ABC):
    """Makes pushes parts of traces. Shared between threads."""

    @abstractmethod
    def push(self, plan: "PushPlan", call: Callable[[], R], *, jobs: int, linked: bool, written: bool) -> R:
        """Make the call within a span; return its result, or raise its error.

        ``linked``: the jobs run later, or are many, so their runs begin traces of their own that link to this one. ``written``: the
        call writes the jobs, else they are written later with other things.
        """

    @abstractmethod
    def fields(self) -> Mapping[str, Json]:
        """Return the trace fields of a job that is pushed here and now; empty outside of a trace."""


class PushPlan(NamedTuple):
    """Hold the shard, the builder of the payloads (it knows queue, limits and context), and the deduplication."""

    declaration: Declaration
    shard: Shard
    payloads: PayloadBuilder
    extra_fields: ExtraFields | None
    deduplication: Deduplication | None
    recorder: PushRecorder | None = None
    """Records the jobs of a tracked class before they are written."""
    queue: str = ""
    """The queue of the route."""
    options: Mapping[str, Any] = NO_OPTIONS
    """The options of the pushes."""
    limit: PushLimit | None = None
    """The limit of accepted jobs of the class; ``None`` for a class without one."""
    spans: Sequence[PushSpans] = ()
    """Makes the pushes parts of traces; empty without a library for traces."""
    places: JobPlaces | None = None
    """Chooses the shards of the jobs; ``None`` for a class that has one shard."""
    parts: "Mapping[str, PushPlan]" = NO_OPTIONS
    """The plans of these shards."""
    former: Sequence[Shard] | None = None
    """The shards from which such jobs move to this one: equal jobs may still be there. ``None``: none is known."""

    def of(self, batch: JobBatch) -> "PushPlan":
        """Return the plan by which a batch is written."""
        return self if self.places is None else self.parts[batch.shard]

    @property
    def destination(self) -> Destination:
        """The class and the shard, for the recorder."""
        return Destination(self.declaration, self.shard.name)

    def locks(self, *, scheduled: bool) -> Deduplication | None:
        """Return the deduplication of a push made here and now, or ``None`` if this push must not be deduplicated."""
        found = self.deduplication
        return found if found is not None and found.is_enabled(scheduled=scheduled) else None

    def step_locks(self, *, scheduled: bool) -> Deduplication | None:
        """Return the deduplication, as ``locks`` does, for a job that a script writes with other things; ``None`` with a window."""
        found = self.locks(scheduled=scheduled)
        return found if found is not None and found.window_s is None else None

    def fields_of_push(self) -> Mapping[str, Json]:
        """Return the additional payload fields of a push made here and now."""
        return NO_CONTEXT if self.extra_fields is None else self.extra_fields()

    def in_spans(self, call: Callable[[], R], *, jobs: int = 1, linked: bool = False, written: bool = True) -> R:
        """Make the call within the spans of the push."""
        for one in self.spans:
            call = partial(one.push, self, call, jobs=jobs, linked=linked, written=written)
        return call()


PushStep: TypeAlias = Callable[[PushPlan, Any], PushPlan]
"""Returns the plan of a class with what a feature adds to it. It gets the plan and the ``Client``, of which it may ask services."""


def recorded_plan(plan: PushPlan, recorder: PushRecorder) -> PushPlan:
    """Return the plan of a tracked class: its jobs are recorded, and their payloads name the task of the push."""
    if plan.deduplication is not None:
        plan.deduplication.on_duplicates = partial(recorder.duplicates, plan.destination)
    return plan._replace(recorder=recorder, extra_fields=partial(_with_task, plan.extra_fields))


def _with_task(extra: ExtraFields | None) -> Mapping[str, Json]:
    fields = NO_CONTEXT if extra is None else extra()
    found = TASK_FIELDS.get()
    return fields if not found else {**fields, **found}


def tell_enqueued(plan: PushPlan, batch: JobBatch, jids: Sequence[Jid | None]) -> None:
    """Tell the observers of the jobs of a batch that were accepted; those without an id were not."""
    job_events.emit(
        JobsEnqueued(
            plan.declaration.wire_name,
            sum(jid is not None for jid in jids),
            batch.queue,
            plan.shard.name,
            batch.dues is not None,
            jids,
            tuple(map(len, batch.payloads)),
        )
    )


class PreparedJob(NamedTuple):
    """One job, with what its step must write besides: its lock, and its state if it is tracked."""

    shard: str
    queue: str
    payload: bytes
    jid: Jid
    lock_request: bytes
    """Empty for a job that is not deduplicated."""
    status_ttl_s: int
    """How long the state of a tracked job is kept; 0 for an untracked one."""
    log_duplicate: Callable[[Jid], None]
    """Logs the job as a duplicate of the job with this id."""
    note_written: Callable[[], None]
    """Records the written job of a tracked class, and tells the observers of the job."""
    room: bytes
    """What the script asks before it writes the job (``parts/backlog_limit.lua``), with ``x``: the series that counts the job if it
    is dropped for lack of room. Empty for a class without a limit."""


def prepared_job(plan: PushPlan, batch: JobBatch) -> PreparedJob:
    payload = batch.payloads[0]
    fields = loads(payload, None)
    tracked = tracked_job(fields)
    lock_request = b""
    if batch.unique is not None and plan.deduplication is not None:
        lock_request = plan.deduplication.lock_request(fields).encode()

    def log_duplicate(owner: Jid) -> None:
        if batch.unique is not None and plan.deduplication is not None:
            plan.deduplication.written(batch.unique, [owner])

    def note_written() -> None:
        if plan.recorder is not None:
            plan.recorder.written(plan.destination, batch)
        if job_events.observers:
            tell_enqueued(plan, batch, batch.jids)

    ttl_s = 0 if tracked is None else tracked.ttl_s
    room = b""
    if batch.counted is not None:
        limit = batch.counted.limit
        room = dumps({**limit.request(1, batch.counted.each), "x": limit.drop_counter})
    return PreparedJob(
        plan.shard.name,
        batch.queue,
        payload,
        batch.jids[0],
        lock_request,
        ttl_s,
        log_duplicate,
        note_written,
        room,
    )


_LOCK_FIELD = IDEMPOTENCY_KEY.encode()


class JobTemplate:
    """Encode the payloads of jobs of one class for one queue with the same options."""

    __slots__ = ("_big_payload", "_compress", "_head", "_limiter", "_wire_name", "queue", "raw_size_limit")

    def __init__(self, declaration: Declaration, queue: str, options: Mapping[str, Any], limiter: SizeLimiter) -> None:
        self.queue = queue
        self.raw_size_limit = limiter.raw_size_limit
        """Arguments of at least this many bytes must pass ``fit_to_limit`` first."""
        self._limiter = limiter
        self._big_payload = declaration.big_payload
        self._compress = declaration.compress
        self._wire_name = declaration.wire_name
        fields = class_fields(declaration) | {"queue": queue} | option_fields(options)
        del fields["args"]
        self._head = self._json(fields)[:-1] + b',"args":'

    def fit_to_limit(self, args: bytes) -> bytes:
        """Return arguments within the size limits; large ones in stored form, followed by their marker fields.

        Raises:
            ExceedLimitError: the arguments are too large, even compressed.
        """
        if len(args) < self.raw_size_limit:
            return args
        text, marker_fields = self._limiter.encode_arguments(
            self._wire_name, self.queue, args, big_payload=self._big_payload, compress=self._compress
        )
        return b"%b,%b" % (args if text is None else b'["%b"]' % text, dumps(marker_fields)[1:-1])

    def encode(self, args: bytes, jid: bytes, now: bytes, context: Mapping[str, Json], *, scheduled: bool) -> bytes:
        """Return a payload. ``args`` is JSON within the limits, ``now`` a time as JSON; a ``scheduled`` job enters no queue now.

        Raises:
            ArgumentsError: the context is not JSON.
        """
        if context or scheduled:
            tail = self._tail(now, context, scheduled=scheduled)
        else:
            # As `_tail`: without a context most pushes need no further call.
            tail = b',"created_at":%b,"enqueued_at":%b' % (now, now)
        if CORRELATION_ID in context:
            return b'%b%b,"jid":"%b"%b}' % (self._head, args, jid, tail)
        return b'%b%b,"jid":"%b","correlation_id":"%b"%b}' % (self._head, args, jid, jid, tail)

    def encode_many(
        self, args: Sequence[bytes], jids: Sequence[bytes], now: bytes, context: Mapping[str, Json], *, scheduled: bool
    ) -> list[bytes]:
        """Return the payloads of jobs with a common context. Equals one call of ``encode`` per job."""
        # One %-format per job is the fastest way to build a thousand payloads; literal percent signs are doubled first.
        head, tail = _escape_percent(self._head), _escape_percent(self._tail(now, context, scheduled=scheduled))
        if CORRELATION_ID in context:
            form = b'%b%%b,"jid":"%%b"%b}' % (head, tail)
            return [form % (one, jid) for one, jid in zip(args, jids, strict=True)]
        form = b'%b%%b,"jid":"%%b","correlation_id":"%%b"%b}' % (head, tail)
        return [form % (one, jid, jid) for one, jid in zip(args, jids, strict=True)]

    def _tail(self, now: bytes, context: Mapping[str, Json], *, scheduled: bool) -> bytes:
        """Return the fields that do not depend on the job's id: times and context."""
        times = b',"created_at":%b' % now if scheduled else b',"created_at":%b,"enqueued_at":%b' % (now, now)
        return times + b"," + self._json(context)[1:-1] if context else times

    def _json(self, fields: Mapping[str, Any]) -> bytes:
        try:
            return dumps(fields)
        except PayloadError as error:
            raise ArgumentsError(self._wire_name, f"refused: {error.reason}") from error


class ChunkArguments(NamedTuple):
    """Hold the arguments of a chunk within the size limits, as JSON with a line per job."""

    lines: bytes
    lock_keys: Sequence[str] | None
    """The lock keys of a deduplicated class, if arguments were compressed: a key is that of the uncompressed arguments."""


class TemplatePayloads:
    """Build payloads from the template of one class with the same options: bytes, without a dict per job."""

    def __init__(
        self,
        declaration: Declaration,
        template: JobTemplate,
        options: Mapping[str, Any],
        queued_status_ttl_s: int,
        strict_arguments: StrictArgumentsCheck,
    ) -> None:
        self._declaration = declaration
        self._signature = declaration.signature
        self._template = template
        self._context = {**class_context(declaration), **option_context(options)}
        self._status_ttl_s = queued_status_ttl_s
        expires_in = options.get("expires_in", declaration.expires_in)
        self._expires_in_s = 0.0 if expires_in is None else float(wire_value(expires_in))
        self._strict_arguments = strict_arguments

    def one(
        self, args: list[Any], due: DueTime | None, locks: Deduplication | None, extra: Mapping[str, Json]
    ) -> JobBatch:
        template = self._template
        try:
            arguments = self._signature.encode(args)
        except (ArgumentsError, PayloadError) as error:
            arguments = self._encode_refused(args, error)
        lock_keys = None if locks is None else locks.lock_keys((arguments,))
        if len(arguments) >= template.raw_size_limit:
            arguments = template.fit_to_limit(arguments)
        if lock_keys is not None:
            arguments = _with_lock_key(arguments, lock_keys[0])
        ambient = extra
        # Most pushes have no context, and each would pay for the call.
        if self._context or context.context_source() is not None:
            ambient = self._ambient_fields(extra)
        jid = generate_jid()
        now = wire_timestamp_json(process_clock.now())
        payload = template.encode(arguments, jid.encode(), now, ambient, scheduled=due is not None)
        status: StatusCommand = ()
        if self._status_ttl_s:
            status = queued_status(TrackedJob(jid, self._status_ttl_s), due)
        dues = None if due is None else (due,)
        if locks is None or lock_keys is None:
            return JobBatch(template.queue, (payload,), (jid,), dues, (status,) if status else ())
        details = NO_DETAILS
        if ambient or status or due is not None or self._expires_in_s:
            details = lock_details(ambient, due, status, self._expires_in_s)
        unique = locks.unique_jobs((payload,), lock_keys, (jid,), (details,))
        return JobBatch(template.queue, (payload,), (jid,), dues, (), unique)

    def check_bulk(self, request: BulkRequest, locks: Deduplication | None) -> deque[ChunkArguments]:
        """See ``PayloadBuilder``. Every job is within the size limits."""
        coercer = self._strict_arguments.coercer(self._declaration)
        checked: deque[ChunkArguments] = deque()
        for number, (lines, longest) in enumerate(json_chunks(self._signature, request.args, coercer, request.start)):
            if longest < self._template.raw_size_limit:
                checked.append(ChunkArguments(lines, None))
            else:
                jobs = lines.split(b"\n")
                small = b"\n".join(self._fit_lines(jobs, request.start + number * CHUNK_SIZE))
                checked.append(ChunkArguments(small, None if locks is None else locks.lock_keys(jobs)))
        if coercer is not None:
            coercer.log_complaints()
        return checked

    def chunk(
        self,
        arguments: ChunkArguments,
        start: int,
        request: BulkRequest,
        first_due_at: float | None,
        locks: Deduplication | None,
        extra: Mapping[str, Json],
    ) -> tuple[int, Sequence[JobBatch]]:
        # JSON escapes every line break inside of a string, so each line is one job.
        lines = arguments.lines.split(b"\n")
        count = len(lines)
        lock_keys: Sequence[str] = ()
        if locks is not None:
            lock_keys = arguments.lock_keys or locks.lock_keys(lines)
            lines = list(map(_with_lock_key, lines, lock_keys))
        ambient, jids = self._ambient_fields(extra), generate_jids(count)
        dues: list[DueTime] | None = None
        if first_due_at is not None:
            dues = [DueTime(first_due_at + delay_s) for delay_s in request.delays_s(start, count)]
        contexts = None if request.contexts is None else request.contexts[start : start + count]
        payloads = self._encode_chunk(lines, jids, ambient, contexts, scheduled=dues is not None)
        if locks is None:
            statuses = self._queued_statuses(jids, dues)
            return count, [JobBatch(self._template.queue, payloads, jids, dues, statuses)]
        status = self._queued_statuses(jids[:1], None) or [()]
        details = [lock_details(ambient, None, status[0], self._expires_in_s)]
        if dues is not None:
            statuses = self._queued_statuses(jids, dues) or [()] * count
            details = [
                lock_details(ambient, due, status, self._expires_in_s)
                for due, status in zip(dues, statuses, strict=True)
            ]
        unique = locks.unique_jobs(payloads, lock_keys, jids, details)
        return count, [JobBatch(self._template.queue, payloads, jids, dues, (), unique)]

    def _encode_refused(self, args: list[Any], error: ArgumentsError | PayloadError) -> bytes:
        """Return as JSON arguments that were refused with ``error``, in JSON form if the class's mode allows it."""
        try:
            if isinstance(error, PayloadError):
                raise error
            return dumps_exact(self._strict_arguments.coerce(self._declaration, args, error), outer_levels=1)
        except PayloadError as refused:
            raise ArgumentsError(self._declaration.wire_name, f"refused: {refused.reason}") from refused

    def _fit_lines(self, lines: list[bytes], start: int) -> Iterator[bytes]:
        for job, arguments in enumerate(lines, start):
            try:
                yield self._template.fit_to_limit(arguments)
            except ExceedLimitError as error:
                raise error.for_bulk_index(job) from None

    def _ambient_fields(self, extra: Mapping[str, Json]) -> Mapping[str, Json]:
        """Return the context fields and extra fields of a push made here and now."""
        return {**inherited_context(self._declaration), **extra, **self._context}

    def _encode_chunk(
        self,
        arguments: list[bytes],
        jids: list[Jid],
        ambient: Mapping[str, Json],
        contexts: Sequence[Mapping[str, Json]] | None,
        *,
        scheduled: bool,
    ) -> list[bytes]:
        raw, now = [jid.encode() for jid in jids], wire_timestamp_json(process_clock.now())
        if contexts is None:
            return self._template.encode_many(arguments, raw, now, ambient, scheduled=scheduled)
        return [
            self._template.encode(args, jid, now, {**ambient, **context.meta(own)}, scheduled=scheduled)
            for args, jid, own in zip(arguments, raw, contexts, strict=True)
        ]

    def _queued_statuses(self, jids: Sequence[Jid], dues: Sequence[DueTime] | None) -> Sequence[StatusCommand]:
        ttl_s = self._status_ttl_s
        if not ttl_s:
            return ()
        if dues is None:
            return QueuedCommands(jids, ttl_s)
        return [queued_status(TrackedJob(jid, ttl_s), due) for jid, due in zip(jids, dues, strict=True)]


def _with_lock_key(arguments: bytes, lock_key: str) -> bytes:
    """Return the arguments for a template, followed by the field with the lock key."""
    return b'%b,"%b":"%b"' % (arguments, _LOCK_FIELD, lock_key.encode())


def _escape_percent(text: bytes) -> bytes:
    return text.replace(b"%", b"%%")
