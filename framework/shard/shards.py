"""Hold all shards of the configuration by name."""

from collections.abc import Mapping, Sequence
from typing import Any

from framework.errors import ShardUnavailableError, UnknownShardError
from framework.messages import did_you_mean
from framework.settings.model import CoreSettings
from framework.shard.routing_validator import RoutingValidator
from framework.shard.shard import Shard
from framework.store.endpoints import endpoint_of
from framework.telemetry.sentry import tracker_of
from framework.types import Jid, JobState
from framework.wire.status_key import most_advanced

_LOOK_UP_CHUNK_SIZE = 1_000


class Shards(Mapping[str, Shard]):
    """Map names to shards; ``main`` is always among them."""

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
        """Return the state of each job, merged over all shards, with one MGET per shard for a thousand jobs.

        Raises:
            ShardUnavailableError: a shard does not answer; without its reply no state is certain.
        """
        states: dict[Jid, JobState] = {}
        wanted = list(dict.fromkeys(jids))
        for start in range(0, len(wanted), _LOOK_UP_CHUNK_SIZE):
            part = wanted[start : start + _LOOK_UP_CHUNK_SIZE]
            values = zip(*(shard.states(part) for shard in self._shards.values()), strict=True)
            states.update({jid: most_advanced(per_shard) for jid, per_shard in zip(part, values, strict=True)})
        return states

    def cancel(self, jid: Jid) -> bool:
        """Mark a job as cancelled on every shard, as its shard is not known; return whether no shard says that it has ended.

        Raises:
            ShardUnavailableError: a shard does not answer. The job is marked on the others.
        """
        marked: list[bool] = []
        failure: ShardUnavailableError | None = None
        for shard in self._shards.values():
            try:
                marked += shard.cancel([jid])
            except ShardUnavailableError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return all(marked)

    def close(self) -> None:
        """Close every shard's connections."""
        for shard in self._shards.values():
            shard.close()


def open_shards(settings: CoreSettings, *, role: str) -> Shards:
    """Return every configured shard. Opens no socket."""
    validator = open_validated_client(settings)
    return Shards(
        {name: Shard(name, endpoint_of(settings, name), role=role, validator=validator) for name in settings.shards},
        source=settings.config_file_label("redis.yml"),
    )


def open_validated_client(settings: CoreSettings) -> RoutingValidator:
    """Return the validator of the application's own calls to a shard: it raises in development, reports in production."""
    return RoutingValidator(strict=not settings.production, tracker=lambda: tracker_of(settings))
