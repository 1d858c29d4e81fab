"""Explain why a class makes no progress on a shard: its jobs, the processes that serve them, its rates, and its blockers."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import redis

from framework.admin.explain import Explainer
from framework.admin.explain_reader import Blocker, ShardSnapshot, ShownFacts, ShownLimit
from framework.admin.held_jobs import HeldJobs, HeldJobsKey, held_keys, measure_held
from framework.admin.search import payload_of_member
from framework.admin.statistics import IN_FLIGHT, QUEUE_PREFIX, OnProgress, jobs_of_classes, reply_number
from framework.command_line import remedy_command
from framework.process.record import ProcessInfo
from framework.store.hashes import read_hashes
from framework.text import Sentence, decode_escaped, format_duration
from framework.types import Payload, Priority
from framework.wire import keys
from framework.wire.job import timestamp
from framework.wire.json import loads_object
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

    def add(self, place: str, jobs: Sequence[Payload]) -> None:
        """Count jobs of one place: many at once, as a class may have a million."""
        self.places[place] += len(jobs)
        self.levels.update(level for job in jobs if (level := job.get(PRIORITY)) in LEVELS)
        named = Counter(name for job in jobs if isinstance(name := job.get("queue"), str))
        for name, count in named.items():
            self.queues[parent_of(name)] += count
        if place in _FAILED:
            self.errors[place].update(map(_error_of, jobs))
        if place.startswith(QUEUE_PREFIX):
            self.entered += [at for job in jobs if (at := timestamp(job.get("enqueued_at"))) is not None]

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
    on_jobs: Callable[[Sequence[Payload]], None] = lambda _: None,
) -> Backlog:
    """Scan the jobs of the shard for those of a class, in bounded steps; ``held`` are its held jobs. Raises redis errors.

    ``names`` are its wire name and its aliases; ``on_jobs`` gets all but the held ones, some at a time.
    """
    found = Backlog()
    for place, jobs in jobs_of_classes(client, names, on_progress):
        found.add(place, jobs)
        on_jobs(jobs)
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


def read_runs_by_class(client: "redis.Redis", now: float) -> dict[str, RunCounts]:
    """Return the runs of the window of every class, as ``read_runs``. Raises redis errors."""
    minutes = [time.gmtime(now - _SECONDS * back) for back in range(WINDOW_MIN + 1)]
    versions = (_read_all_minutes(client, version, minutes) for version in (7, 8))
    found = max(versions, key=lambda counts: sum(counts.values()))
    window = WINDOW_MIN + now % _SECONDS / _SECONDS
    return {
        name: RunCounts(found[f"{name}|p"], found[f"{name}|f"], found[f"{name}|ms"] / 1_000, window)
        for name in sorted({one.rpartition("|")[0] for one in found})
        if name
    }


def _read_all_minutes(client: "redis.Redis", version: int, minutes: Sequence[time.struct_time]) -> Counter[str]:
    total = Counter[str]()
    for counts in read_hashes(client, [keys.metrics(version, at)[0][0] for at in minutes]):
        for name, count in counts.items():
            total[decode_escaped(name)] += reply_number(count)
    return total


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
    return error if isinstance(error, str) and error else Sentence("no recorded error")


def _read_minutes(
    client: "redis.Redis", name: str, version: int, minutes: Sequence[time.struct_time]
) -> list[RunCounts]:
    fields = [f"{name}|{word}" for word in ("p", "f", "ms")]
    rows = read_hashes(client, [keys.metrics(version, at)[0][0] for at in minutes], fields)
    counts = [[reply_number(row.get(field.encode())) for field in fields] for row in rows]
    return [RunCounts(processed, failed, milliseconds / 1_000) for processed, failed, milliseconds in counts]


_MINUTE_S = 60.0
_MOST_ERRORS = 3
# Held jobs that are read for the names of their queues: jobs of one class nearly always have the same.
_MOST_HELD = 10


class _FailedJobs(NamedTuple):
    """The blocker of failed jobs in one place: its code, its text, and its remedy with the words of the command."""

    code: str
    text: str
    released_by: str
    words: tuple[str, ...]


_FAILED_JOBS = {
    keys.RETRY: _FailedJobs(
        "failed",
        Sentence("its failed jobs that wait for their next run"),
        Sentence("their times; at once:"),
        ("requeue", "--in", "retry"),
    ),
    keys.DEAD: _FailedJobs(
        "dead", Sentence("its dead jobs"), Sentence("an operator: find the cause, then"), ("retry",)
    ),
    keys.INTERRUPTED: _FailedJobs(
        "interrupted",
        Sentence("its jobs that were interrupted too often"),
        Sentence("an operator: find the cause, then"),
        ("requeue",),
    ),
}


@dataclass(frozen=True, slots=True)
class ClassExplanation:
    """The explanation of a class on one shard. Times are epoch seconds of the shard's clock, as is ``now``."""

    shard: str
    queue: str
    """The queue of its jobs: that of its route, or the one that most of them name. Empty if it is not known."""
    routed: bool
    """Whether new jobs come to this shard."""
    now: float
    backlog: Backlog
    runs: RunCounts
    rates: ClassRates
    limit: ShownLimit
    serving: Sequence[ProcessInfo] | None
    """The processes that fetch from the queue, ``None`` if the queue is not known."""
    blockers: Mapping[str, Sequence[Blocker]]
    """The blockers of its jobs, by queue: the queue of new jobs, and every other with jobs of the class."""
    failures: Sequence[Blocker]
    """Why jobs of it that have begun do not end: they fail, wait for another try, are dead or interrupted."""
    facts: ShownFacts
    """What features say of its jobs."""

    @property
    def has_jobs(self) -> bool:
        """Whether Redis knows of a job of it: one that is there now, or that ran in the last minutes."""
        return bool(self.backlog.places or self.backlog.held or self.runs.processed)

    @property
    def slots(self) -> int | None:
        """The most of its jobs that can run at once: the slots of the processes, or fewer by its limit; ``None`` if not known."""
        if self.serving is None:
            return None
        slots = sum(one.slots for one in self.serving)
        limit = self.limit.limit
        return slots if limit is None or limit == 0 else max(0, min(slots, limit))

    @property
    def capacity(self) -> float | None:
        """The runs per minute if its jobs alone use these slots; ``None`` while the duration of a run is not known."""
        mean_s, slots = self.runs.mean_s, self.slots
        return None if not mean_s or slots is None else slots * _MINUTE_S / mean_s

    @property
    def soonest_s(self) -> float | None:
        """The seconds until none waits at this capacity, without arrivals; ``None`` while it is not known."""
        capacity = self.capacity
        if capacity is None:
            return None
        return self.backlog.waiting / capacity * _MINUTE_S if capacity else float("inf")


