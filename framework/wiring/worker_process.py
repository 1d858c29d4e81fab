"""Build and run a worker process from its settings."""

import gc
import os
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from functools import partial

import redis

from framework import middleware, timings
from framework.admin.held_jobs import HeldJobsAlert
from framework.all_settings import Settings
from framework.execute.decoding import open_decoder
from framework.execute.execution import Executor
from framework.execute.job_log import JobLog
from framework.execute.outcomes import UnknownClassDelays
from framework.execute.policy_decision import GroupAdmission
from framework.execute.processor import Processor
from framework.execute.threads import WorkerThreads
from framework.feature import Late
from framework.fetch.fetcher import Fetcher
from framework.finish.retry import RetryPolicy
from framework.finish.settle import Settler
from framework.process.boot import check_rights, print_banner, wait_for_redis
from framework.process.boot_warnings import (
    warn_readable_keys,
    warn_splits,
    warn_stale_queues,
    warn_unknown_queues,
    warn_unknown_variables,
)
from framework.process.capsules import Capsule, Capsules
from framework.process.components import BlockingQueues, Closeable, ProcessComponents
from framework.process.events import DEATH_LIMIT_S, ProcessEvents
from framework.process.heartbeat import ProcessLease
from framework.process.identity import own_identity
from framework.process.launcher import Launcher
from framework.process.metrics import SidekiqMetrics
from framework.process.orders import OrderReader
from framework.process.own_queues import (
    DEFAULT_CAPSULE,
    CapsulePlan,
    OwnQueues,
    known_queues,
    warn_own_queues,
)
from framework.process.push_back import PushBack
from framework.process.record import ProcessRecord, default_tag
from framework.process.signals import SignalQueue, at_terminal
from framework.process.title import Title
from framework.process.unserved import open_watch
from framework.process.worker_options import HealthAddress, WorkerOptions, check_options
from framework.process.worker_parts import ProcessContext, WorkerPart, WorkerParts
from framework.push.argument_checks import StrictArgumentsCheck
from framework.push.protection import open_protection
from framework.recover.reaper import FailureDetector, Reaper
from framework.recover.suspects import SuspectRunner
from framework.route.router import Router, open_router
from framework.route.topology import QueueLocation
from framework.schedule.cross_shard import CrossShardTransfer
from framework.schedule.due_job_planner import DestinationResolver, DueJobPlanner
from framework.schedule.poller import Poller
from framework.shard.shard import Shard
from framework.shard.shards import Shards, open_block_store, open_shards
from framework.store.channel import ChannelPool
from framework.store.connect import COMMAND_TIMEOUT_S
from framework.store.embedded import endpoint_of
from framework.supervised_threads import hold_reports, report_to
from framework.telemetry import logs
from framework.telemetry.job_events import job_events
from framework.telemetry.last_calls import make_last_calls
from framework.telemetry.library_calls import count_library_calls
from framework.telemetry.sentry import tracker_of
from framework.telemetry.shared_counts import SharedCounts
from framework.version import VERSION
from framework.wiring.client import default_client, open_limiter

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
    job_events.is_worker = True
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
    shard = Shard(
        options.shard,
        endpoint_of(settings, options.shard),
        role=f"worker:{os.getpid()}",
        block_store=open_block_store(settings),
    )
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
        make_last_calls()
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
    # First: the observers of errors and traces read whether the process has a client of Sentry.
    tracker = tracker_of(settings)
    job_events.shared_counts = SharedCounts.from_environment() or job_events.shared_counts
    job_events.is_scraped = job_events.is_scraped or (options.health is not None and supervisor is None)
    job_events.shard = shard.name
    job_events.open(settings)
    if log.has_job_lines or job_events.needs_usage:
        count_library_calls()
    events = ProcessEvents(shard.name, tracker, shard.endpoint.user, settings.sentry.report)
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
        shared_state=process.shared_state,
        unserved=open_watch(settings, router, watched, served, waits, in_group=supervisor is not None),
        orders=OrderReader(process, capsules),
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


