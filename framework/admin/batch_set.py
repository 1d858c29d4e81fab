"""List the batches of the shards, and cancel or delete one."""

from collections.abc import Iterator

from framework.admin.access import StatusSet
from framework.declare.batch_port import BatchStatus
from framework.shard.groups import read_batches, scan_bids, scan_members
from framework.shard.shard import Shard
from framework.store.script import BATCH_CHANGE
from framework.wire import keys
from framework.wire.batch_fields import BatchAction


class BatchSet(StatusSet[BatchStatus]):
    """The batches of a shard, or of all: iterate over their statuses, ``for status in admin.batches():``."""

    def _of_shard(self, shard: Shard) -> Iterator[BatchStatus]:
        return list_batches(shard)


def batches(shard: str | None = None) -> BatchSet:
    """Return the batches of the shard, or of all shards. ``framework.batches.Batch`` acts on one."""
    return BatchSet(shard)


def list_batches(shard: Shard) -> Iterator[BatchStatus]:
    """Yield the batches of one shard. Raises redis errors."""
    for bids in scan_bids(shard.client):
        yield from read_batches(shard.client, shard.name, bids)


def find_batch(shard: Shard, bid: str) -> BatchStatus | None:
    """Return the status of a batch, ``None`` if the shard does not have it. Raises redis errors."""
    return next(iter(read_batches(shard.client, shard.name, [bid])), None)


def change_batch(shard: Shard, bid: str, action: BatchAction) -> bool:
    """Cancel or delete a batch; return whether the shard has it. Nested batches are cancelled first. Raises redis errors."""
    if action == "cancel":
        for child in scan_members(shard.client, bid, "children"):
            change_batch(shard, child, action)
    return bool(BATCH_CHANGE(shard.client, [keys.batch(bid), keys.BATCHES, keys.CANCELLED], [bid, action]))
