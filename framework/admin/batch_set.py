"""List the batches of the shards, and cancel or delete one."""

from collections.abc import AsyncIterator, Iterator

from framework.admin.access import iterate
from framework.async_twin import async_items
from framework.declare.batch_port import BatchStatus
from framework.shard.batch_reader import read_batches, scan_bids, scan_members
from framework.shard.shard import Shard
from framework.store.script import BATCH_CHANGE
from framework.wire import keys
from framework.wire.batch_fields import BatchAction


class BatchSet:
    """The batches of a shard, or of all: iterate over their statuses, ``for status in admin.batches():``."""

    def __init__(self, shard: str | None) -> None:
        self.shard = shard

    def __repr__(self) -> str:
        return f"BatchSet(shard={self.shard!r})"

    def __iter__(self) -> Iterator[BatchStatus]:
        """Yield the status of each batch, in pages, while they change.

        Raises:
            ShardUnavailableError: a shard did not answer, or stopped to; after the batches of the others.
            UnknownShardError: the configuration has no such shard.
        """
        return iterate(self.shard, list_batches)

    def __aiter__(self) -> AsyncIterator[BatchStatus]:
        """Yield as a loop without ``async``, without blocking the event loop."""
        return async_items(self)


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
