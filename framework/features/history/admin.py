"""Show what ran when, by class, and what was deployed when: a part of ``framework.admin``."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

from framework.admin.access import Answers, Listing, ask
from framework.admin.port import current
from framework.async_twin import async_twin
from framework.errors import ShardUnavailableError
from framework.features.history.access import load_rollup
from framework.features.history.marks import MOST_DAYS, mark_deploy, read_marks
from framework.features.history.series import (
    BUCKETS,
    DAY_S,
    HOUR_S,
    MINUTE_S,
    SETTLED_S,
    TEN_MINUTES_S,
    KeptPeriods,
    Runs,
    by_class,
    read_durations,
    read_runs,
    sum_of,
)
from framework.features.tasks.settings import TaskSettings
from framework.settings.model import CoreSettings
from framework.shard.shard import Shard
from framework.store.connect import server_time
from framework.typeguards import is_text, short_repr
from framework.wire.keys import METRICS_LONG_S, METRICS_SHORT_S

_FINE_HOURS = 2.0
"""The longest time that is shown by minute: each is a command."""

_HOURLY_HOURS = 7 * 24.0
"""The longest time that is shown by hour: of 300 classes these are 50,000 values, and 90 days would be 650,000."""

_MOST_HOURS = 90 * 24
_MOST_LABEL = 200


@dataclass(frozen=True, slots=True)
class RunSeries:
    """The runs of some time by period: a list has one entry for each of ``starts``."""

    step_s: int
    """The length of a period: a minute, ten minutes, an hour or a day."""
    starts: Sequence[float]
    """The beginning of each period, in epoch seconds, the oldest first. The last one goes on."""
    total: Sequence[Runs]
    classes: Mapping[str, Sequence[Runs]]
    """The classes with runs, by wire name."""
    durations: Sequence[int] = ()
    """With ``cls``: how many of its runs lasted as long as each bucket of ``BUCKETS_MS`` says; the last bucket has longer ones."""
    unread: int = 0
    """The periods that were not read yet, whose runs are missing: a page reads them in parts."""
    has_database: bool = False
    """Whether a database of tasks has the hours before the last three days; without it they are empty."""
    unanswered: Mapping[str, ShardUnavailableError] = field(default_factory=dict[str, ShardUnavailableError])


class DeployMark(NamedTuple):
    """One deploy."""

    at: float
    """The minute of the deploy, in epoch seconds."""
    label: str
    shards: Sequence[str]
    """The shards that have the mark."""


class MarkedShards(NamedTuple):
    """What ``deployed`` has done: the shards that have a new mark, and those whose last mark had the same version."""

    marked: Sequence[str]
    known: Sequence[str]


def deployed(version: str) -> MarkedShards:
    """Mark that ``version`` is deployed now, on every shard that answers: for the charts here, and on Sidekiq's Metrics page.

    Call it in the deployment, or when a process of the release starts: a version that is the last mark already is not marked again.

    Raises:
        TypeError, ValueError: the version is no text, empty, or longer than 200 characters.
        ShardUnavailableError: no shard answers.
    """
    label = check_label(version)
    answers = ask(None, lambda one: mark_deploy(one.client, label, server_time(one.client)))
    by_shard = answers.by_shard
    return MarkedShards(
        [name for name in by_shard if by_shard[name]], [name for name in by_shard if not by_shard[name]]
    )


def check_label(version: object) -> str:
    """Return the version without spaces around it. Raises as ``deployed``."""
    if not isinstance(version, str):
        raise TypeError(f"deployed({short_repr(version)}): give the version as text")
    label = version.strip()
    if not label or not is_text(label) or len(label) > _MOST_LABEL:
        raise ValueError(f"deployed({short_repr(version)}): give a text of 1 to {_MOST_LABEL} characters")
    return label


def deploys(days: int = 7, shard: str | None = None) -> Listing[DeployMark]:
    """Return the deploys of the last days of UTC, the newest first, also those that Ruby's Sidekiq marked.

    Raises:
        ValueError: ``days`` is not from 1 to 90.
        ShardUnavailableError: no shard answers.
        UnknownShardError: the configuration has no such shard.
    """
    if not 1 <= days <= MOST_DAYS:
        raise ValueError(f"deploys({days!r}): give a number of days from 1 to {MOST_DAYS}")
    today = datetime.now(UTC).date()
    answers = ask(shard, lambda one: read_marks(one.client, today, days))
    found: dict[tuple[float, str], list[str]] = {}
    for name, marks in answers.by_shard.items():
        for mark in marks.items():
            found.setdefault(mark, []).append(name)
    return Listing(
        [DeployMark(at, label, found[at, label]) for at, label in sorted(found, reverse=True)], answers.unanswered
    )


def run_series(hours: float = 8.0, cls: str | None = None, shard: str | None = None) -> RunSeries:
    """Return the runs of the last hours by period, in total and of each class, or of the class ``cls``.

    Up to 2 hours are shown by minute, up to 72 by ten minutes: from the keys of Sidekiq's Metrics page (setting ``sidekiq_metrics``).
    A longer time is shown by hour, and above 7 days, up to 90, by day of UTC: from these keys and, for older hours, from the database
    of tasks, which adds them up.

    Raises:
        ValueError: ``hours`` is not above 0, or above 2,160.
        ShardUnavailableError: no shard answers.
        UnknownShardError: the configuration has no such shard.
        TaskDatabaseError: the database of tasks does not answer.
    """
    if not 0 < hours <= _MOST_HOURS:
        raise ValueError(f"run_series({hours!r}): give a number of hours above 0, up to {_MOST_HOURS:,}")
    return read_series(hours, cls, shard)


def read_series(
    hours: float, cls: str | None, shard: str | None, kept: KeptPeriods | None = None, most_s: float = 0.0
) -> RunSeries:
    """Return the runs as ``run_series``; with ``kept``, those that a read of ``most_s`` of processor time has on each shard."""
    settings = current().settings
    now = time.time()
    step_s = _step_of(hours)
    count = math.ceil(hours * HOUR_S / step_s)
    last = int(now // step_s) * step_s
    made = _Series([last - step_s * back for back in range(count - 1, -1, -1)], step_s, cls, settings, kept, most_s)
    answers = ask(shard, lambda one: made.read(one, now))
    return made.result(answers, shard, now)


def _step_of(hours: float) -> int:
    if hours <= _FINE_HOURS:
        return MINUTE_S
    if hours * HOUR_S <= METRICS_LONG_S:
        return TEN_MINUTES_S
    return HOUR_S if hours <= _HOURLY_HOURS else DAY_S


class _ShardRuns(NamedTuple):
    classes: Mapping[str, list[Runs]]
    durations: Sequence[int] = ()
    """The histogram of the class that is asked for."""
    unread: int = 0


class _Series:
    def __init__(
        self,
        starts: Sequence[float],
        step_s: int,
        cls: str | None,
        settings: CoreSettings,
        kept: KeptPeriods | None,
        most_s: float,
    ) -> None:
        self._starts = starts
        self._step_s = step_s
        self._cls = cls
        self._versions = settings.sidekiq_metrics
        self._url = TaskSettings.of(settings).tasks.url
        self._kept, self._most_s = kept, most_s

    def read(self, shard: Shard, now: float) -> _ShardRuns:
        """Return the runs of a shard by class, and the histogram of the class. Raises redis errors."""
        if self._step_s >= HOUR_S:
            periods: list[dict[str, Runs] | None] = [*self._read_long(shard, now)]
        else:
            periods = self._read_periods(shard, self._starts, self._step_s, now)
        found = by_class([one or {} for one in periods])
        unread = sum(1 for one in periods if one is None)
        if self._cls is None:
            return _ShardRuns(found, unread=unread)
        first = max(self._starts[0], now - METRICS_SHORT_S)
        minutes = [at * MINUTE_S for at in range(int(first // MINUTE_S), int(now // MINUTE_S) + 1)]
        durations = read_durations(shard.client, minutes, self._versions, [self._cls])[self._cls]
        return _ShardRuns(found, durations, unread)

    def _read_periods(
        self, shard: Shard, starts: Sequence[float], step_s: int, now: float
    ) -> list[dict[str, Runs] | None]:
        def read(some: Sequence[float]) -> list[dict[str, Runs]]:
            return read_runs(shard.client, some, step_s, self._versions, self._cls)

        if self._kept is None:
            return [*read(starts)]
        return self._kept.read((shard.name, step_s, self._cls), starts, now - step_s - SETTLED_S, self._most_s, read)

    def _read_long(self, shard: Shard, now: float) -> list[dict[str, Runs]]:
        recent = [start for start in self._starts if start > now - METRICS_LONG_S]
        count = self._step_s // TEN_MINUTES_S
        pieces = [start + TEN_MINUTES_S * one for start in recent for one in range(count)]
        runs = read_runs(shard.client, pieces, TEN_MINUTES_S, self._versions, self._cls)
        periods = [_merged(runs[at : at + count]) for at in range(0, len(runs), count)]
        return [*[{} for _ in range(len(self._starts) - len(recent))], *periods]

    def result(self, answers: Answers[_ShardRuns], shard: str | None, now: float) -> RunSeries:
        classes: dict[str, list[Runs]] = {}
        durations = [0] * BUCKETS
        for found in answers.by_shard.values():
            for name, runs in found.classes.items():
                classes[name] = list(map(Runs.plus, classes[name], runs)) if name in classes else runs
            if found.durations:
                durations = [one + other for one, other in zip(durations, found.durations, strict=True)]
        if self._step_s >= HOUR_S and self._url is not None:
            durations = self._add_kept_runs(classes, durations, shard, now)
        total = list(map(sum_of, zip(*classes.values(), strict=True))) or [Runs()] * len(self._starts)
        return RunSeries(
            self._step_s,
            self._starts,
            total,
            classes,
            durations if self._cls is not None else (),
            sum(one.unread for one in answers.by_shard.values()),
            self._url is not None,
            answers.unanswered,
        )

    def _add_kept_runs(
        self, classes: dict[str, list[Runs]], durations: list[int], shard: str | None, now: float
    ) -> list[int]:
        """Take the periods of the database where they have more: older ones, and those that Redis has lost."""
        rollup = load_rollup()
        kept: Mapping[str, Mapping[int, Runs]] = rollup.read_kept_runs(
            rollup.open_database(self._url), self._starts[0], now, self._cls, shard, self._step_s
        )
        places = {int(start): at for at, start in enumerate(self._starts)}
        for name, periods in kept.items():
            known = classes.setdefault(name, [Runs()] * len(self._starts))
            for start, runs in periods.items():
                known[places[start]] = max(known[places[start]], runs)
        if self._cls is None:
            return durations
        # The histograms of the last eight hours were read from Redis.
        before = int((now - METRICS_SHORT_S) // HOUR_S) * HOUR_S
        histograms: list[list[int]] = rollup.read_kept_durations(
            rollup.open_database(self._url), self._starts[0], before, self._cls, shard
        )
        return [sum(column) for column in zip(durations, *histograms, strict=True)]


def _merged(periods: Sequence[Mapping[str, Runs]]) -> dict[str, Runs]:
    total: dict[str, Runs] = {}
    for period in periods:
        for name, runs in period.items():
            total[name] = total.get(name, Runs()).plus(runs)
    return total


adeployed = async_twin(deployed)
adeploys = async_twin(deploys)
arun_series = async_twin(run_series)
