"""Show what ran when, by class, and what was deployed when: a part of ``framework.admin``."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from framework.admin.access import Listing, ask
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
    unwritten_pieces,
)
from framework.features.history.urgencies import read_class_waits
from framework.features.tasks.access import load_part
from framework.features.tasks.settings import TaskSettings
from framework.settings.model import CoreSettings
from framework.shard.shard import Shard
from framework.store.connect import server_time
from framework.typeguards import is_text, short_repr
from framework.wire.keys import METRICS_LONG_S, METRICS_SHORT_S

if TYPE_CHECKING:
    from framework.features.history.rollup import KeptRuns

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
    A longer time is shown by hour, and above 7 days, up to 90, by day of UTC: from the database of tasks, and from these keys for
    what it does not have yet.

    Raises:
        ValueError: ``hours`` is not above 0, or above 2,160.
        ShardUnavailableError: no shard answers.
        UnknownShardError: the configuration has no such shard.
        TaskDatabaseError: the database of tasks does not answer.
    """
    if not 0 < hours <= _MOST_HOURS:
        raise ValueError(f"run_series({hours!r}): give a number of hours above 0, up to {_MOST_HOURS:,}")
    reader = SeriesReader(hours, cls, current().settings)
    kept = reader.read_database(None if shard is None else [shard])
    answers = ask(shard, lambda one: reader.read(one, kept))
    others = [reader.of_database(one, kept) for one in kept.by_shard.keys() - answers.by_shard.keys()]
    return reader.series([*answers.by_shard.values(), *others], kept, answers.unanswered)


def step_of(hours: float) -> int:
    """Return the length of the periods by which so many hours are shown."""
    if hours <= _FINE_HOURS:
        return MINUTE_S
    if hours * HOUR_S <= METRICS_LONG_S:
        return TEN_MINUTES_S
    return HOUR_S if hours <= _HOURLY_HOURS else DAY_S


