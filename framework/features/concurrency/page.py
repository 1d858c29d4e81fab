"""The concurrency limits: their slots, and the jobs that wait at them."""

from framework.features.concurrency.page_actions import ClearLimit, LimitRows, SetLimit
from framework.pages.page import Page
from framework.pages.view import Facts, View


class LimitsPage(Page):
    """Show each limit, the one with the longest-waiting job first; with ``class`` in the query, that of a class."""

    name = "limits"
    path = "/limits"
    title = "Limits"
    menu = "control"
    mends = ("limit_reached", "limit_paused", "slots_leaked", "limit_free", "slow_class")
    of_jobs = True
    class_part = "limits"
    filters_class = True
    actions = (SetLimit(), ClearLimit())

    async def read(self, view: View) -> Facts:
        """Read the limits of each shard."""
        rows = LimitRows()
        found = await view.each(lambda shard: list(rows.read(view, view.shards[shard])))
        reports = [
            {"name": one.name, "shard": shard, **rows.facts(one)}
            for shard, listed in found.items()
            for one in listed
            if view.may("read", shard, one.name) and view.query.get("class") in (None, one.name)
        ]
        return {"limits": sorted(reports, key=_waits_longest)}


def _waits_longest(row: Facts) -> tuple[float, str]:
    since = row["waiting_since"]
    return float("inf") if since is None else since, row["name"]
