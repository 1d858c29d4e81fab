"""Build the scheduler of cron from the settings, and answer the application whether its process leads."""

from collections.abc import Callable

import redis

from framework.cron.entries import CronEntry, collect_entries, unknown_classes
from framework.cron.events import CronEvents
from framework.cron.jobs import TickJobs
from framework.cron.leadership import Leadership
from framework.cron.scheduler import CronScheduler
from framework.cron.states import CronStates
from framework.declare import registry
from framework.route.router import Router
from framework.settings.model import Settings
from framework.timings import Timings
from framework.wire import keys
from framework.wiring.client import default_client


class _ServedLeadership:
    """The leadership of this worker process; None in any other process, which never leads."""

    leadership: Leadership | None = None


def serve_leadership(leadership: Leadership) -> None:
    """Answer the questions of the application from this leadership."""
    _ServedLeadership.leadership = leadership


def process_leads() -> bool:
    """Return whether this process leads."""
    found = _ServedLeadership.leadership
    return found is not None and found.ask()


def open_cron(
    settings: Settings,
    router: Router,
    shard: str,
    client: "redis.Redis",
    identity: str,
    is_ending: Callable[[], bool],
    waits: Timings,
) -> CronScheduler:
    """Return the scheduler for the entries whose jobs go to ``shard``, which ``client`` connects to. Opens no socket."""
    events = CronEvents(shard)
    application, enabled = settings.cron.application, settings.cron.enabled
    unknown = unknown_classes(settings)
    group = application
    if unknown and enabled:
        events.unknown_classes(unknown)
        # A leader without some of the classes would leave their entries to no process, so its kind has a leader of its own.
        group = f"{application}:{'+'.join(sorted(registry.loaded()))}"
    return CronScheduler(
        CronStates(client, application),
        Leadership(client, keys.leader(group), identity, timings=waits),
        entries_on(settings, router, shard) if enabled else {},
        TickJobs(default_client).make,
        events,
        may_lead=lambda: enabled and not is_ending(),
        timings=waits,
    )


def entries_on(settings: Settings, router: Router, shard: str) -> dict[str, CronEntry]:
    """Return the entries whose jobs go to a shard, by name. The state of an entry is where its jobs are."""
    return {
        name: entry
        for name, entry in collect_entries(settings).items()
        if router.route(entry.declaration).shard == shard
    }
