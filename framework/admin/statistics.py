"""Count jobs by class and place in bounded steps while processes run; read Sidekiq's counters and the sizes of a shard."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple, TypeAlias, cast

import redis
from redis.exceptions import ResponseError

from framework.admin.access import Answers, ask
from framework.admin.held_jobs import held_keys, measure_held
from framework.admin.pages import MOST, list_pages, ranked_data
from framework.admin.process_list import read_busy
from framework.admin.queue_sizes import read_queue_sizes
from framework.async_twin import async_twin
from framework.errors import PayloadError, ShardUnavailableError
from framework.fetch.blocks import expand, packed_jobs
from framework.fetch.held_blocks import packed_held
from framework.shard.shard import Shard
from framework.store.connect import server_time
from framework.store.script import is_wrong_type
from framework.text import decode_escaped
from framework.types import Payload
from framework.wire import keys
from framework.wire.job import decode
from framework.wire.json import json_contains
from framework.wire.keys import capsules_of
from framework.wire.sub_queues import parent_of

PAGE_SIZE = 500
_BLOCKS_AT_ONCE = 10
"""Jobs or keys per command: Redis serves other clients in between, however long a queue is."""

_PARSED_AT_ONCE = 100
"""Jobs that are parsed at once: of several hundred, Python's garbage collector looks through each a few times."""

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
    for place, jobs in jobs_of_classes(client, names, on_progress):
        for name, count in Counter[str](job["class"] for job in jobs).items():
            found[name][place] += count
    return found


def jobs_of_classes(
    client: "redis.Redis", names: Collection[str], on_progress: OnProgress
) -> Iterator[tuple[str, list[Payload]]]:
    """Yield the payloads of the jobs of these classes with their place, some at a time, as ``count_jobs_by_class`` counts them."""
    # Most payloads belong to other classes, and are not parsed.
    may_have, wanted, scanned = json_contains(names), frozenset(names), 0
    for place, page in _pages(client):
        for start in range(0, len(page), _PARSED_AT_ONCE):
            part = page[start : start + _PARSED_AT_ONCE]
            jobs = [job for data in part if may_have(data) and (job := _payload_of(data)).get("class") in wanted]
            if jobs:
                yield place, jobs
        scanned += len(page)
        on_progress(place, scanned)


def _pages(client: "redis.Redis") -> Iterator[tuple[str, list[bytes]]]:
    """Yield all jobs of the shard with their place: first where jobs come from, then where they go to."""
    yield from _members(client, keys.SCHEDULE)
    for _, page in _members(client, keys.DEFERRED_PACKED):
        yield keys.SCHEDULE, page
    yield from _members(client, keys.RETRY)
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
    for identity, record in zip(identities, pipeline.execute(raise_on_error=False), strict=True):
        yield identity
        for capsule in capsules_of(cast("dict[bytes, bytes]", record) if isinstance(record, dict) else ()):
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
    # Blocks of jobs are large, and may follow many small jobs.
    most = _BLOCKS_AT_ONCE if decode_escaped(key.removeprefix(_QUEUE_KEY_PREFIX)) in packed_jobs(client) else MOST
    for page in list_pages(client, key, most):
        yield place, [job for element in page for job in expand(client, element)]


def _members(client: "redis.Redis", key: str) -> Iterator[tuple[str, list[bytes]]]:
    for page in ranked_data(client, key):
        yield key, page


def _payload_of(data: bytes) -> Payload:
    try:
        return decode(data)
    except PayloadError:
        return {}


MOST_DAYS = 5 * 365
"""The days of the history: Sidekiq keeps the counters of a day for five years."""

_SETS = (keys.SCHEDULE, keys.RETRY, keys.DEAD, keys.INTERRUPTED)
_PAGE = 1_000


@dataclass(frozen=True, slots=True)
class ShardStats:
    """The counters and sizes of one shard."""

    processed: int = 0
    """Runs since the counter began, failed ones included (Sidekiq's count)."""
    failed: int = 0
    enqueued: int = 0
    """Jobs in queues."""
    scheduled: int = 0
    retry: int = 0
    dead: int = 0
    interrupted: int = 0
    held: int = 0
    """Jobs that a limit or a pause holds outside of their queues."""
    processes: int = 0
    busy: int = 0
    """Running jobs, by the records of the processes."""


@dataclass(frozen=True, slots=True)
class Stats(ShardStats):
    """The sums over the shards that answered, and what each has."""

    shards: Mapping[str, ShardStats] = field(default_factory=dict[str, ShardStats])
    unanswered: Mapping[str, ShardUnavailableError] = field(default_factory=dict[str, ShardUnavailableError])


