"""The concurrency limits: their slots, and the jobs that wait at them."""

from framework.features.concurrency.admin import LimitReport, limits
from framework.features.concurrency.page_actions import ClearLimit, SetLimit
from framework.pages.page import Page
from framework.pages.view import Facts, View


class LimitsPage(Page):
    """Show each limit, the one with the longest-waiting job first."""

    name = "limits"
    path = "/limits"
    title = "Limits"
    menu = "control"
    mends = ("limit_reached", "slots_leaked", "limit_free")
    of_jobs = True
    actions = (SetLimit(), ClearLimit())

    async def read(self, view: View) -> Facts:
        """Read the limits of each shard."""
        found = await view.each(lambda shard: limits(shard).by_shard[shard])
        reports = [
            (shard, one) for shard, listed in found.items() for one in listed if view.may("read", shard, one.name)
        ]
        return {"limits": [_facts(shard, one) for shard, one in sorted(reports, key=_waits_longest)]}


def _waits_longest(named: tuple[str, LimitReport]) -> tuple[float, str]:
    waiting = named[1].waiting
    return float("inf") if waiting is None else waiting.since, named[1].name


def _facts(shard: str, one: LimitReport) -> Facts:
    return {
        "name": one.name,
        "shard": shard,
        "limit": one.limit,
        "source": one.source,
        "running": one.running,
        "is_full": one.is_full,
        "until": one.until,
        "set_by": None if one.override is None else one.override.by,
        "reason": None if one.override is None else one.override.reason,
        "waiting": 0 if one.waiting is None else one.waiting.jobs,
        "waiting_since": None if one.waiting is None else one.waiting.since,
    }
