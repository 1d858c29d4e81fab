"""Prepare and write the chunks of one bulk push."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from framework.declare.request import CHUNK_SIZE, BulkRequest
from framework.errors import ShardUnavailableError
from framework.push.bulk import PreparedChunk
from framework.push.deduplication import Deduplication
from framework.push.job_batch import JobBatch
from framework.push.push_plan import PushPlan
from framework.types import Jid
from framework.wire.job import generate_jids

WriteBatch: TypeAlias = Callable[[PushPlan, JobBatch, str], Sequence[Jid | None]]
"""Writes a batch under a token; returns the ids of its jobs, ``None`` for dropped duplicates."""


class ChunkSource:
    """Prepare the chunks of one bulk one after the other. Frees the arguments of each prepared chunk."""

    def __init__(
        self,
        plan: PushPlan,
        request: BulkRequest,
        locks: Deduplication | None,
        write: WriteBatch,
        first_due_at: Callable[[], float | None],
    ) -> None:
        """Check the arguments of all jobs. Raises ArgumentsError and ExceedLimitError."""
        self._plan = plan
        self._request = request
        self._locks = locks
        self._write = write
        self._find_first_due_at = first_due_at
        self._first_due_at: float | None = None
        self._pending: deque[Any] = plan.payloads.check_bulk(request, locks)
        self._start = request.start

    def prepare(self) -> PreparedChunk | None:
        if not self._pending:
            return None
        plan = self._plan
        if self._first_due_at is None:
            self._first_due_at = self._find_first_due_at()
        size, batches = plan.payloads.chunk(
            self._pending[0], self._start, self._request, self._first_due_at, self._locks, plan.fields_of_push()
        )
        # Last: if a step above raises, `resume` prepares the same chunk again.
        self._pending.popleft()
        self._start += CHUNK_SIZE
        return _Chunk(plan, batches, size, self._write)


class _Chunk:
    """Write the batches of one chunk, each under a token of its own: a repeated step writes nothing again."""

    def __init__(self, plan: PushPlan, batches: Sequence[JobBatch], size: int, write: WriteBatch) -> None:
        self._plan = plan
        self._write = write
        self._remaining = deque(zip(batches, generate_jids(len(batches)), strict=True))
        self._results: list[Jid | None] = [None] * size
        self._batches = batches
        self._any_written = False
        self._tried = False
        """Whether the first remaining batch may have been written."""

    @property
    def jids(self) -> Sequence[Jid]:
        """See ``PreparedChunk``. In the order of the chunk: a middleware may have spread it over several queues."""
        jids = {index: jid for batch in self._batches for index, jid in zip(_indexes(batch), batch.jids, strict=True)}
        return [jids[index] for index in sorted(jids)]

    def write(self) -> Sequence[Jid | None]:
        while self._remaining:
            batch, token = self._remaining[0]
            try:
                written = self._write_once(batch, token)
            except ShardUnavailableError as error:
                error.maybe_written = error.maybe_written or self._any_written
                raise
            self._remaining.popleft()
            self._any_written, self._tried = True, False
            if batch.indexes is None:
                self._results[:] = written
            else:
                for index, jid in zip(batch.indexes, written, strict=True):
                    self._results[index] = jid
        return self._results

    def _write_once(self, batch: JobBatch, token: str) -> Sequence[Jid | None]:
        # The token is checked before the statuses are written: the jobs of an earlier try may have started since, and `queued`
        # must not overwrite their status. The script of a deduplicated class checks it itself.
        if self._tried and batch.unique is None and self._plan.shard.is_pushed(token):
            return batch.jids
        self._tried = True
        return self._write(self._plan, batch, token)


def _indexes(batch: JobBatch) -> Sequence[int]:
    return range(len(batch.jids)) if batch.indexes is None else batch.indexes
