"""Read the state of the shards: the served queues, the queues with jobs, and jobs that belong to another shard."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import redis
from redis.exceptions import RedisError

from framework.admin.job_counts import count_jobs_by_class
from framework.admin.search import list_held_stores
from framework.declare.declaration import Declaration
from framework.process.record import served_queues
from framework.route.router import Router
from framework.route.split import format_counts, split_names
from framework.shard.shard import Shard
from framework.shard.shards import answering
from framework.wire import keys
from framework.wire.sub_queues import parent_of


class LiveQueues(NamedTuple):
    """The queues of one shard: those that running processes serve, and the number of jobs in each non-empty one.

    ``failure`` is the error of a shard that does not answer; the other fields are empty then.
    """

    served: frozenset[str]
    waiting: dict[str, int]
    failure: str | None = None


def read_live_queues(shards: Mapping[str, Shard]) -> Iterator[tuple[str, LiveQueues]]:
    """Read each shard; go on after one that does not answer, which comes last."""
    for shard, late in answering([shards[name] for name in sorted(shards)]):
        if late is not None:
            yield shard.name, LiveQueues(frozenset(), {}, late.reason)
            continue
        try:
            yield shard.name, LiveQueues(frozenset(served_queues(shard.client)), _waiting(shard.client))
        except (RedisError, OSError) as error:
            yield shard.name, LiveQueues(frozenset(), {}, f"{shard.endpoint.shown}: {error}")


def _waiting(client: "redis.Redis") -> dict[str, int]:
    listed: Any = client.smembers(keys.QUEUES)
    names = sorted(name.decode(errors="replace") for name in listed)
    pipeline: Any = client.pipeline(transaction=False)
    for name in names:
        pipeline.llen(keys.queue(name))
    # A key of another type, which holds no jobs, answers with an error.
    counts = pipeline.execute(raise_on_error=False)
    found: dict[str, int] = {}
    for name, count in zip(map(parent_of, names), counts, strict=True):
        if isinstance(count, int) and count > 0:
            found[name] = found.get(name, 0) + count
    return found


def misplaced_jobs(
    shards: Mapping[str, Shard],
    router: Router,
    declarations: Sequence[Declaration],
    progress: Callable[[str, int], None],
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield for each shard that answers the classes of other shards that have jobs there, and where.

    The call reads every job of the shard that may run, in bounded steps. It leaves out the dead and the interrupted set, whose
    jobs run only when an operator retries them.
    """
    for shard, late in answering([shards[name] for name in sorted(shards)]):
        if late is not None:
            continue
        names = split_names(router, declarations, shard.name)
        try:
            yield shard.name, _misplaced_on(shard.client, names, progress) if names else {}
        # ``read_live_queues`` reports the failure.
        except (RedisError, OSError):
            continue


def _misplaced_on(client: "redis.Redis", names: dict[str, str], progress: Callable[[str, int], None]) -> dict[str, str]:
    found = {worker: dict[str, int]() for worker in names.values()}
    for name, places in count_jobs_by_class(client, names, progress).items():
        for place in places.keys() - {keys.DEAD, keys.INTERRUPTED}:
            found[names[name]][place] = found[names[name]].get(place, 0) + places[place]
    for held in list_held_stores(client):
        if held.name in names:
            place = "held by a pause" if held.kind == "paused" else "held by a limit"
            counts = found[names[held.name]]
            counts[place] = counts.get(place, 0) + int(client.zcard(held.key))
    return {worker: format_counts(dict(sorted(places.items()))) for worker, places in found.items() if places}
