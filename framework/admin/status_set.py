"""A set of batches or of workflows over the shards, which a loop reads."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Generic, TypeVar

from framework.admin.access import iterate
from framework.async_twin import async_items
from framework.shard.shard import Shard

Status = TypeVar("Status")


class StatusSet(ABC, Generic[Status]):
    """All batches or workflows of one shard or of every shard: a loop reads the status of each."""

    def __init__(self, shard: str | None) -> None:
        self.shard = shard

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shard={self.shard!r})"

    @abstractmethod
    def _of_shard(self, shard: Shard) -> Iterable[Status]:
        """Yield the statuses of one shard."""

    def __iter__(self) -> Iterator[Status]:
        """Yield each status, in pages, while they change.

        Raises:
            ShardUnavailableError: a shard did not answer, or stopped to; after the statuses of the others.
            UnknownShardError: the configuration has no such shard.
            ConfigurationError: the configuration is invalid.
        """
        return iterate(self.shard, self._of_shard)

    def __aiter__(self) -> AsyncIterator[Status]:
        """Yield as a loop without ``async``, without blocking the event loop."""
        return async_items(self)
