"""All shards of the configuration, by name."""

from collections.abc import Mapping, Sequence
from typing import Any

from framework.errors import UnknownShardError
from framework.messages import did_you_mean
from framework.shard.shard import Shard
from framework.types import Jid, JobState
from framework.wire.status_key import most_advanced

_LOOK_UP_CHUNK_SIZE = 1_000


class Shards(Mapping[str, Shard]):
    """All shards by name; ``main`` is always among them."""

    def __init__(self, shards: Mapping[str, Shard], *, source: str = "config/redis.yml") -> None:
        self._shards = dict(shards)
        self._source = source

    def __getitem__(self, name: str) -> Shard:
        try:
            return self._shards[name]
        except KeyError:
            known = sorted(self._shards)
            raise UnknownShardError(
                f"no shard is named {name!r}{did_you_mean(name, known)}; {self._source} has: {', '.join(known)}"
            ) from None

    def __iter__(self) -> Any:
        return iter(self._shards)

    def __len__(self) -> int:
        return len(self._shards)

    def look_up(self, jids: Sequence[Jid]) -> dict[Jid, JobState]:
        """Return the state of each job, merged over all shards: a MGET each for a thousand jobs.

        Raises:
            ShardUnavailableError: one does not answer; without its word no state is certain.
        """
        states: dict[Jid, JobState] = {}
        wanted = list(dict.fromkeys(jids))
        for start in range(0, len(wanted), _LOOK_UP_CHUNK_SIZE):
            part = wanted[start : start + _LOOK_UP_CHUNK_SIZE]
            words = zip(*(shard.states(part) for shard in self._shards.values()), strict=True)
            states.update({jid: most_advanced(found) for jid, found in zip(part, words, strict=True)})
        return states

    def close(self) -> None:
        """Close every shard's connections."""
        for shard in self._shards.values():
            shard.close()
