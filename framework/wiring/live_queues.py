"""What the shards say of themselves: which queues are served there, and in which jobs wait."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import redis
from redis.exceptions import RedisError

from framework.process.record import served_queues
from framework.settings.model import Settings
from framework.wire import keys
from framework.wiring.connect import open_shards


class LiveQueues(NamedTuple):
    """One shard: the queues that running processes serve, and how many jobs wait in each queue that has some.

    ``failure`` says why it could not be asked; then nothing is known.
    """

    served: frozenset[str]
    waiting: dict[str, int]
    failure: str | None = None


def live_queues(settings: Settings) -> Iterator[tuple[str, LiveQueues]]:
    """Ask each shard in turn; one that does not answer stops none of the others."""
    shards = open_shards(settings, role="lint")
    try:
        for name, shard in sorted(shards.items()):
            try:
                yield name, LiveQueues(frozenset(served_queues(shard.client)), _waiting(shard.client))
            except (RedisError, OSError) as error:
                yield name, LiveQueues(frozenset(), {}, f"{shard.endpoint.shown}: {error}")
    finally:
        shards.close()


def _waiting(client: "redis.Redis") -> dict[str, int]:
    listed: Any = client.smembers(keys.QUEUES)
    names = sorted(name.decode(errors="replace") for name in listed)
    pipeline: Any = client.pipeline(transaction=False)
    for name in names:
        pipeline.llen(keys.queue(name))
    # A key of another type answers with an error: it holds no jobs.
    counts = pipeline.execute(raise_on_error=False)
    return {name: count for name, count in zip(names, counts, strict=True) if isinstance(count, int) and count > 0}
