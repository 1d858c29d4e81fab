"""What the shards say of themselves: which queues are served there, in which jobs wait, and which jobs should be elsewhere."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import redis
from redis.exceptions import RedisError

from framework.admin.job_counts import count_jobs_by_class
from framework.admin.search import list_held_stores
from framework.declare.declaration import Declaration
from framework.process.record import served_queues
from framework.route.router import Router
from framework.route.split import format_counts, split_names
from framework.settings.model import Settings
from framework.wire import keys
from framework.wiring.client import open_shards


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


def misplaced_jobs(
    settings: Settings, router: Router, declarations: Sequence[Declaration], progress: Callable[[str, int], None]
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield for each shard that answers the classes of other shards whose jobs are there, and where.

    Every job of the shard that may run is gone through, in bounded steps; the dead and the interrupted set are not, as their
    jobs run only when an operator says so.
    """
    shards = open_shards(settings, role="lint")
    try:
        for name, shard in sorted(shards.items()):
            names = split_names(router, declarations, name)
            try:
                yield name, _misplaced_on(shard.client, names, progress) if names else {}
            except (RedisError, OSError):
                continue  # the caller that asks the shard for its queues tells it
    finally:
        shards.close()


def _misplaced_on(client: "redis.Redis", names: dict[str, str], progress: Callable[[str, int], None]) -> dict[str, str]:
    found = {worker: dict[str, int]() for worker in names.values()}
    for name, places in count_jobs_by_class(client, names, progress).items():
        for place in places.keys() - {keys.DEAD, keys.INTERRUPTED}:
            found[names[name]][place] = found[names[name]].get(place, 0) + places[place]
    for parked in list_held_stores(client):
        if parked.name in names:
            place = "parked for a pause" if parked.kind == "paused" else "waiting at the limit"
            at = found[names[parked.name]]
            at[place] = at.get(place, 0) + int(client.zcard(parked.key))
    return {worker: format_counts(dict(sorted(places.items()))) for worker, places in found.items() if places}
