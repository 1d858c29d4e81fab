"""Measure one class on one shard: its waiting jobs, its ended runs, and from both its rates and the time until none waits."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import redis

from framework.admin.held_jobs import HeldJobs
from framework.admin.job_counts import QUEUE_PREFIX, OnProgress, jobs_of_classes
from framework.admin.statistics import reply_number
from framework.types import Payload, Priority
from framework.wire import keys
from framework.wire.job import timestamp
from framework.wire.sub_queues import LEVELS, PRIORITY, parent_of

WINDOW_MIN = 5
"""The whole minutes whose runs are counted, and the minute that has begun."""

# Processes write their counts this often: a shorter time says little.
_SHORTEST_S = 10.0

_SECONDS = 60.0
_FAILED = (keys.RETRY, keys.DEAD, keys.INTERRUPTED)


class RunCounts(NamedTuple):
    """The ended runs of a class in the window, the failed ones among them, and the seconds of those that did not fail."""

    processed: int = 0
    failed: int = 0
    seconds: float = 0.0
    minutes: float = WINDOW_MIN
    """The time in which they ended: the window, or less for a class whose runs began within it."""

    @property
    def mean_s(self) -> float | None:
        """The mean duration of a run that did not fail, ``None`` without one."""
        succeeded = self.processed - self.failed
        return self.seconds / succeeded if succeeded > 0 else None


@dataclass(slots=True)
class Backlog:
    """The jobs of a class on a shard by place, and when those that wait entered their queues."""

    places: Counter[str] = field(default_factory=Counter[str])
    entered: list[float] = field(default_factory=list[float])
    """Epoch seconds of each job in a queue."""
    held: int = 0
    """Jobs that its limit or its pause holds."""
    held_since: float | None = None
    levels: Counter[Priority] = field(default_factory=Counter[Priority])
    """The jobs in ``places`` by their level, of a class that declares a priority."""
    queues: Counter[str] = field(default_factory=Counter[str])
    """The jobs in ``places`` by the queue that their payload names."""
    errors: Mapping[str, Counter[str]] = field(default_factory=lambda: {place: Counter[str]() for place in _FAILED})
    """The errors of the failed jobs by place, each with its number."""

    def add(self, place: str, payload: Payload) -> None:
        """Count a job."""
        self.places[place] += 1
        if (level := payload.get(PRIORITY)) in LEVELS:
            self.levels[level] += 1
        if isinstance(queue := payload.get("queue"), str):
            self.queues[parent_of(queue)] += 1
        if place in _FAILED:
            self.errors[place][_error_of(payload)] += 1
        if place.startswith(QUEUE_PREFIX) and (entered := timestamp(payload.get("enqueued_at"))) is not None:
            self.entered.append(entered)

    @property
    def waiting(self) -> int:
        """The jobs that would run now: in queues, and held."""
        return self.held + sum(count for place, count in self.places.items() if place.startswith(QUEUE_PREFIX))

    @property
    def oldest(self) -> float | None:
        """Since when the oldest of them waits, in epoch seconds."""
        return min((*self.entered, *([] if self.held_since is None else [self.held_since])), default=None)


class ClassRates(NamedTuple):
    """Jobs per minute, and the seconds until none waits; ``None`` for what is not known, infinity for never."""

    arriving: float | None
    ending: float
    empty_in_s: float | None


def read_backlog(
    client: "redis.Redis",
    names: Collection[str],
    held: Iterable[HeldJobs],
    on_progress: OnProgress,
    on_job: Callable[[Payload], None] = lambda _: None,
) -> Backlog:
    """Scan the jobs of the shard for those of a class, in bounded steps; ``held`` are its held jobs. Raises redis errors.

    ``names`` are its wire name and its aliases; ``on_job`` gets each job but the held ones.
    """
    found = Backlog()
    for _, place, payload in jobs_of_classes(client, names, on_progress):
        found.add(place, payload)
        on_job(payload)
    for one in held:
        found.held += one.jobs
        found.held_since = one.since if found.held_since is None else min(found.held_since, one.since)
    return found


def read_runs(client: "redis.Redis", name: str, now: float, began: Iterable[float] = ()) -> RunCounts:
    """Return the runs of the window, from the keys of Sidekiq's Metrics page. Raises redis errors.

    ``began`` has the times at which the processes that serve the class began.
    """
    minutes = [time.gmtime(now - _SECONDS * back) for back in range(WINDOW_MIN + 1)]
    # A process writes both, or one of them (setting sidekiq_metrics).
    rows = max((_read_minutes(client, name, version, minutes) for version in (7, 8)), key=_total)
    first = max((back for back, row in enumerate(rows) if row.processed), default=WINDOW_MIN)
    since = now - now % _SECONDS - first * _SECONDS
    # Runs of this minute cannot have ended before the first process began.
    started = min(began, default=since)
    if first < WINDOW_MIN and since < started < since + _SECONDS:
        since = started
    return _total(rows)._replace(minutes=max(now - since, _SHORTEST_S) / _SECONDS)


def measure(backlog: Backlog, runs: RunCounts, now: float) -> ClassRates:
    """Return the rates of a class.

    The jobs that wait show the rate of arrival, by the times at which they entered the queues. While none has waited for a
    minute, as many arrive as end.
    """
    ending = runs.processed / runs.minutes
    oldest = backlog.oldest
    if oldest is None or now - oldest < _SECONDS:
        # Jobs wait, but none for a minute, and no run has ended in the window: the rate of arrival is not known.
        arriving = ending if runs.processed or not backlog.waiting else None
        return ClassRates(arriving, ending, 0.0 if not backlog.waiting else None)
    window_s = min(now - oldest, WINDOW_MIN * _SECONDS)
    # A held job has left its queue, and the time at which it entered it is not read.
    arriving = None if backlog.held else sum(now - at <= window_s for at in backlog.entered) * _SECONDS / window_s
    if ending <= (arriving or 0.0):
        return ClassRates(arriving, ending, float("inf"))
    return ClassRates(arriving, ending, backlog.waiting / (ending - (arriving or 0.0)) * _SECONDS)


def _total(rows: Sequence[RunCounts]) -> RunCounts:
    return RunCounts(
        sum(row.processed for row in rows), sum(row.failed for row in rows), sum(row.seconds for row in rows)
    )


def _error_of(payload: Payload) -> str:
    error = payload.get("error_class")
    return error if isinstance(error, str) and error else "no recorded error"


def _read_minutes(
    client: "redis.Redis", name: str, version: int, minutes: Sequence[time.struct_time]
) -> list[RunCounts]:
    pipeline: Any = client.pipeline(transaction=False)
    for at in minutes:
        pipeline.hmget(keys.metrics(version, at)[0][0], *(f"{name}|{word}" for word in ("p", "f", "ms")))
    # A key of another type holds no counts; ``reply_number`` raises any other error.
    replies: list[Any] = pipeline.execute(raise_on_error=False)
    rows = [cast("list[Any]", one) if isinstance(one, list) else [one] * 3 for one in replies]
    return [RunCounts(reply_number(row[0]), reply_number(row[1]), reply_number(row[2]) / 1_000) for row in rows]
