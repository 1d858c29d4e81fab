"""Build and run a worker process from its settings."""

import gc
import os
from collections.abc import Callable
from functools import partial

from framework import timings
from framework.admin.held_jobs import HeldJobsAlert
from framework.all_settings import Settings
from framework.execute.job_log import JobLog
from framework.feature import Late
from framework.process.boot import check_rights, print_banner, wait_for_redis
from framework.process.boot_warnings import (
    warn_readable_keys,
    warn_splits,
    warn_stale_queues,
    warn_unknown_queues,
    warn_unknown_variables,
)
from framework.process.components import BlockingQueues, ProcessComponents
from framework.process.events import DEATH_LIMIT_S, ProcessEvents
from framework.process.heartbeat import ProcessLease
from framework.process.identity import own_identity
from framework.process.launcher import Launcher
from framework.process.metrics import SidekiqMetrics
from framework.process.own_queues import (
    OwnQueues,
    known_queues,
    warn_own_queues,
)
from framework.process.record import ProcessRecord, default_tag
from framework.process.shared_state import SharedState
from framework.process.signals import SignalQueue
from framework.process.title import Title
from framework.process.unserved import open_watch
from framework.process.worker_options import HealthAddress, WorkerOptions, check_options
from framework.process.worker_parts import ProcessContext, WorkerPart, WorkerParts
from framework.push.protection import open_protection
from framework.recover.reaper import FailureDetector, Reaper
from framework.route.router import Router, open_router
from framework.route.topology import QueueLocation
from framework.shard.shard import Shard
from framework.shard.shards import open_shards
from framework.store.connect import COMMAND_TIMEOUT_S
from framework.store.embedded import endpoint_of
from framework.supervised_threads import hold_reports, report_to
from framework.telemetry import logs
from framework.telemetry.sentry import tracker_of
from framework.version import VERSION
from framework.wiring.capsule_parts import CapsuleBuilder
from framework.wiring.client import default_client
from framework.wiring.schedule import open_poller

# The HTTP server of the standard library costs memory that most processes do not need.
_HEALTH: "Late[Callable[[ProcessComponents, str, HealthAddress], None]]" = Late(
    "framework.process.worker_health:serve_health"
)

_FLUSH_S = 1.0
"""The time that a stopping process has for the last events of its jobs. A supervisor kills it 2 s after the deadline."""


def run_worker(
    settings: Settings, options: WorkerOptions, log_descriptor: int | None = None, supervisor: int | None = None
) -> int:
    """Run one worker process from the main thread until a signal to stop; return its exit status.

    The log goes to ``log_descriptor``, or to stdout. ``supervisor`` is the supervisor's process id.
    """
    check_options(options, settings)
    signals = SignalQueue()
    signals.install()
    identity = own_identity()
    hold_reports()
    log = logs.open_server_log(
        settings.logging.level,
        {
            "pid": os.getpid(),
            "worker_id": os.environ.get("FRAMEWORK_WORKER_ID", identity),
            "shard": options.shard,
        },
        log_descriptor,
        settings.logging.format,
    )
    shard = Shard(options.shard, endpoint_of(settings, options.shard), role=f"worker:{os.getpid()}")
    if supervisor is None:
        print_banner(log, shard, options.total_slots, options.timeout_s)
    try:
        warn_unknown_variables(settings)
        warn_stale_queues(settings)
        router = open_router(settings)
        warn_splits(settings, router)
        warn_readable_keys()
        warn_unknown_queues(settings, options.all_queues, known_queues(router))
        warn_own_queues(OwnQueues(options.queues, options.queues_from, options.newer_queues), options.shard)
        job_log = JobLog(log, jobs=settings.logging.jobs)
        components = build_worker(settings, router, options, shard, identity, job_log, supervisor=supervisor)
        components.events.death_limit_s = DEATH_LIMIT_S
        report_to(components.events.component_died)
        components.parts.serve()
        if options.health is not None and supervisor is None:
            _HEALTH.load()(components, options.shard, options.health)
        waited = wait_for_redis(shard, components, signals, partial(check_rights, settings, shard))
        if waited is not None:
            return waited
        components.parts.check()
        default_client().fallback.start()
        # The objects that exist by now live as long as the process. Unfrozen, each full garbage collection would visit them, and jobs
        # that make many objects cause such collections: jobs that parse files took twice the processor time.
        gc.freeze()
        status = Launcher(components, signals).run()
        components.events.moved_jobs.flush(_FLUSH_S)
        components.events.summarize_foreign(process_ends=True)
        components.events.tracker.close()
    finally:
        logs.close_server_log()
    logs.flush_output()
    # A job that hangs in its thread must not keep the process alive: its job has been pushed back.
    os._exit(status)


def build_worker(
    settings: Settings,
    router: Router,
    options: WorkerOptions,
    shard: Shard,
    identity: str,
    log: JobLog,
    *,
    supervisor: int | None,
) -> ProcessComponents:
    """Return the components of a process that serves the queues of its capsules; nothing runs yet."""
    waits, plans = timings.current(), options.plan(router)
    events = ProcessEvents(shard.name, tracker_of(settings), shard.endpoint.user)
    process = ProcessContext(
        settings,
        router,
        shard,
        identity,
        plans,
        events,
        open_protection(settings),
        log,
        waits,
        isolates=options.isolates,
    )
    polled, watched = (open_shards(settings, role=f"{role}:{os.getpid()}") for role in ("poller", "worker"))
    built = CapsuleBuilder(settings, process)
    parts = WorkerParts(process, first=WorkerPart(refresh=process.cancellations.refresh))
    capsules = built.build(parts)
    record = _open_record(process, options)
    held = HeldJobsAlert(process.upkeep, events.held_too_long, settings.held_alert_after)
    parts.add(WorkerPart(periodic=(held.check, events.summarize_foreign)))
    detector = FailureDetector(waits.lease_s, waits.heartbeat_period_s)
    beating = shard.open_client("lease", read_timeout_s=COMMAND_TIMEOUT_S)
    served = [QueueLocation(name, shard.name) for name in record.queues]
    return ProcessComponents(
        process=process,
        capsules=capsules,
        blocking=BlockingQueues(process.upkeep, settings.blocking_queues, [one.order for one in plans], capsules),
        lease=ProcessLease(beating, identity, record.slots, detector, waits, {p.name: p.slots for p in plans[1:]}),
        record=record,
        metrics=SidekiqMetrics(process.upkeep, process.runs, settings.sidekiq_metrics, timings=waits),
        title=Title(shard.name, record.queues, "busy"),
        poller=open_poller(settings, process, polled),
        reaper=_open_reaper(process, detector),
        parts=parts,
        push_back=built.push_back(),
        poll_interval_s=settings.poll_interval,
        timeout_s=options.timeout_s,
        supervisor=supervisor,
        shared_state=SharedState.from_environment(),
        unserved=open_watch(settings, router, watched, served, waits, in_group=supervisor is not None),
        connections=(*built.connections, process.upkeep, beating, polled, watched, shard),
    )


def _open_record(process: ProcessContext, options: WorkerOptions) -> ProcessRecord:
    tag = options.tag or default_tag()
    return ProcessRecord(process, VERSION, process.runs, tag, options.labels, options.queues_from)


def _open_reaper(process: ProcessContext, detector: FailureDetector) -> Reaper:
    return Reaper(
        process.upkeep,
        process.events.recovered,
        detector,
        process.dead_set,
        process.settings.size_limit.decoded_limit,
        process.interruptions,
        process.timings,
    )
