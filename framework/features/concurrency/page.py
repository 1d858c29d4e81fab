"""The concurrency limits: their slots, and the jobs that wait at them."""

from framework.features.concurrency.admin import LimitReport
from framework.features.concurrency.limit_state import SlotHolder, read_slot_holders
from framework.features.concurrency.page_actions import ClearLimit, LimitRows, SetLimit
from framework.pages.page import Page
from framework.pages.view import Facts, View
from framework.shard.shard import Shard

_MOST_HOLDERS = 50
"""The slots of a class that are shown of each shard."""


class LimitsPage(Page):
    """Show each limit, the one with the longest-waiting job first; with ``class`` in the query, that of a class."""

    name = "limits"
    path = "/limits"
    title = "Limits"
    menu = "control"
    mends = ("limit_reached", "limit_paused", "slots_leaked", "limit_free", "slow_class")
    of_jobs = True
    class_part = "limits, #holders"
    filters_class = True
    actions = (SetLimit(), ClearLimit())

    async def read(self, view: View) -> Facts:
        """Read the limits of each shard."""
        rows, worker = LimitRows(), view.query.get("class")
        read = await view.each(lambda shard: _read(view, view.shards[shard], worker))
        found = {shard: listed for shard, (listed, _) in read.items()}
        reports = [
            {"name": one.name, "shard": shard, **rows.facts(one)}
            for shard, listed in found.items()
            for one in listed
            if view.may("read", shard, one.name) and worker in (None, one.name)
        ]
        holders = [
            {"shard": shard, "process": one.identity, "jid": one.jid, "left_s": one.left_s}
            for shard, (_, listed) in read.items()
            if view.may("read", shard, worker)
            for one in listed
        ]
        return {"limits": sorted(reports, key=_waits_longest), "class": worker, "holders": holders}


def _read(view: View, shard: Shard, worker: str | None) -> tuple[list[LimitReport], list[SlotHolder]]:
    """Return the limits of a shard, and the holders of the slots of one class."""
    listed = list(LimitRows().read(view, shard))
    holders = [] if worker is None else read_slot_holders(shard.client, worker, view.now, most=_MOST_HOLDERS)
    return listed, holders


def _waits_longest(row: Facts) -> tuple[float, str]:
    since = row["waiting_since"]
    return float("inf") if since is None else since, row["name"]