class CapsuleBuilder:
    """Build the capsules of one process, which share everything but their fetchers and threads. Opens no socket."""

    def __init__(self, settings: Settings, process: ProcessContext) -> None:
        shard, waits = process.shard, process.timings
        self._settings = settings
        self._process = process
        self._fetching = shard.open_client("fetch", read_timeout_s=COMMAND_TIMEOUT_S)
        self._fetchers: Sequence[Fetcher] = ()
        self._pool = ChannelPool(shard.client, read_timeout_s=COMMAND_TIMEOUT_S)
        self._decoding = open_decoder(settings.size_limit, process.protection, process.runs, process.budget)
        slots = sum(one.slots for one in process.plans)
        self._suspects = SuspectRunner(shard.client, process.identity, slots, waits)

    @property
    def connections(self) -> Sequence[Closeable]:
        """What the capsules share and do not close themselves."""
        return self._fetching, self._pool

    def build(self, parts: WorkerParts) -> Capsules:
        process = self._process
        self._fetchers = _open_fetchers(process, self._fetching, parts.sub_queues)
        for fetcher in self._fetchers:
            process.runs.show(fetcher.in_flight)
        return Capsules(
            [self._capsule(parts, *one) for one in zip(process.plans, process.owners, self._fetchers, strict=True)]
        )

    def push_back(self) -> PushBack:
        process = self._process
        jobs = {owner: one.in_flight for owner, one in zip(process.owners, self._fetchers, strict=True)}
        limit = None if at_terminal() else process.interruptions
        return PushBack(process.shard.client, jobs, process.events, limit)

    def _capsule(self, parts: WorkerParts, plan: CapsulePlan, owner: str, fetcher: Fetcher) -> Capsule:
        process = self._process
        own_name = "" if plan.name == DEFAULT_CAPSULE else plan.name
        threads = WorkerThreads(fetcher, own_name)
        executor = self._executor(own_name, owner, fetcher, threads, parts)
        processor = Processor(
            fetcher,
            threads,
            executor,
            self._settler(owner),
            process.job_log,
            process.runs,
            process.loop,
            process.events,
        )
        return Capsule(plan, fetcher, processor)

    def _executor(
        self, own_name: str, owner: str, fetcher: Fetcher, threads: WorkerThreads, parts: WorkerParts
    ) -> Executor:
        process, settings, admission = self._process, self._settings, parts.chain(owner)
        together = GroupAdmission(self._pool, owner, fetcher, self._decoding, admission)
        chain = middleware.capsule(own_name) if own_name else middleware.server
        return Executor(
            chain.compile(),
            process.job_log,
            process.runs,
            self._decoding,
            threads,
            self._suspects,
            StrictArgumentsCheck(settings.strict_arguments),
            settings.retired_workers,
            admission,
            UnknownClassDelays(settings.foreign_classes, settings.unknown_class_max_wait),
            together,
            process.events.moved_jobs.recorder,
            around=parts.around,
            spans=parts.spans,
            cursors=parts.cursors(owner),
            detached=parts.detached,
            capsule=own_name,
        )

    def _settler(self, owner: str) -> Settler:
        process, settings = self._process, self._settings
        return Settler(
            process.shard.client,
            owner,
            process.events,
            RetryPolicy(settings.max_retries, keeps_business_failures=settings.dead.business),
            process.dead_set,
            process.poll_timing.expect_retry,
            process.states,
            process.timings,
            process.protection.state,
        )


def _open_fetchers(process: ProcessContext, client: "redis.Redis", sub_queues: AbstractSet[str]) -> list[Fetcher]:
    """Return the fetcher of each capsule; running jobs have different places in all of them."""
    settings, fetchers, first = process.settings, list[Fetcher](), 0
    for owner, plan in zip(process.owners, process.plans, strict=True):
        fetchers.append(
            Fetcher(
                client,
                owner,
                plan.order,
                plan.slots,
                process.events,
                process.dead_set,
                settings.size_limit.decoded_limit,
                process.absent,
                settings.process_limits,
                process.timings,
                first,
                sub_queues,
            )
        )
        first += plan.slots
    return fetchers


def open_poller(settings: Settings, process: ProcessContext, shards: Shards) -> Poller:
    """Return the poller of the shard of the process; it writes due jobs to their shards, among ``shards``."""
    client, shard, events = process.upkeep, process.shard.name, process.events
    transfer = CrossShardTransfer(client, shard, shards, events)
    planner = DueJobPlanner(
        events,
        DestinationResolver(process.router, shard),
        transfer,
        process.states,
        middleware=middleware.client.compile(),
        limiter=open_limiter(settings, process.protection),
        locks=default_client().locks,
        budget=process.budget,
        protection=process.protection,
        postpones=process.postpones,
    )
    return Poller(client, events, planner, transfer, process.poll_timing, process.dead_set)
