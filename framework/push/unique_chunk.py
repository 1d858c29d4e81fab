"""Write the jobs of a deduplicated class: each with its lock, or not at all."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from framework.errors import ShardUnavailableError
from framework.shard.shard import Shard
from framework.types import Jid
from framework.wire.resources import UniqueJobs

OnDuplicate: TypeAlias = Callable[[int, Jid], None]
"""Called for each dropped job with its index in the chunk and the jid of the job that owns the lock."""


class UniqueBatch(NamedTuple):
    """Hold jobs for one queue, or with ``None`` for the schedule set, and their indexes in the chunk."""

    queue: str | None
    indexes: Sequence[int]
    jobs: UniqueJobs


class UniqueChunk:
    """Write one chunk. Crash story: ``push_unique.lua`` writes each job with its lock; a repeated step writes nothing again.

    ``on_duplicate`` is ``None`` if duplicates are written too (a class that is not idempotent).
    """

    def __init__(
        self, shard: Shard, batches: Sequence[UniqueBatch], size: int, on_duplicate: OnDuplicate | None, token: str = ""
    ) -> None:
        self._shard = shard
        self._remaining = list(enumerate(batches))
        self._results: list[Jid | None] = [None] * size
        self._on_duplicate = on_duplicate
        self._token = token
        self._any_written = False
        # In the order of the chunk: a middleware may have spread it over several queues.
        by_index = {i: jid for batch in batches for i, jid in zip(batch.indexes, batch.jobs.jids, strict=True)}
        self.jids: Sequence[Jid] = [by_index[index] for index in sorted(by_index)]

    def write(self) -> Sequence[Jid | None]:
        """Write the remaining batches (see ``PreparedChunk``). A repeated batch in doubt returns the result of its first write."""
        while self._remaining:
            position, batch = self._remaining[0]
            token = f"{self._token}:{position}" if self._token else ""
            try:
                owners = self._shard.enqueue_unique(batch.queue, batch.jobs, token)
            except ShardUnavailableError as error:
                error.maybe_written = error.maybe_written or self._any_written
                raise
            self._any_written = True
            # Before the results: an error in them must not write the batch again.
            del self._remaining[0]
            for index, jid, owner in zip(batch.indexes, batch.jobs.jids, owners, strict=True):
                if owner and self._on_duplicate is not None:
                    self._on_duplicate(index, owner)
                else:
                    self._results[index] = jid
        return self._results
