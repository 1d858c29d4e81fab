"""Prepare and write a bulk push chunk by chunk, and resume it after a failure without writing a chunk twice.

Delayed jobs are written here too: a delay counts by Redis's clock, and a host with a wrong clock gets a warning.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from framework.declare.request import CHUNK_SIZE, BulkRequest, DueTime
from framework.errors import BacklogFullError, BulkPushError, PushError, ShardUnavailableError
from framework.process_clock import process_clock
from framework.push.deduplication import Deduplication
from framework.push.job_batch import JobBatch
from framework.push.push_plan import PushPlan
from framework.shard.connection import TOKEN_S
from framework.shard.shard import Shard
from framework.telemetry.logs import LogRateLimit
from framework.types import Jid
from framework.wire.accepted import CountedJobs
from framework.wire.job import generate_jid, generate_jids
from framework.wire.status_key import StatusCommand

_RESUME_WITHIN_S = TOKEN_S - 30.0
"""A chunk in doubt may be repeated this long after it was sent: well before Redis deletes its token."""


SKEW_S = 2.0
"""The clock difference between a host and Redis from which a warning is logged."""

# Seconds between two warnings about one shard.
_LOG_INTERVAL_S = 3_600.0
# Seconds between two clock checks of pushes whose due time does not need Redis's clock.
_CLOCK_CHECK_PERIOD_S = 60.0


class ScheduleWriter:
    """Write jobs to the schedule set. Shared between threads."""

    def __init__(self) -> None:
        self._log_limit = LogRateLimit(_LOG_INTERVAL_S)
        self._clock_check_limit = LogRateLimit(_CLOCK_CHECK_PERIOD_S)

    def write(
        self,
        shard: Shard,
        payload: bytes,
        due: DueTime,
        statuses: Sequence[StatusCommand],
        counted: CountedJobs | None = None,
    ) -> None:
        """Put one job into the shard's schedule set, with its status if it is tracked.

        Raises:
            ShardUnavailableError, BacklogFullError: as ``Shard.enqueue``.
        """
        if due.delay_s is not None:
            began = process_clock.now()
            self._warn_if_skewed(shard, began, shard.schedule_in(due.delay_s, payload, statuses, counted))
            return
        self.check_clock(shard)
        if counted is None:
            shard.schedule_one(due.at, payload, statuses)
        else:
            shard.schedule([(due.at, payload)], "", statuses, counted)

    def first_due_at(self, shard: Shard, due: DueTime) -> float:
        """Return the due time of a bulk's first job by Redis's clock.

        Redis's time is read once per bulk, so that the jobs keep their spacing.

        Raises:
            ShardUnavailableError: the shard did not answer.
        """
        if due.delay_s is None:
            self.check_clock(shard)
            return due.at
        began = process_clock.now()
        now = shard.time()
        self._warn_if_skewed(shard, began, now)
        return now + due.delay_s

    def check_clock(self, shard: Shard) -> None:
        """Compare the clocks, at a limited rate: a push for a time (``perform_at``) relies on the clock of its host."""
        if not self._clock_check_limit.hit(shard.name):
            return
        began = process_clock.now()
        try:
            now = shard.time()
        except ShardUnavailableError:
            # The push itself raises this error.
            return
        self._warn_if_skewed(shard, began, now)

    def _warn_if_skewed(self, shard: Shard, began: float, now: float) -> None:
        # Redis answered between the two readings of the host's clock: only a time outside of that interval is skew.
        skew_s = max(0.0, began - now) + min(0.0, process_clock.now() - now)
        if abs(skew_s) < SKEW_S:
            return
        side = "ahead of" if skew_s > 0 else "behind"
        self._log_limit.warning(
            shard.name,
            f"this host's clock is {abs(skew_s):,.1f} s {side} the clock of the shard's Redis. Delays count by Redis's "
            "clock, but the times of perform_at and in payloads are wrong. Synchronize this host's clock.",
            "clock.skew",
            shard=shard.name,
            skew_s=round(skew_s, 3),
        )


WriteBatch: TypeAlias = Callable[[PushPlan, JobBatch, str], Sequence[Jid | None]]
"""Writes a batch under a token; returns the ids of its jobs, ``None`` for dropped duplicates."""


class PreparedChunk:
    """Write the batches of one chunk, with the same bytes at every try. Each has a token: a repeated step writes nothing again."""

    def __init__(
        self,
        plan: PushPlan,
        batches: Sequence[JobBatch],
        size: int,
        write: WriteBatch,
        tokens: Sequence[str] | None = None,
    ) -> None:
        self._plan = plan
        self._write = write
        self._remaining = deque(zip(batches, tokens or generate_jids(len(batches)), strict=True))
        self._results: list[Jid | None] = [None] * size
        self._taken = 0
        """The first of the results that ``take_written`` has returned."""
        self._batches = batches
        self._any_written = False
        self._tried = False
        """Whether the first remaining batch may have been written."""

    @property
    def jids(self) -> Sequence[Jid]:
        """Return the ids in the order of the chunk: a middleware may have spread it over several queues."""
        jids = {index: jid for batch in self._batches for index, jid in zip(_indexes(batch), batch.jids, strict=True)}
        return [jids[index] for index in sorted(jids)]

    def write(self) -> Sequence[Jid | None]:
        """Write the jobs that are not written yet; return the ids not taken yet in input order, ``None`` for dropped jobs.

        Raises:
            ShardUnavailableError: the shard did not confirm the write.
            BacklogFullError: the limit of the class is reached: none of the remaining jobs is written, and earlier ones are.
        """
        while self._remaining:
            batch, token = self._remaining[0]
            try:
                written = self._write_once(batch, token)
            except ShardUnavailableError as error:
                error.maybe_written = error.maybe_written or self._any_written
                raise
            except BacklogFullError as error:
                if not 0 < error.free < len(batch.jids):
                    raise
                # Each part has a token, so that a lost reply to one of them is no doubt about the other.
                first, rest = batch._replace(indexes=_indexes(batch)).split(error.free)
                self._remaining[0] = (rest, generate_jid())
                self._remaining.appendleft((first, generate_jid()))
                continue
            self._remaining.popleft()
            self._any_written, self._tried = True, False
            if batch.indexes is None:
                self._results[:] = written
            else:
                for index, jid in zip(batch.indexes, written, strict=True):
                    self._results[index] = jid
        return self._results[self._taken :]

    def take_written(self) -> Sequence[Jid | None]:
        """Return the results of the jobs before the first one that is not written."""
        end = min((_indexes(batch)[0] for batch, _ in self._remaining), default=len(self._results))
        taken, self._taken = self._results[self._taken : end], end
        return taken

    @property
    def has_later_written(self) -> bool:
        """Whether a job is written behind one that is not: a chunk goes to several queues."""
        left = {index for batch, _ in self._remaining for index in _indexes(batch)}
        return any(jid is not None for at, jid in enumerate(self._results) if at >= self._taken and at not in left)

    def _write_once(self, batch: JobBatch, token: str) -> Sequence[Jid | None]:
        # The token is checked before the statuses are written: the jobs of an earlier try may have started since, and `queued`
        # must not overwrite their status. The script of a deduplicated class checks it itself.
        if self._tried and batch.unique is None and self._plan.of(batch).shard.is_pushed(token):
            return batch.jids
        self._tried = True
        return self._write(self._plan, batch, token)


class ChunkSource:
    """Prepare the chunks of one bulk one after the other. Frees the arguments of each prepared chunk."""

    def __init__(
        self,
        plan: PushPlan,
        request: BulkRequest,
        locks: Deduplication | None,
        write: WriteBatch,
        schedule: ScheduleWriter,
        *,
        keeps: bool,
    ) -> None:
        """Check the arguments of all jobs. Raises ArgumentsError and ExceedLimitError.

        ``keeps``: jobs that Redis does not take are kept, so an outage is no error.
        """
        self._plan = plan
        self._request = request
        self._locks = locks
        self._write = write
        self._schedule = schedule
        self._keeps = keeps
        self._first_due_at: float | None = None
        self._pending: deque[Any] = plan.payloads.check_bulk(request, locks)
        self._start = request.start

    def prepare(self) -> PreparedChunk | None:
        if not self._pending:
            return None
        plan = self._plan
        if self._first_due_at is None:
            self._first_due_at = self._read_first_due_at()
        size, batches = plan.payloads.chunk(
            self._pending[0], self._start, self._request, self._first_due_at, self._locks, plan.fields_of_push()
        )
        # Last: if a step above raises, `resume` prepares the same chunk again.
        self._pending.popleft()
        self._start += CHUNK_SIZE
        return PreparedChunk(plan, batches, size, self._write)

    def _read_first_due_at(self) -> float | None:
        due = self._request.due
        try:
            return None if due is None else self._schedule.first_due_at(self._plan.shard, due)
        except ShardUnavailableError:
            # The clock of this host, as the push is kept at the same outage.
            if not self._keeps or due is None:
                raise
            return due.at


def _indexes(batch: JobBatch) -> Sequence[int]:
    return range(len(batch.jids)) if batch.indexes is None else batch.indexes


# Decision 166: a failed bulk push resumes under tokens.
class BulkPush:
    """Write the chunks of a source. Used by one thread at a time."""

    def __init__(self, source: ChunkSource) -> None:
        self._source = source
        self._jids: list[Jid | None] = []
        self._chunk: PreparedChunk | None = None
        self._in_doubt_since: float | None = None
        """When the current chunk was first sent, if it may have been written."""

    def run(self) -> list[Jid | None]:
        """Write all remaining chunks; return the ids of all jobs in input order.

        Raises:
            BulkPushError: a chunk was not or not certainly written, or could not be prepared.
            Exception: preparing the first chunk failed; nothing was written.
        """
        while True:
            try:
                if self._chunk is None:
                    self._chunk = self._source.prepare()
            except Exception as error:
                # A client middleware may raise anything. The error must name the jobs that are written.
                if not self._jids and not isinstance(error, ShardUnavailableError):
                    raise
                raise self._failure(error) from error
            if self._chunk is None:
                return self._jids
            sent_at = process_clock.monotonic()
            try:
                self._jids += self._chunk.write()
            except ShardUnavailableError as error:
                if error.maybe_written and self._in_doubt_since is None:
                    self._in_doubt_since = sent_at
                raise self._failure(error) from error
            except BacklogFullError as error:
                self._jids += self._chunk.take_written()
                if self._chunk.has_later_written:
                    self._in_doubt_since = sent_at
                raise self._failure(error) from error
            self._chunk = self._in_doubt_since = None

    def _resume(self, start: int) -> list[Jid | None]:
        if self._in_doubt_since is not None and process_clock.monotonic() - self._in_doubt_since > _RESUME_WITHIN_S:
            raise self._failure(
                PushError(
                    f"Its chunk was sent more than {_RESUME_WITHIN_S:.0f} s ago: Redis may no longer know whether it was written."
                )
            )
        return self.run()[start:]

    def _failure(self, cause: Exception) -> BulkPushError:
        start = len(self._jids)
        in_doubt = self._chunk.jids if self._chunk is not None and self._in_doubt_since is not None else ()
        maybe_written = self._in_doubt_since is not None
        return BulkPushError(
            self._jids,
            start,
            cause,
            maybe_written=maybe_written,
            in_doubt=in_doubt,
            resume=lambda: self._resume(start),
        )
