"""The pages of the runs over time: by class, with the deploys; and by urgency, with its targets."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, groupby
from typing import TypeAlias, TypeVar

from framework.admin.access import Listing
from framework.execute.job_log import TARGETS
from framework.execute.stats import BUCKETS_MS
from framework.features.history.admin import DeployMark, KeptSeries, SeriesReader, ShardRuns, deploys
from framework.features.history.marks import MOST_DAYS
from framework.features.history.series import DAY_S, HOUR_S, KeptPeriods, Runs, sum_of
from framework.features.history.urgencies import UrgencyRuns, runs_of_class, sum_urgencies
from framework.features.history.urgency_series import Kept, UrgencyPeriods, UrgencyReader, UrgencySeries
from framework.features.tasks.page import read_database
from framework.features.tasks.settings import TaskSettings
from framework.pages.page import Page
from framework.pages.view import Facts, View
from framework.text import Sentence
from framework.types import Urgency
from framework.wire.urgency_counts import SUCCEEDED_AT, WAIT_BOUNDS_S

T = TypeVar("T")

ShownPeriod: TypeAlias = tuple[int, slice]
"""The beginning of a period that a page shows, and its part of those that were read."""

_DAY_HOURS = 24
_HOURS = (1, 8, 24, 72, 30 * _DAY_HOURS, 90 * _DAY_HOURS)
"""The times that the pages offer. Redis keeps 72 hours."""
_MOST_CLASSES = 40
_LENGTHS_S, _MOST_PERIODS = (60, 600, 1_800, HOUR_S, DAY_S), 90
"""The lengths of the periods that a page shows, and the most of them: with more, it would be too large."""


class ActivityPage(Page):
    """Show the runs of the last hours or days by period, in total and by class. The word ``class`` of the query chooses one."""

    name = "activity"
    path = "/activity"
    title = "Activity"
    menu = "now"
    of_jobs = True
    # A period is a minute at least, and the runs of eight hours are many numbers.
    fresh_s = 30.0
    overview_part = "activity-chart"
    class_part = "activity-chart, #histograms"

    def __init__(self) -> None:
        self._kept = KeptPeriods[dict[str, Runs]]()

    async def read(self, view: View) -> Facts:
        """Read the runs and the deploys of each shard, and the runs that the database of tasks has.

        Raises:
            ValueError: ``hours`` is none of the times that the page offers.
        """
        hours, name = _hours(view), view.query.get("class")
        reader = SeriesReader(hours, name, view.installation.settings, self._kept, view.part_s)
        history, kept = await _read_history(view, reader.step_s, reader.read_database, KeptSeries())

        def read(shard: str) -> tuple[ShardRuns, Listing[DeployMark]]:
            return reader.read(view.shards[shard], kept), deploys(min(MOST_DAYS, 1 + hours // _DAY_HOURS), shard)

        answered = await view.each(read)
        found = {shard: runs for shard, (runs, _) in answered.items()}
        found |= {shard: reader.of_database(shard, kept) for shard in kept.by_shard.keys() - found.keys()}
        # By class, the runs of each shard. Those of eight hours are many: they are summed at once, not shard by shard.
        classes: dict[str, list[Sequence[Runs]]] = {}
        for shard, runs in found.items():
            for one, periods_of_class in runs.classes.items():
                if view.may("read", shard, one):
                    classes.setdefault(one, []).append(periods_of_class)
        step_s, shown_periods = shown(hours, reader.starts)
        rows: list[Facts] = [{"class": one, **_run_facts(sum_of(chain(*each)))} for one, each in classes.items()]
        largest = sorted(rows, key=lambda one: (-one["runs"], one["class"]))[:_MOST_CLASSES]
        columns = list(zip(*chain(*classes.values()), strict=True)) or [()] * len(reader.starts)
        return {
            **_time_facts(view, hours, step_s, len(reader.starts), [one.unread for one in found.values()]),
            **history,
            "class": name,
            "periods": [{"at": at, **_run_facts(sum_of(chain(*columns[part])))} for at, part in shown_periods],
            "deploys": _deploy_facts([marks for _, marks in answered.values()], reader.starts),
            "classes": [{**one, "points": _points(classes[one["class"]], shown_periods)} for one in largest],
            **_class_facts(
                view, name if name in classes else None, reader.durations(list(found.values()), kept), found
            ),
        }


class UrgenciesPage(Page):
    """Show for each urgency how many runs kept its targets, and how long its jobs waited: in the last minutes, and over time."""

    name = "urgencies"
    path = "/urgencies"
    title = "Urgencies"
    menu = "now"
    fresh_s = 10.0
    overview_part = "urgency-figures"

    def __init__(self) -> None:
        self._kept = KeptPeriods[UrgencyPeriods]()

    async def read(self, view: View) -> Facts:
        """Read the runs by urgency of each shard, and those that the database of tasks has.

        Raises:
            ValueError: ``hours`` is none of the times that the page offers.
        """
        hours = _hours(view)
        no_rows: Kept = {}
        reader = UrgencyReader(hours, view.installation.settings, self._kept, view.part_s)
        history, kept = await _read_history(view, reader.step_s, reader.read_database, no_rows)
        found = await view.each(lambda shard: reader.read(view.shards[shard], kept))
        series = [*found.values(), *(reader.of_database(shard, kept) for shard in kept.keys() - found.keys())]
        step_s, shown_periods = shown(hours, reader.starts)
        return {
            **_time_facts(view, hours, step_s, len(reader.starts), [one.unread for one in series]),
            **history,
            "is_counted": bool(view.installation.settings.sidekiq_metrics),
            "longest_wait_s": WAIT_BOUNDS_S[-1],
            "urgencies": _urgency_facts(shown_periods, series),
        }


def shown(hours: int, starts: Sequence[int]) -> tuple[int, Sequence[ShownPeriod]]:
    """Return the length of the periods that a page shows of these, in seconds, and the beginning and the part of each."""
    step_s = next(one for one in _LENGTHS_S if hours * HOUR_S <= one * _MOST_PERIODS)
    parts = [(at, list(places)) for at, places in groupby(range(len(starts)), lambda place: starts[place] // step_s)]
    return step_s, [(at * step_s, slice(places[0], places[-1] + 1)) for at, places in parts]


def _urgency_facts(shown_periods: Sequence[ShownPeriod], series: Sequence[UrgencySeries]) -> list[Facts]:
    """Return the figures of each urgency, of all shards together."""
    now = sum_urgencies(one.now for one in series)
    periods = [
        (at, sum_urgencies(chain(*(one.periods[part] for one in series)))) for at, part in shown_periods if series
    ]
    total = sum_urgencies(one for _, one in periods)
    return [
        {
            "urgency": urgency,
            "queueing_target_s": queueing_s,
            "execution_target_s": execution_s,
            "now": _figures(urgency, now[urgency]),
            "total": _figures(urgency, total[urgency]),
            "periods": [{"at": at, **_figures(urgency, one[urgency])} for at, one in periods],
        }
        for urgency, (queueing_s, execution_s) in TARGETS.items()
    ]


def _figures(urgency: Urgency, runs: UrgencyRuns) -> Facts:
    return {
        "runs": runs.processed,
        "failed": runs.failed,
        "late": runs.late(urgency),
        "slow": runs.slow,
        "queueing_apdex": runs.queueing_apdex(urgency),
        "execution_apdex": runs.execution_apdex,
        "mean_wait_s": runs.mean_wait_s,
        "p95_wait_s": runs.wait_of(0.95),
    }


async def _read_history(view: View, step_s: int, read: Callable[[Sequence[str]], T], none: T) -> tuple[Facts, T]:
    """Return what the database of tasks has of the shown shards, and whether there is one: short times need none."""
    if step_s < HOUR_S:
        return {"has_database": None, "problem": ""}, none
    if TaskSettings.of(view.installation.settings).tasks.url is None:
        return {"has_database": False, "problem": ""}, none
    facts = await read_database(view, lambda: {"kept": read(list(view.shards))})
    kept: T = facts.pop("kept", none)
    return {name: facts[name] for name in ("has_database", "problem")}, kept


def _time_facts(view: View, hours: int, step_s: int, periods: int, unread: Sequence[int]) -> Facts:
    """Return the time that is shown, and how much of it was read."""
    view.is_partial = any(unread)
    return {
        "hours": hours,
        "choices": list(_HOURS),
        "step_s": step_s if unread else 0,
        "percent": 100 - math.ceil(100 * sum(unread) / (periods * len(unread))) if any(unread) else 100,
    }


def _hours(view: View) -> int:
    text = view.query.get("hours", "8")
    if text not in {str(one) for one in _HOURS}:
        raise ValueError(Sentence("hours={text}: choose one of {names}", text=text, names=", ".join(map(str, _HOURS))))
    return int(text)


def _points(each: Sequence[Sequence[Runs]], shown_periods: Sequence[ShownPeriod]) -> list[int]:
    """Return the runs of a class in each period, of all shards."""
    return [sum(one.processed for runs in each for one in runs[part]) for _, part in shown_periods]


def _run_facts(total: Runs) -> Facts:
    succeeded = total.processed - total.failed
    mean_s = total.seconds / succeeded if succeeded > 0 else None
    return {"runs": total.processed, "failed": total.failed, "seconds": total.seconds, "mean_s": mean_s}


def _deploy_facts(found: Iterable[Iterable[DeployMark]], starts: Sequence[float]) -> list[Facts]:
    """Return the deploys since the first period, the oldest first; one that several shards have counts once."""
    marks = {(one.at, one.label) for listed in found for one in listed if starts and one.at >= starts[0]}
    return [{"at": at, "label": label} for at, label in sorted(marks)]


def _class_facts(view: View, name: str | None, durations: Sequence[int], found: Mapping[str, ShardRuns]) -> Facts:
    """Return the histograms of a class, and how many of its runs kept the targets of its urgency; without a class, nothing."""
    shown = [
        one.waits for shard, one in found.items() if name is not None and one.waits and view.may("read", shard, name)
    ]
    waits = [sum(column) for column in zip(*shown, strict=True)]
    if name is None or not waits:
        return {"durations": [], "waits": [], "targets": None}
    declaration = view.installation.declaration(name)
    targets = None
    if declaration is not None:
        urgency = declaration.urgency
        targets = {
            "urgency": urgency,
            "queueing_target_s": TARGETS[urgency][0],
            "execution_target_s": TARGETS[urgency][1],
        }
        targets |= _figures(urgency, runs_of_class(waits))
    return {
        "durations": _histogram(durations, [bound / 1000 for bound in BUCKETS_MS]),
        "waits": _histogram(waits[:SUCCEEDED_AT], WAIT_BOUNDS_S),
        "targets": targets,
    }


def _histogram(counts: Sequence[int], bounds_s: Sequence[float]) -> list[Facts]:
    """Return how many runs took up to each bound; the last one has no bound. Buckets without runs at the ends are left out."""
    filled = [at for at, count in enumerate(counts) if count]
    if not filled:
        return []
    bounds = [*bounds_s, None]
    return [{"up_to_s": bounds[at], "runs": counts[at]} for at in range(filled[0], filled[-1] + 1)]
