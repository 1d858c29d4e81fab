"""Iterate over the batches of the shards."""

from collections.abc import Iterator

from framework.admin.access import StatusSet
from framework.features.batches.batch import BatchStatus
from framework.features.batches.store import list_batches
from framework.shard.shard import Shard


class BatchSet(StatusSet[BatchStatus]):
    """The batches of a shard, or of all: iterate over their statuses, ``for status in admin.batches():``."""

    def _of_shard(self, shard: Shard) -> Iterator[BatchStatus]:
        return list_batches(shard)


def batches(shard: str | None = None) -> BatchSet:
    """Return the batches of the shard, or of all shards. ``framework.batches.Batch`` acts on one."""
    return BatchSet(shard)