class ClassExplainer:
    """Explain classes on one shard. ``explain`` raises redis errors."""

    def __init__(self, snapshot: ShardSnapshot, explainer: Explainer) -> None:
        self._snapshot = snapshot
        self._explainer = explainer

    def explain(
        self, worker: str, aliases: Sequence[str], queue: str | None, on_progress: OnProgress
    ) -> ClassExplanation:
        """Return the explanation of a class by its wire name; ``queue`` is that of its route to this shard, if it has one."""
        client, now = self._snapshot.client, self._snapshot.now
        held = [one for one in held_keys(client) if one.name == worker]
        explainer = self._explainer
        backlog = read_backlog(client, [worker, *aliases], measure_held(client, held), on_progress, explainer.count)
        queues = self._queues(queue, backlog, held)
        chosen = queues[0] if queues else ""
        serving = self._snapshot.processes_serving(chosen) if queues else None
        began = [one.started_at for one in serving or () if one.started_at is not None]
        runs = read_runs(client, worker, now, began)
        is_run = bool(backlog.places[IN_FLIGHT] or runs.processed)
        return ClassExplanation(
            self._snapshot.shard,
            chosen,
            queue is not None,
            now,
            backlog,
            runs,
            measure(backlog, runs, now),
            explainer.limit_of(worker),
            serving,
            {one: explainer.of_class(worker, one, is_run=is_run) for one in queues or [""]},
            list(_failures(worker, backlog, runs)),
            explainer.facts_of_class(worker),
        )

    def _queues(self, routed: str | None, backlog: Backlog, held: Sequence[HeldJobsKey]) -> list[str]:
        """Return the queue of the route, and those with jobs; if there is none, those that held and failed jobs name."""
        waits_in = [
            place.removeprefix(QUEUE_PREFIX)
            for place, _ in backlog.places.most_common()
            if place.startswith(QUEUE_PREFIX)
        ]
        found: list[str] = [] if routed is None else [routed]
        found += [name for name in waits_in if name != routed]
        if found:
            return found
        return [name for name, _ in (backlog.queues + self._queues_of_held(held)).most_common()]

    def _queues_of_held(self, held: Sequence[HeldJobsKey]) -> Counter[str]:
        pipeline: Any = self._snapshot.client.pipeline(transaction=False)
        for one in held[:_MOST_HELD]:
            pipeline.zrange(one.key, 0, 0)
        replies: list[Any] = pipeline.execute(raise_on_error=False)
        members = [cast("list[bytes]", reply)[0] for reply in replies if isinstance(reply, list) and reply]
        named = [loads_object(payload_of_member(member)).get("queue") for member in members]
        return Counter(parent_of(name) for name in named if isinstance(name, str))


def _failures(worker: str, backlog: Backlog, runs: RunCounts) -> Iterator[Blocker]:
    if runs.failed and runs.failed * 2 >= runs.processed:
        window = format_duration(runs.minutes * _MINUTE_S)
        why = Sentence(
            "{failed:,} of the {processed:,} runs in {window} failed",
            failed=runs.failed,
            processed=runs.processed,
            window=window,
        )
        shown = remedy_command("jobs", "list", "retry", "--class", worker)
        yield Blocker("failing", why, Sentence("a release without the error; {shown} shows the messages", shown=shown))
    for place, one in _FAILED_JOBS.items():
        if count := backlog.places[place]:
            errors = backlog.errors[place].most_common(_MOST_ERRORS)
            most = ", ".join(f"{error} {number:,}" for error, number in errors)
            remedy = remedy_command("jobs", *one.words, "--class", worker)
            yield Blocker(
                one.code,
                Sentence("{text}: {count:,} ({most})", text=one.text, count=count, most=most),
                Sentence("{released_by} {remedy}", released_by=one.released_by, remedy=remedy),
            )
