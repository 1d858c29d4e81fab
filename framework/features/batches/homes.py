"""Find the shard that has a batch or a workflow, and remember it."""

from collections.abc import Callable
from typing import TypeVar

from framework.errors import FrameworkError, ShardUnavailableError
from framework.shard.shard import Shard
from framework.shard.shards import Shards

T = TypeVar("T")

_MOST_KNOWN = 10_000
"""Ids whose shard a process remembers."""


class Homes:
    """The shards of ids. Safe to share between threads."""

    def __init__(self, shards: Callable[[], Shards], unknown: Callable[[str], FrameworkError]) -> None:
        self._shards = shards
        self._unknown = unknown
        # By id; two threads may find the same.
        self._homes: dict[str, str] = {}

    def forget(self, name: str) -> None:
        """Forget the shard of an id."""
        self._homes.pop(name, None)

    def ask(self, name: str, ask: Callable[[Shard], T | None]) -> T:
        """Return the answer of the shard that has the id; the others answer ``None``.

        Raises:
            FrameworkError: no shard has it (the error that ``unknown`` makes).
            ShardUnavailableError: a shard that may have it does not answer.
        """
        known, failure, shards = self._homes.get(name), None, self._shards()
        for shard in [known] if known is not None else sorted(shards):
            try:
                found = ask(shards[shard])
            except ShardUnavailableError as error:
                failure = failure or error
                continue
            if found is not None:
                if len(self._homes) >= _MOST_KNOWN:
                    self._homes.clear()
                self._homes[name] = shard
                return found
        if failure is not None:
            raise failure
        raise self._unknown(name)
