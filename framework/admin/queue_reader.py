"""Read the queues of one shard, the jobs of a queue in pages while it changes, and which processes serve them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import redis
from redis.exceptions import RedisError, ResponseError

from framework.admin.pages import page_size
from framework.admin.process_list import read_running
from framework.admin.queue_sizes import ListedQueue, read_queue_sizes
from framework.admin.search import list_held_stores
from framework.admin.statistics import count_jobs_by_class, named_queues, reply_number
from framework.declare.declaration import Declaration
from framework.fetch.blocks import expand, packed_jobs, true_size
from framework.process.record import served_queues
from framework.route.router import Router
from framework.route.topology import format_counts, split_names
from framework.shard.shard import Shard
from framework.shard.shards import answering
from framework.text import decode_escaped
from framework.wire import keys
from framework.wire.json import loads_object
from framework.wire.sub_queues import SEPARATOR, SUB_QUEUE, order_of, parent_of

PAGE = 100
"""Jobs of the first read of a queue, and jobs of the read before that each next one reads again: it finds its place by them."""

MOST = 1_000
"""The most further jobs of one read. Redis needs a millisecond to reach the middle of a long queue: fewer are not worth it."""


class QueueState(NamedTuple):
    name: str
    shard: str
    size: int
    latency: float
    """For how long the next job to run has waited, in seconds by Redis's clock; 0 for an empty queue."""
    paused: bool
    keys: int = 0
    """The number of its sub-queues with jobs, of a queue whose classes declare ``fair_by`` or ``priority``."""


def read_queues(shard: Shard, names: Sequence[str] | None = None) -> list[QueueState]:
    """Return the named queues of a shard, or all: those in ``queues`` and the paused ones. Raises redis errors.

    The jobs of sub-queues count as jobs of their queue.
    """
    sizes = read_queue_sizes(shard.client, names or ())
    of_parents: dict[str, list[int]] = {}
    for name, one in sizes.queues.items():
        if SEPARATOR in name and one.jobs:
            of_parents.setdefault(parent_of(name), []).append(one.jobs)
    if names is None:
        names = sorted({*map(parent_of, sizes.queues)})
    none = ListedQueue(0, None)
    return [
        QueueState(
            name,
            shard.name,
            own.jobs + sum(of_parents.get(name, ())),
            0.0 if own.since is None else max(0.0, sizes.now - own.since),
            name in sizes.paused,
            len(of_parents.get(name, ())),
        )
        for name, own in ((name, sizes.queues.get(name, none)) for name in names)
    ]


def sub_queues(client: "redis.Redis", name: str) -> list[str]:
    """Return the names of the queue's sub-queues with jobs, those of the highest level first. Raises redis errors."""
    found = (one for one in map(decode_escaped, named_queues(client)) if one.startswith(name + SEPARATOR))
    return sorted(found, key=order_of)


def known_queues(shard: Shard) -> set[str]:
    """Return the queues that are listed or paused on a shard, or that its processes serve. Raises redis errors."""
    client = shard.client
    paused: Any = client.smembers(keys.PAUSED)
    served = {queue for process in read_running(shard) for queue in process.queues}
    return {*map(parent_of, map(decode_escaped, named_queues(client))), *map(decode_escaped, paused), *served}


def is_known(shard: Shard, name: str) -> bool:
    """Return whether a shard knows the queue: it has jobs, is listed or paused, or is served. Raises redis errors."""
    return bool(shard.client.exists(keys.queue(name))) or name in known_queues(shard)


