"""Build the scheduler of cron from the settings, and answer the application whether its process leads."""

from collections.abc import Callable

from framework.all_settings import Settings
from framework.cron.added import AddedEntries
from framework.cron.entries import CronEntry, collect_entries, unknown_classes
from framework.cron.events import CronEvents
from framework.cron.jobs import job_of
from framework.cron.leadership import Leadership
from framework.cron.scheduler import CronScheduler
from framework.cron.states import CronStates
from framework.declare import registry
from framework.process.worker_parts import ProcessContext
from framework.route.router import Router
from framework.wire import keys


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


def open_cron(settings: Settings, process: ProcessContext, is_ending: Callable[[], bool]) -> CronScheduler:
    """Return the scheduler for the entries whose jobs go to the shard of the process. Opens no socket."""
    router, client, shard = process.router, process.upkeep, process.shard.name
    identity, waits = process.identity, process.timings
    events = CronEvents(shard)
    application, enabled = settings.cron.application, settings.cron.enabled
    unknown = unknown_classes(settings)
    if unknown and enabled:
        events.unknown_classes(unknown)
    kind = _kind(settings)
    return CronScheduler(
        CronStates(client, application, process.protection.state),
        Leadership(client, keys.leader(application), identity, timings=waits),
        entries_on(settings, router, shard) if enabled else {},
        job_of,
        events,
        added=AddedEntries(settings, shard, lambda declaration: router.route(declaration).shard, process.absent),
        kind=None if kind is None else Leadership(client, keys.leader(kind), identity, timings=waits),
        may_lead=lambda: enabled and not is_ending(),
        timings=waits,
    )


def _kind(settings: Settings) -> str | None:
    """Return a name for all processes that have loaded the same modules of the application; ``None`` if this process has all of them.

    Each such set of processes has a leader that pushes: a leader of all would not push the entries of classes that it lacks.
    """
    loaded = registry.loaded()
    if loaded.issuperset(settings.workers_module):
        return None
    return f"{settings.cron.application}:{'+'.join(sorted(loaded))}"


def entries_on(settings: Settings, router: Router, shard: str) -> dict[str, CronEntry]:
    """Return the entries whose jobs go to a shard, by name. The state of an entry is where its jobs are."""
    return {
        name: entry
        for name, entry in collect_entries(settings).items()
        if router.route(entry.declaration).shard == shard
    }
