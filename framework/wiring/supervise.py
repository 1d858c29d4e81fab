"""A supervisor that can say to Redis which process died."""

from collections.abc import Callable, Sequence

from redis.exceptions import RedisError

from framework.cluster.supervisor import ChildSpec, OnEvent, Supervisor
from framework.fetch.reaper import retire
from framework.settings.model import Settings
from framework.telemetry import logs
from framework.wiring.connect import open_shards


def supervised(settings: Settings, specs: Sequence[ChildSpec], on_event: OnEvent | None = None) -> Supervisor:
    """Return a supervisor of ``specs``, not started. The jobs of a child that dies are taken back by its successor's first sweep."""
    return Supervisor(specs, on_death=_obituary(settings), on_event=on_event)


def _obituary(settings: Settings) -> Callable[[str, str], None]:
    shards = open_shards(settings, role="supervisor")

    def write(shard: str, identity: str) -> None:
        try:
            retire(shards[shard].client, identity)
        except (RedisError, OSError) as error:
            # Its lease runs out by itself; only the recovery takes longer.
            logs.logger(shard=shard).warning("cannot retire a dead process", identity=identity, error=error)

    return write
