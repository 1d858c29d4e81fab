"""Read the runs of some time by urgency and period, from Redis and from the database of tasks."""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from framework.features.history.access import load_rollup
from framework.features.history.admin import starts_of, step_of
from framework.features.history.series import (
    HOUR_S,
    MINUTE_S,
    SETTLED_S,
    TEN_MINUTES_S,
    KeptPeriods,
    unwritten_pieces,
)
from framework.features.history.urgencies import UrgencyRuns, read_urgencies, sum_urgencies
from framework.features.tasks.access import load_part
from framework.features.tasks.settings import TaskSettings
from framework.settings.model import CoreSettings
from framework.shard.shard import Shard
from framework.types import Urgency

if TYPE_CHECKING:
    from framework.features.history.rollup import KeptUrgencies

_NOW_MINUTES = 5

UrgencyPeriods: TypeAlias = Mapping[Urgency, UrgencyRuns]
"""The runs of one period by urgency."""

Kept: TypeAlias = "Mapping[str, Sequence[KeptUrgencies]]"
"""What the database of tasks has, by shard."""


class UrgencySeries(NamedTuple):
    """The runs of one shard."""

    now: UrgencyPeriods
    """Those of the last five minutes, and of the current one."""
    periods: Sequence[UrgencyPeriods]
    unread: int = 0
    """The periods that were not read yet."""


class UrgencyReader:
    """Read as ``SeriesReader``: of the database of tasks first, then of each shard what the database does not have."""

    def __init__(
        self, hours: float, settings: CoreSettings, periods: KeptPeriods[UrgencyPeriods], most_s: float
    ) -> None:
        self._now = time.time()
        self.step_s = step_of(hours)
        self.starts: Sequence[int] = starts_of(hours, self._now)
        self._url = TaskSettings.of(settings).tasks.url
        self._periods, self._most_s = periods, most_s

    def read_database(self, shards: Sequence[str]) -> Kept:
        """Return what the database has of these shards.

        Raises:
            TaskDatabaseError: the database of tasks does not answer.
        """
        found: dict[str, list[KeptUrgencies]] = {}
        if self._url is not None and shards:
            rollup = load_rollup()
            database = rollup.open_database(self._url)
            with load_part("database").sql_errors(database):
                for one in rollup.read_kept_urgencies(database, self.starts, self.step_s, shards):
                    found.setdefault(one.shard, []).append(one)
        return found

    def read(self, shard: Shard, kept: Kept) -> UrgencySeries:
        """Return the runs of a shard. Raises redis errors."""
        minute = int(self._now // MINUTE_S) * MINUTE_S
        last = [minute - MINUTE_S * back for back in range(_NOW_MINUTES + 1)]
        now = sum_urgencies(read_urgencies(shard.client, last, MINUTE_S))
        if self.step_s >= HOUR_S:
            return UrgencySeries(now, self._with_unwritten(shard, kept.get(shard.name, ())))
        found = self._periods.read(
            (shard.name, self.step_s),
            self.starts,
            self._now - self.step_s - SETTLED_S,
            self._most_s,
            lambda some: read_urgencies(shard.client, some, self.step_s),
        )
        return UrgencySeries(now, [one or {} for one in found], sum(1 for one in found if one is None))

    def of_database(self, shard: str, kept: Kept) -> UrgencySeries:
        """Return the runs of a shard that does not answer: those that the database has."""
        return UrgencySeries({}, list(map(sum_urgencies, self._listed(kept[shard]))))

    def _with_unwritten(self, shard: Shard, kept: "Sequence[KeptUrgencies]") -> list[UrgencyPeriods]:
        """Add to the runs of the database those of the ten minutes that it does not have."""
        periods = self._listed(kept)
        until = max((one.until for one in kept), default=None)
        pieces = unwritten_pieces(self.starts, until, self._now)
        for piece, found in zip(pieces, read_urgencies(shard.client, pieces, TEN_MINUTES_S), strict=True):
            periods[int(piece - self.starts[0]) // self.step_s].append(found)
        return list(map(sum_urgencies, periods))

    def _listed(self, kept: "Sequence[KeptUrgencies]") -> list[list[UrgencyPeriods]]:
        periods: list[list[UrgencyPeriods]] = [[] for _ in self.starts]
        for one in kept:
            periods[int(one.start - self.starts[0]) // self.step_s].append(one.runs)
        return periods
