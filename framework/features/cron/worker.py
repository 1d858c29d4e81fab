"""Push the jobs of the schedule in a worker process that leads, in a thread of its own."""

from functools import partial

from framework.declare import port, registry
from framework.features.cron import keys
from framework.features.cron.entries import AddedEntries, CronEntry, collect_entries, unknown_classes
from framework.features.cron.events import CronEvents
from framework.features.cron.leadership import Leadership, LeadershipEvents, serve_leadership
from framework.features.cron.push import TICK_JOBS
from framework.features.cron.scheduler import CronScheduler
from framework.features.cron.settings import CronSettings
from framework.features.cron.store import CronStates
from framework.process.worker_parts import OwnTask, ProcessContext, WorkerPart
from framework.route.router import Router


def worker_part(process: ProcessContext) -> WorkerPart:
    """Return the part of cron in a worker process, which also decides whether the process leads."""
    settings = CronSettings.of(process.settings)
    cron = open_cron(settings, process)
    process.absent.watch(keys.cron_entries(settings.cron.application))
    process.follow(cron.leadership.ask)
    handlers = LeadershipEvents(cron.leadership, process.lifecycle)

    def step() -> float:
        handlers.step()
        cron.may_lead = settings.cron.enabled and not process.quiet
        try:
            return cron.step()
        finally:
            # Also after an error: without an answer of Redis the lease ends by the clock of this process.
            handlers.note()

    return WorkerPart(
        tasks=(OwnTask("cron", step, handlers.end, cron.release),), serve=partial(serve_leadership, cron.leadership)
    )


def open_cron(settings: CronSettings, process: ProcessContext) -> CronScheduler:
    """Return the scheduler for the entries whose jobs go to the shard of the process. Opens no socket."""
    router, client, shard = process.router, process.upkeep, process.shard.name
    identity, waits = process.identity, process.timings
    events = CronEvents(shard)
    application, enabled = settings.cron.application, settings.cron.enabled
    unknown = unknown_classes(settings)
    if unknown and enabled:
        events.unknown_classes(unknown)
    kind = _kind(process, application)
    return CronScheduler(
        CronStates(client, application, process.protection.state),
        Leadership(client, keys.leader(application), identity, waits),
        entries_on(settings, router, shard) if enabled else {},
        port.current().service(TICK_JOBS),
        events,
        added=AddedEntries(settings, shard, router.home, process.absent),
        kind=None if kind is None else Leadership(client, keys.leader(kind), identity, waits),
        timings=waits,
    )


def _kind(process: ProcessContext, application: str) -> str | None:
    """Return a name for all processes that have loaded the same modules of the application; ``None`` if this process has all of them.

    Each such set of processes has a leader that pushes: a leader of all would not push the entries of classes that it lacks.
    """
    loaded = registry.loaded()
    if loaded.issuperset(process.settings.workers_module):
        return None
    return f"{application}:{'+'.join(sorted(loaded))}"


def entries_on(settings: CronSettings, router: Router, shard: str) -> dict[str, CronEntry]:
    """Return the entries of a shard, by name: the state of an entry is where the rules send its jobs, whatever move is in force."""
    return {name: entry for name, entry in collect_entries(settings).items() if router.home(entry.declaration) == shard}