def starts_of(hours: float, now: float) -> list[int]:
    """Return the beginnings of the periods of the last hours, the oldest first. The last period goes on."""
    step_s = step_of(hours)
    last = int(now // step_s) * step_s
    return [last - step_s * back for back in range(math.ceil(hours * HOUR_S / step_s) - 1, -1, -1)]


class ShardRuns(NamedTuple):
    """The runs of one shard."""

    classes: Mapping[str, Sequence[Runs]]
    """Of each class by period."""
    durations: Sequence[int] = ()
    """The histogram of the class that is asked for, of the last eight hours."""
    waits: Sequence[int] = ()
    """Its counts of ``keys.class_waits``, of these hours."""
    unread: int = 0


class KeptSeries(NamedTuple):
    """What the database of tasks has."""

    by_shard: "Mapping[str, KeptRuns]" = {}
    durations: Sequence[Sequence[int]] = ()
    """The histograms of the class that is asked for, of hours before the last eight."""


class SeriesReader:
    """Read the runs of some time: of the database of tasks first, then of each shard what the database does not have.

    With ``periods``, a read of Redis ends after ``most_s`` of processor time on each shard, and the next one goes on.
    """

    def __init__(
        self,
        hours: float,
        cls: str | None,
        settings: CoreSettings,
        periods: "KeptPeriods[dict[str, Runs]] | None" = None,
        most_s: float = 0.0,
    ) -> None:
        self._now = time.time()
        self.step_s = step_of(hours)
        self.starts: Sequence[int] = starts_of(hours, self._now)
        self._cls = cls
        self._versions = settings.sidekiq_metrics
        self._url = TaskSettings.of(settings).tasks.url
        self._periods, self._most_s = periods, most_s

    def read_database(self, shards: Sequence[str] | None) -> KeptSeries:
        """Return what the database has of these shards, or of all. Without a database, and for short times, that is nothing.

        Raises:
            TaskDatabaseError: the database of tasks does not answer.
        """
        if self._url is None or self.step_s < HOUR_S:
            return KeptSeries()
        rollup = load_rollup()
        database = rollup.open_database(self._url)
        with load_part("database").sql_errors(database):
            found = rollup.read_kept_runs(database, self.starts, self.step_s, self._cls, shards)
            if self._cls is None:
                return KeptSeries(found)
            before = int((self._now - METRICS_SHORT_S) // HOUR_S) * HOUR_S
            return KeptSeries(found, rollup.read_kept_durations(database, self.starts[0], before, self._cls, shards))

    def read(self, shard: Shard, kept: KeptSeries) -> ShardRuns:
        """Return the runs of a shard. Raises redis errors."""
        if self.step_s >= HOUR_S:
            known = kept.by_shard.get(shard.name)
            classes, unread = self._read_unwritten(shard, known), 0
        else:
            periods = self._read_periods(shard)
            classes, unread = by_class([one or {} for one in periods]), sum(1 for one in periods if one is None)
        if self._cls is None:
            return ShardRuns(classes, unread=unread)
        first = max(self.starts[0], self._now - METRICS_SHORT_S)
        minutes = [at * MINUTE_S for at in range(int(first // MINUTE_S), int(self._now // MINUTE_S) + 1)]
        durations = read_durations(shard.client, minutes, self._versions, [self._cls])[self._cls]
        waits = read_class_waits(shard.client, self._cls, first, self._now)
        return ShardRuns(classes, durations, waits, unread)

    @staticmethod
    def of_database(shard: str, kept: KeptSeries) -> ShardRuns:
        """Return the runs of a shard that does not answer: those that the database has."""
        return ShardRuns(kept.by_shard[shard].classes)

    def _read_periods(self, shard: Shard) -> list[dict[str, Runs] | None]:
        def read(some: Sequence[float]) -> list[dict[str, Runs]]:
            return read_runs(shard.client, some, self.step_s, self._versions, self._cls)

        if self._periods is None:
            return [*read(self.starts)]
        key = shard.name, self.step_s, self._cls
        return self._periods.read(key, self.starts, self._now - self.step_s - SETTLED_S, self._most_s, read)

    def _read_unwritten(self, shard: Shard, known: "KeptRuns | None") -> Mapping[str, list[Runs]]:
        """Add to the runs of the database those of the ten minutes that it does not have."""
        classes: dict[str, list[Runs]] = {} if known is None else {**known.classes}
        pieces = unwritten_pieces(self.starts, None if known is None else known.until, self._now)
        runs = read_runs(shard.client, pieces, TEN_MINUTES_S, self._versions, self._cls)
        for piece, found in zip(pieces, runs, strict=True):
            at = int(piece - self.starts[0]) // self.step_s
            for name, one in found.items():
                periods = classes.get(name)
                if periods is None:
                    periods = classes[name] = [Runs()] * len(self.starts)
                periods[at] = periods[at].plus(one)
        return classes

    def series(
        self, found: Sequence[ShardRuns], kept: KeptSeries, unanswered: Mapping[str, ShardUnavailableError]
    ) -> RunSeries:
        """Return the sums of all shards."""
        classes: dict[str, Sequence[Runs]] = {}
        for one in found:
            for name, runs in one.classes.items():
                classes[name] = list(map(Runs.plus, classes[name], runs)) if name in classes else runs
        total = list(map(sum_of, zip(*classes.values(), strict=True))) or [Runs()] * len(self.starts)
        return RunSeries(
            self.step_s,
            self.starts,
            total,
            classes,
            self.durations(found, kept) if self._cls is not None else (),
            sum(one.unread for one in found),
            self._url is not None,
            unanswered,
        )

    @staticmethod
    def durations(found: Sequence[ShardRuns], kept: KeptSeries) -> list[int]:
        """Return the histogram of the class that is asked for."""
        listed = [[0] * BUCKETS, *(one.durations for one in found if one.durations), *kept.durations]
        return [sum(column) for column in zip(*listed, strict=True)]


adeployed = async_twin(deployed)
adeploys = async_twin(deploys)
arun_series = async_twin(run_series)
