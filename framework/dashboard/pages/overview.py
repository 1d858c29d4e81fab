"""The first page: the sizes of all places, the runs of the last days, and the health of each shard."""

from dataclasses import asdict, fields

from framework import admin
from framework.admin import RunHistory, ShardHealth, ShardStats
from framework.admin.access import ask
from framework.admin.health_of_shards import read_health
from framework.pages.page import Page
from framework.pages.view import Facts, View

_DAYS = 30


class OverviewPage(Page):
    """Show the fleet at one glance."""

    name = "overview"
    path = "/"
    title = "Overview"
    menu = "now"

    async def read(self, view: View) -> Facts:
        """Read counters, sizes, history and server of each shard."""
        found = await view.each(_read)
        shards = [
            {"shard": name, "stats": asdict(stats), "server": asdict(server)}
            for name, (stats, server, _) in found.items()
        ]
        total = {
            one.name: sum(getattr(stats, one.name) for stats, _, _ in found.values()) for one in fields(ShardStats)
        }
        return {"total": total, "shards": shards, "days": _days([history for _, _, history in found.values()])}


def _read(shard: str) -> tuple[ShardStats, ShardHealth, RunHistory]:
    stats = admin.stats(shard).shards[shard]
    return stats, ask(shard, read_health).by_shard[shard], admin.history(_DAYS, shard)


def _days(histories: list[RunHistory]) -> list[Facts]:
    """Return the runs of each day, the oldest first."""
    if not histories:
        return []
    return [
        {
            "day": str(day),
            "processed": sum(one.days[day].processed for one in histories if day in one.days),
            "failed": sum(one.days[day].failed for one in histories if day in one.days),
        }
        for day in sorted(histories[0].days)
    ]
