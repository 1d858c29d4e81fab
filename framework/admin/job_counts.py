"""Count the jobs of some classes on one shard, by place. Reads in bounded steps while processes run; moves nothing."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeAlias, cast

import redis
from redis.exceptions import ResponseError

from framework.errors import PayloadError
from framework.store.script import is_wrong_type
from framework.text import decode_escaped
from framework.types import Payload
from framework.wire import keys
from framework.wire.job import decode
from framework.wire.keys import capsules_of
from framework.wire.sub_queues import parent_of

PAGE_SIZE = 500
"""Jobs or keys per command: Redis serves other clients in between, however long a queue is."""

OnProgress: TypeAlias = Callable[[str, int], None]
"""Receives, after every step, the key that is scanned and the number of jobs scanned so far."""


def ignore_progress(_key: str, _scanned: int) -> None:
    """Report no progress (an ``OnProgress``)."""


IN_FLIGHT = "in flight"
"""The place of jobs that a process has fetched and not acknowledged."""

QUEUE_PREFIX = "queue "
"""The prefix of a place that is a queue; the queue's name follows."""

# Bytes: names that other programs wrote need not be text.
_QUEUE_KEY_PREFIX, _WORKING_KEY_PREFIX = keys.queue("").encode(), keys.working("").encode()


def count_jobs_by_class(
    client: "redis.Redis", names: Collection[str], on_progress: OnProgress
) -> Mapping[str, Counter[str]]:
    """Return for each wire name how many jobs are at which place: ``queue NAME``, a sorted set's key, or ``in flight``.

    A job that moves meanwhile may be counted twice, and one that goes back may be missed: the counts are no snapshot.
    ``on_progress`` receives the place and the number of jobs scanned so far, after every step. Raises redis errors.
    """
    found = {name: Counter[str]() for name in names}
    for name, place, _ in jobs_of_classes(client, names, on_progress):
        found[name][place] += 1
    return found


def jobs_of_classes(
    client: "redis.Redis", names: Collection[str], on_progress: OnProgress
) -> Iterator[tuple[str, str, Payload]]:
    """Yield class, place and payload of each job of these classes, as ``count_jobs_by_class`` counts them."""
    # Most payloads belong to other classes, and are not parsed. JSON may write a name with escapes.
    likely = re.compile(b"|".join([rb"\\u00", *(re.escape(name.encode()) for name in names)]))
    scanned = 0
    for place, page in _pages(client):
        for data in page:
            if likely.search(data):
                payload = _payload_of(data)
                if (name := str(payload.get("class"))) in names:
                    yield name, place, payload
        scanned += len(page)
        on_progress(place, scanned)


def _pages(client: "redis.Redis") -> Iterator[tuple[str, list[bytes]]]:
    """Yield all jobs of the shard with their place: first where jobs come from, then where they go to."""
    for key in (keys.SCHEDULE, keys.RETRY):
        yield from _members(client, key)
    for queue in queue_names(client):
        yield from _elements(
            client, _QUEUE_KEY_PREFIX + queue, QUEUE_PREFIX + parent_of(queue.decode(errors="replace"))
        )
    for owner in _owners(client):
        yield from _elements(client, _WORKING_KEY_PREFIX + owner, IN_FLIGHT)
    for key in (keys.DEAD, keys.INTERRUPTED):
        yield from _members(client, key)


def _owners(client: "redis.Redis") -> Iterator[bytes]:
    """Yield the owners of working lists: each registered process, and its further capsules."""
    identities: Any = client.zrange(keys.REGISTRY, 0, -1)
    pipeline: Any = client.pipeline(transaction=False)
    for identity in identities:
        pipeline.hgetall(keys.process(decode_escaped(identity)))
    # A key of another type, which names no capsule, answers with an error.
    for identity, fields in zip(identities, pipeline.execute(raise_on_error=False), strict=True):
        yield identity
        for capsule in capsules_of(cast("dict[bytes, bytes]", fields) if isinstance(fields, dict) else ()):
            yield identity + b"/" + capsule.encode()


def queue_names(client: "redis.Redis") -> list[bytes]:
    """Return the queues in ``queues``, and those with jobs that are missing there. Raises redis errors."""
    held = cast("Iterator[bytes]", client.scan_iter(match=_QUEUE_KEY_PREFIX + b"*", count=PAGE_SIZE, _type="list"))
    return sorted({*named_queues(client), *(key.removeprefix(_QUEUE_KEY_PREFIX) for key in held)})


def named_queues(client: "redis.Redis") -> Iterator[bytes]:
    """Yield the names in ``queues``, in pages: SMEMBERS of a hundred thousand stops Redis for 15 ms. Raises redis errors."""
    return cast("Iterator[bytes]", client.sscan_iter(keys.QUEUES, count=PAGE_SIZE))


def _elements(client: "redis.Redis", key: bytes, place: str) -> Iterator[tuple[str, list[bytes]]]:
    """Yield a list's pages from its left end: pushes meanwhile move jobs into the next page, so none is missed."""
    start = 0
    try:
        while True:
            page: Any = client.lrange(key, start, start + PAGE_SIZE - 1)
            if not page:
                return
            yield place, page
            start += PAGE_SIZE
    except ResponseError as error:
        # A key of another type holds no jobs.
        if not is_wrong_type(error):
            raise


def _members(client: "redis.Redis", key: str) -> Iterator[tuple[str, list[bytes]]]:
    cursor = 0
    while True:
        reply: Any = client.zscan(key, cursor, count=PAGE_SIZE)
        cursor, members = reply
        if members:
            yield key, [member for member, _ in members]
        if not cursor:
            return


def _payload_of(data: bytes) -> Payload:
    try:
        return decode(data)
    except PayloadError:
        return {}