def next_jobs(client: "redis.Redis", name: str, count: int) -> list[tuple[str, bytes]]:
    """Return the next jobs to run, at most ``count``, each with the name of its list, the next first. Raises redis errors.

    Those of a higher priority come first; the jobs of other sub-queues come behind those of the queue itself.
    """
    found: list[tuple[str, bytes]] = []
    own = _next_in(client, name, count)
    places = sorted((name, *sub_queues(client, name)), key=order_of)
    # The job for which idle processes wait may be of a higher level.
    higher = own[:1] if len(places) > 1 else []
    level, normal = order_of(str(loads_object(higher[0]).get(SUB_QUEUE)) if higher else name)[0], order_of(name)[0]
    for place in places if count > 0 else ():
        if higher and level < normal and order_of(place)[0] >= level:
            found.append((name, higher.pop()))
            own = own[1:]
        if len(found) < count:
            jobs = own if place == name else _next_in(client, place, count - len(found))
            found += [(place, data) for data in jobs]
    return found[:count]


def _next_in(client: "redis.Redis", name: str, count: int) -> list[bytes]:
    found: list[bytes] = []
    size, read = PAGE, 0
    while len(found) < count:
        wanted = min(size, count - len(found))
        reply: Any = client.lrange(keys.queue(name), -read - wanted, -read - 1)
        page = cast("list[bytes]", reply)
        for element in reversed(page):
            found += reversed(expand(client, element))
        if len(page) < wanted:
            break
        size, read = page_size(page, PAGE), read + len(page)
    return found[:count]


def scan_places(client: "redis.Redis", name: str) -> Iterator[tuple[str, bytes]]:
    """Yield the jobs of a queue and of its sub-queues, each with the name of the list. As ``scan_queue``."""
    for place in (name, *sub_queues(client, name)):
        for data in scan_queue(client, place):
            yield place, data


def scan_queue(client: "redis.Redis", name: str) -> Iterator[bytes]:
    """Yield the jobs of one list, the newest first, also those in blocks. As ``scan_elements``."""
    for element in scan_elements(client, name):
        yield from expand(client, element)


def scan_elements(client: "redis.Redis", name: str) -> Iterator[bytes]:
    """Yield the jobs and blocks of one list, the newest first, in pages. Raises redis errors.

    Jobs that stay during the scan are yielded, each once unless more than ``PAGE`` jobs are pushed between two reads. Jobs that
    are pushed, fetched or deleted meanwhile may be missing.
    """
    # The jobs of the last page, which show where the next one begins: pushes move them away from the left end, deletions
    # towards it.
    recent: list[bytes] = []
    start, size, length = 0, PAGE, 0
    while True:
        first, wanted = start - len(recent), len(recent) + size
        window, new_length = _read_window(client, name, first, wanted)
        begin = _behind(window, recent)
        if begin is not None:
            page = window[begin:]
        # None of them is left at its place: they were deleted, or moved on by many pushes.
        elif new_length < length:
            page = window = window[:size]
        else:
            page = window[len(recent) :]
        yield from page
        if first + len(window) >= new_length:
            return
        start, length = first + len(window), new_length
        recent, size = (page or recent)[-PAGE:], page_size(window, MOST)


def _read_window(client: "redis.Redis", name: str, first: int, wanted: int) -> tuple[list[bytes], int]:
    """Return jobs of the queue from an index on, and its length; nothing of a key of another type."""
    pipeline: Any = client.pipeline(transaction=False)
    pipeline.lrange(keys.queue(name), first, first + wanted - 1)
    pipeline.llen(keys.queue(name))
    window, length = pipeline.execute(raise_on_error=False)
    if isinstance(window, ResponseError):
        return [], reply_number(window)
    return cast("list[bytes]", window), reply_number(length)


def _behind(window: Sequence[bytes], recent: Sequence[bytes]) -> int | None:
    """Return the index in ``window`` behind the last of ``recent`` that is still there; ``None`` if none is."""
    indexes = {data: index for index, data in enumerate(window)}
    return next((indexes[data] + 1 for data in reversed(recent) if data in indexes), None)


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
    found, packed = dict[str, int](), packed_jobs(client)
    for listed_name, count in zip(names, counts, strict=True):
        if isinstance(count, int) and count > 0:
            name = parent_of(listed_name)
            found[name] = found.get(name, 0) + true_size(count, listed_name, packed)
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
