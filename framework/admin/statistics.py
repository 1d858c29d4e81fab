"""Read Sidekiq's counters and the sizes of a shard, and sum them over all shards."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from framework.admin.access import Answers, ask
from framework.admin.held_jobs import held_keys, measure_held
from framework.admin.job_counts import named_queues
from framework.admin.process_list import read_running
from framework.async_twin import async_twin
from framework.errors import ShardUnavailableError
from framework.shard.shard import Shard
from framework.store.connect import server_time
from framework.store.script import is_wrong_type
from framework.text import decode_escaped
from framework.wire import keys

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
    """Return the sums over the shards that answered."""
    found = answers.by_shard
    sums = {one.name: sum(getattr(shard, one.name) for shard in found.values()) for one in fields(ShardStats)}
    return Stats(**sums, shards=found, unanswered=answers.unanswered)


def read_stats(shard: Shard) -> ShardStats:
    """Return the counters and sizes of one shard, in a few round trips. Raises redis errors."""
    client = shard.client
    queues = sorted(named_queues(client))
    pipeline: Any = client.pipeline(transaction=False)
    pipeline.get(keys.STAT_PROCESSED)
    pipeline.get(keys.STAT_FAILED)
    for key in _SETS:
        pipeline.zcard(key)
    for queue in queues:
        pipeline.llen(keys.queue("").encode() + queue)
    processed, failed, scheduled, retry, dead, interrupted, *lengths = map(
        reply_number, pipeline.execute(raise_on_error=False)
    )
    running = read_running(shard)
    return ShardStats(
        processed=processed,
        failed=failed,
        enqueued=sum(lengths),
        scheduled=scheduled,
        retry=retry,
        dead=dead,
        interrupted=interrupted,
        held=sum(held.jobs for held in measure_held(client, held_keys(client))),
        processes=len(running),
        busy=sum(one.busy for one in running),
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
