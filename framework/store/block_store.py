"""Keep blocks of jobs outside of Redis: a block there is a reference then, and its jobs are in the payload store.

The order of the steps, so that no crash loses a job:

1. Pack: the object is durable before a script replaces the jobs in Redis by the reference.
2. Unpack: the object is read, a script replaces the reference by the jobs, and the object is deleted after that.

A death in between leaves an object that no reference names. The sweep of the payload store deletes it.
"""

from weakref import WeakKeyDictionary

import redis
from redis.connection import ConnectionPool

from framework.errors import StoredBlocksError
from framework.wire import blocks


class BlockStore:
    """Say where blocks are. Safe from any thread. This one leaves them in Redis, and cannot read references."""

    def keep(self, block: bytes) -> bytes:
        """Return what stands for a block in Redis: the block, or the reference to it when it is durable. Raises StoredBlocksError."""
        return block

    def read(self, data: bytes) -> bytes:
        """Return the block of a reference; other bytes as they are.

        Raises:
            StoredBlocksError: the store cannot be read now. The jobs are safe, and wait.
            PayloadError: its object is missing or damaged.
        """
        blob_id = blocks.stored_id(data)
        return data if blob_id is None else self._get(blob_id)

    def forget(self, data: bytes) -> None:
        """Delete the object of a reference that is not in Redis, some time later; other bytes have none. Raises no error."""
        blob_id = blocks.stored_id(data)
        if blob_id is not None:
            self._delete(blob_id)

    def _get(self, blob_id: str) -> bytes:
        del blob_id
        raise StoredBlocksError("no payload store is configured in this process (payload_offload.url)")

    def _delete(self, blob_id: str) -> None:
        """Delete an object. Without a store the sweep does it."""


IN_REDIS = BlockStore()
"""Leave blocks in Redis: there is no payload store, or it is not used for them."""

# Whatever reads a shard has a client, and few of these readers know settings.
_stores: "WeakKeyDictionary[ConnectionPool, BlockStore]" = WeakKeyDictionary()


def attach_store(client: "redis.Redis", store: BlockStore) -> "redis.Redis":
    """Let ``block_store`` return this store for a client, and return the client."""
    _stores[client.connection_pool] = store
    return client


def block_store(client: "redis.Redis") -> BlockStore:
    """Return the store of blocks of the shard that a client belongs to."""
    return _stores.get(client.connection_pool, IN_REDIS)