class DayCounts(NamedTuple):
    """The runs of one day of UTC, failed ones included, and the failed ones."""

    processed: int
    failed: int


@dataclass(frozen=True, slots=True)
class RunHistory:
    """The runs of each day, today first: summed over the shards that answered, and of each."""

    days: Mapping[date, DayCounts]
    shards: Mapping[str, Mapping[date, DayCounts]]
    unanswered: Mapping[str, ShardUnavailableError]


def server_times(shard: str | None = None) -> Answers[float]:
    """Return the time of Redis on each shard, in epoch seconds: ages are its difference to the times of the data API.

    Raises:
        ShardUnavailableError: no shard answers.
        UnknownShardError: the configuration has no such shard.
    """
    return ask(shard, lambda one: server_time(one.client))


aserver_times = async_twin(server_times)


def stats(shard: str | None = None) -> Stats:
    """Return the counters and sizes of the shard, or of all shards.

    Raises:
        ShardUnavailableError: no shard answers.
        UnknownShardError: the configuration has no such shard.
    """
    return sum_stats(ask(shard, read_stats))


astats = async_twin(stats)


def history(days: int = 30, shard: str | None = None) -> RunHistory:
    """Return the runs of the last ``days`` days of UTC, today included, at most five years.

    Raises:
        ValueError: ``days`` is not from 1 to 1,825.
        ShardUnavailableError: no shard answers.
        UnknownShardError: the configuration has no such shard.
    """
    if not 1 <= days <= MOST_DAYS:
        raise ValueError(f"history({days!r}): give a number of days from 1 to {MOST_DAYS:,}")
    today = datetime.now(UTC).date()
    dates = [today - timedelta(days=back) for back in range(days)]
    answers = ask(shard, lambda one: read_history(one, dates))
    total = {
        day: DayCounts(
            sum(found[day].processed for found in answers.by_shard.values()),
            sum(found[day].failed for found in answers.by_shard.values()),
        )
        for day in dates
    }
    return RunHistory(total, answers.by_shard, answers.unanswered)


ahistory = async_twin(history)


def sum_stats(answers: Answers[ShardStats]) -> Stats:
    found = answers.by_shard
    sums = {one.name: sum(getattr(shard, one.name) for shard in found.values()) for one in fields(ShardStats)}
    return Stats(**sums, shards=found, unanswered=answers.unanswered)


def read_stats(shard: Shard) -> ShardStats:
    """Return the counters and sizes of one shard, in a few round trips. Raises redis errors."""
    client = shard.client
    pipeline: Any = client.pipeline(transaction=False)
    pipeline.get(keys.STAT_PROCESSED)
    pipeline.get(keys.STAT_FAILED)
    for key in _SETS:
        pipeline.zcard(key)
    pipeline.zcard(keys.DEFERRED_PACKED)
    processed, failed, scheduled, retry, dead, interrupted, blocks = map(
        reply_number, pipeline.execute(raise_on_error=False)
    )
    if blocks:
        scheduled += blocks + packed_held(client).get(keys.DEFERRED_PACKED.encode(), 0)
    queues, busy = read_queue_sizes(client, with_times=False).queues, read_busy(client)
    return ShardStats(
        processed=processed,
        failed=failed,
        enqueued=sum(one.jobs for one in queues.values()),
        scheduled=scheduled,
        retry=retry,
        dead=dead,
        interrupted=interrupted,
        held=sum(held.jobs for held in measure_held(client, held_keys(client))),
        processes=len(busy),
        busy=sum(busy.values()),
    )


def read_history(shard: Shard, dates: Sequence[date]) -> dict[date, DayCounts]:
    """Return the runs of each date on one shard. Raises redis errors."""
    names = [f"{counter}:{day}" for day in dates for counter in (keys.STAT_PROCESSED, keys.STAT_FAILED)]
    found: list[Any] = []
    for start in range(0, len(names), _PAGE):
        reply: Any = shard.client.mget(names[start : start + _PAGE])
        found += reply
    numbers = [reply_number(one) for one in found]
    return {
        day: DayCounts(*pair) for day, pair in zip(dates, zip(numbers[::2], numbers[1::2], strict=True), strict=True)
    }


def reply_number(reply: Any) -> int:
    """Return a count that Redis replied; 0 for an absent key, a text that is no number, or a key of another type.

    Raises any other error in the reply, such as a missing right.
    """
    if isinstance(reply, ResponseError):
        if is_wrong_type(reply):
            return 0
        raise reply
    if isinstance(reply, bytes):
        text = decode_escaped(reply)
        return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0
    return reply if isinstance(reply, int) else 0
