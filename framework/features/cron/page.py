"""The schedule: each entry with its last and next run."""

from framework.features.cron.admin import ScheduledEntry, cron_entries
from framework.pages.page import Page
from framework.pages.view import Facts, View


class CronPage(Page):
    """Show the entries of the schedule, the next run first."""

    name = "cron"
    path = "/cron"
    title = "Cron"
    menu = "work"
    mends = ("cron_disabled", "cron_missed", "cron_no_leader")
    of_jobs = True

    async def read(self, view: View) -> Facts:
        """Read the entries of each shard."""
        found = await view.each(lambda shard: list(cron_entries(shard)))
        entries = [one for listed in found.values() for one in listed if view.may("read", one.shard, one.cls)]
        return {"entries": [_facts(one) for one in sorted(entries, key=_next)]}


def _next(entry: ScheduledEntry) -> tuple[bool, int, str]:
    return entry.next_tick is None, entry.next_tick or 0, entry.name


def _facts(entry: ScheduledEntry) -> Facts:
    return {
        "name": entry.name,
        "shard": entry.shard,
        "class": entry.cls,
        "cron": entry.cron,
        "time_zone": entry.time_zone,
        "origin": entry.origin,
        "is_enabled": entry.enabled,
        "missed": entry.missed,
        "overlap": entry.overlap,
        "next_at": entry.next_tick,
        "last_at": entry.last_tick,
        "last_jid": entry.last_jid,
        "waits": entry.waits,
        "reason": entry.reason,
    }
