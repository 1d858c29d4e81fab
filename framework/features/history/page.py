"""The page of the runs over time: a chart with the deploys, and a row for each class."""

import math
from collections.abc import Iterable, Sequence
from itertools import chain, repeat

from framework.admin.access import Listing
from framework.execute.stats import BUCKETS_MS
from framework.features.history.admin import DeployMark, RunSeries, deploys, read_series
from framework.features.history.series import KeptPeriods, Runs, sum_of
from framework.pages.page import Page
from framework.pages.view import Facts, View
from framework.text import Sentence

_HOURS = (1, 8, 24, 72)
"""The times that the page offers. Redis keeps 72 hours."""

_DAY_HOURS = 24
_MOST_CLASSES = 40


class ActivityPage(Page):
    """Show the runs of the last hours by period, in total and by class. The word ``class`` of the query chooses one."""

    name = "activity"
    path = "/activity"
    title = "Activity"
    menu = "now"
    of_jobs = True
    # A period is a minute at least, and the runs of eight hours are many numbers.
    fresh_s = 30.0
    overview_part = "activity-chart"
    class_part = "activity-chart"

    def __init__(self) -> None:
        self._kept = KeptPeriods()

    async def read(self, view: View) -> Facts:
        """Read the runs and the deploys of each shard.

        Raises:
            ValueError: ``hours`` is none of the times that the page offers.
        """
        hours, name = _hours(view), view.query.get("class")

        def read(shard: str) -> tuple[RunSeries, Listing[DeployMark]]:
            return read_series(hours, name, shard, self._kept, view.part_s), deploys(1 + hours // _DAY_HOURS, shard)

        found = await view.each(read)
        # By class, the runs of each shard. Those of eight hours are many: they are summed at once, not shard by shard.
        classes: dict[str, list[Sequence[Runs]]] = {}
        for shard, (series, _) in found.items():
            for one, runs in series.classes.items():
                if view.may("read", shard, one):
                    classes.setdefault(one, []).append(runs)
        any_series = next((series for series, _ in found.values()), None)
        starts: Sequence[float] = () if any_series is None else any_series.starts
        rows: list[Facts] = [{"class": one, **_run_facts(sum_of(chain(*each)))} for one, each in classes.items()]
        shown = sorted(rows, key=lambda one: (-one["runs"], one["class"]))[:_MOST_CLASSES]
        periods = map(sum_of, zip(*chain(*classes.values()), strict=True)) if classes else repeat(Runs())
        unread = sum(series.unread for series, _ in found.values())
        view.is_partial = bool(unread)
        return {
            "hours": hours,
            "choices": list(_HOURS),
            "class": name,
            "step_s": 0 if any_series is None else any_series.step_s,
            "percent": 100 - math.ceil(100 * unread / (len(starts) * len(found))) if unread else 100,
            "periods": [{"at": at, **_run_facts(runs)} for at, runs in zip(starts, periods, strict=False)],
            "deploys": _deploy_facts([marks for _, marks in found.values()], starts),
            "classes": [{**one, "points": _points(classes[one["class"]])} for one in shown],
            "durations": _durations([series for series, _ in found.values()]) if name in classes else [],
        }


def _hours(view: View) -> int:
    text = view.query.get("hours", "8")
    if text not in {str(one) for one in _HOURS}:
        raise ValueError(Sentence("hours={text}: choose one of {names}", text=text, names=", ".join(map(str, _HOURS))))
    return int(text)


def _points(each: Sequence[Sequence[Runs]]) -> list[int]:
    """Return the runs of a class in each period, of all shards."""
    return [sum(one.processed for one in runs) for runs in zip(*each, strict=True)]


def _run_facts(total: Runs) -> Facts:
    succeeded = total.processed - total.failed
    mean_s = total.seconds / succeeded if succeeded > 0 else None
    return {"runs": total.processed, "failed": total.failed, "seconds": total.seconds, "mean_s": mean_s}


def _deploy_facts(found: Iterable[Iterable[DeployMark]], starts: Sequence[float]) -> list[Facts]:
    """Return the deploys since the first period, the oldest first; one that several shards have counts once."""
    marks = {(one.at, one.label) for listed in found for one in listed if starts and one.at >= starts[0]}
    return [{"at": at, "label": label} for at, label in sorted(marks)]


def _durations(found: Sequence[RunSeries]) -> list[Facts]:
    """Return how many runs lasted up to each bound; the last one has no bound. Buckets without runs at the ends are left out."""
    counts = [sum(column) for column in zip(*(one.durations for one in found), strict=True)]
    filled = [at for at, count in enumerate(counts) if count]
    if not filled:
        return []
    bounds_s = [*(bound / 1000 for bound in BUCKETS_MS), None]
    places = range(filled[0], filled[-1] + 1)
    return [{"up_to_s": bounds_s[at], "runs": counts[at]} for at in places]
