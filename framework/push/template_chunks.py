"""Prepare the chunks of a bulk push from the template of its class, without a dict per job."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from framework.declare.bulk import CHUNK_SIZE, BulkChunk
from framework.declare.request import BulkRequest, DueTime
from framework.errors import ExceedLimitError
from framework.push.bulk import PreparedChunk
from framework.push.push_plan import PushPlan
from framework.push.schedule_writer import ScheduleWriter
from framework.push.template import JobTemplate
from framework.push.unique_push import UniquePush, with_lock_key
from framework.telemetry import context
from framework.types import Jid, Json
from framework.wire.ids import generate_jids
from framework.wire.job import wire_timestamp_json


class ChunkArguments(NamedTuple):
    """Hold the arguments of a chunk within the size limits, as JSON with a line per job."""

    lines: bytes
    lock_keys: Sequence[str] | None
    """The lock keys of a deduplicated class, if arguments were compressed: a key is that of the uncompressed arguments."""


class TemplateChunks:
    """Prepare the chunks of one bulk without a dict per job. Frees the arguments of each prepared chunk."""

    def __init__(
        self,
        plan: PushPlan,
        request: BulkRequest,
        pending: deque[ChunkArguments],
        unique: UniquePush | None,
        clock: Callable[[], float],
        schedule_writer: ScheduleWriter,
    ) -> None:
        self._plan = plan
        self._request = request
        self._pending = pending
        self._unique = unique
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
        lines, lock_keys = self._pending[0]
        # JSON escapes every line break inside of a string, so each line is one job.
        arguments = lines.split(b"\n")
        if self._unique is not None:
            lock_keys = lock_keys or self._unique.lock_keys(arguments)
            arguments = list(map(with_lock_key, arguments, lock_keys))
        *jids, token = generate_jids(len(arguments) + 1)
        ambient = plan.ambient_fields()
        payloads = self._payloads(arguments, jids, ambient, scheduled=due is not None)
        times: list[float] | None = None
        if self._first_due_at is not None:
            times = [self._first_due_at + request.delay_s_of(index) for index in range(start, start + len(jids))]
        # Last: if a step above raises, `resume` prepares the same chunk again.
        self._pending.popleft()
        self._start += CHUNK_SIZE
        if self._unique is None or lock_keys is None:
            return _TemplateChunk(plan, jids, payloads, times, token)
        dues = None if times is None else [DueTime(at) for at in times]
        return self._unique.chunk(payloads, lock_keys, jids, ambient, dues, token)

    def _payloads(
        self, arguments: list[bytes], jids: list[Jid], ambient: Mapping[str, Json], *, scheduled: bool
    ) -> list[bytes]:
        plan, contexts, raw = self._plan, self._request.contexts, [jid.encode() for jid in jids]
        now = wire_timestamp_json(self._clock())
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


def fit_chunks(template: JobTemplate, chunks: Iterable[BulkChunk], unique: UniquePush | None) -> deque[ChunkArguments]:
    """Return the argument lines of all chunks, every job within the size limits.

    Raises:
        ExceedLimitError: names the first job that is too large.
    """
    fitted: deque[ChunkArguments] = deque()
    for number, (lines, longest) in enumerate(chunks):
        if longest < template.raw_size_limit:
            fitted.append(ChunkArguments(lines, None))
        else:
            jobs = lines.split(b"\n")
            small = b"\n".join(_fit_lines(template, jobs, number * CHUNK_SIZE))
            fitted.append(ChunkArguments(small, None if unique is None else unique.lock_keys(jobs)))
    return fitted


def _fit_lines(template: JobTemplate, lines: list[bytes], start: int) -> Iterator[bytes]:
    for job, arguments in enumerate(lines, start):
        try:
            yield template.fit_to_limit(arguments)
        except ExceedLimitError as error:
            raise error.for_bulk_index(job) from None
