"""Build and run a worker process from its settings."""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module

import redis

from framework import middleware, timings
from framework.admin.held_jobs import HeldJobsAlert
from framework.execute.admission import AdmissionChain
from framework.execute.cancellation import Cancellations
from framework.execute.decoding import PayloadDecoder
from framework.execute.event_loop import EventLoop
from framework.execute.execution import Executor
from framework.execute.group_admission import GroupAdmission
from framework.execute.iterations import Iterations
from framework.execute.job_log import JobLog
from framework.execute.processor import Processor
from framework.execute.stats import RunningJobs
from framework.execute.threads import WorkerThreads
from framework.execute.unknown import UnknownClassDelays
from framework.fetch.fetcher import Fetcher
from framework.fetch.queues import QueueOrder
from framework.finish.retry import RetryPolicy
from framework.finish.settle import Settler
from framework.finish.status_writer import StatusWriter
from framework.process.banner import print_banner
from framework.process.boot_warnings import warn_splits, warn_stale_queues, warn_unknown_queues, warn_unknown_variables
from framework.process.components import ProcessComponents
from framework.process.descriptors import check_worker
from framework.process.events import ProcessEvents
from framework.process.health_address import HealthAddress
from framework.process.heartbeat import Lease
from framework.process.identity import own_identity
from framework.process.launcher import Launcher
from framework.process.metrics import SidekiqMetrics
from framework.process.own_queues import OwnQueues, expand_queues, known_queues, warn_own_queues
from framework.process.push_back import PushBack
from framework.process.record import ProcessRecord, default_tag
from framework.process.redis_at_boot import check_rights, wait_for_redis
from framework.process.shared_state import SharedState
from framework.process.signals import SignalQueue
from framework.process.title import Title
from framework.process.unserved import PROCESS_DEADLINE_S, UnservedCallbacks, UnservedQueues, UnservedWatch
from framework.push.strict_arguments import StrictArgumentsCheck
from framework.recover.failure_detector import FailureDetector
from framework.recover.interruptions import InterruptionLimit
from framework.recover.reaper import Reaper
from framework.recover.suspects import SuspectRunner
from framework.route.router import Router
from framework.route.topology import QueueLocation
from framework.schedule.poll_timing import PollTiming
from framework.settings.model import DeadSettings, Settings
from framework.shard.shard import Shard
from framework.shard.shards import Shards
from framework.store.absent_keys import AbsentKeys
from framework.store.channel import ChannelPool
from framework.store.connect import COMMAND_TIMEOUT_S
from framework.store.endpoints import endpoint_of
from framework.telemetry import logs
from framework.timings import Timings
from framework.version import VERSION
from framework.wire import keys
from framework.wire.memory_budget import MemoryBudget
from framework.wire.set_limits import SetLimits
from framework.wiring.client import default_client, open_router, open_shards, replay_kept_pushes, tracker_of
from framework.wiring.cron import open_cron, serve_leadership
from framework.wiring.feature_flags import serve_flags
from framework.wiring.payloads import open_decoder
from framework.wiring.policies import open_policies
from framework.wiring.schedule import open_poller


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The options of one process."""

    shard: str
    queues: tuple[tuple[str, int], ...]
    slots: int
    timeout_s: float
    no_namespaces: bool = False
    """Whether names are queues only, and no namespaces."""
    tag: str | None = None
    labels: tuple[str, ...] = ()
    queues_from: str = "-q"
    """The source of the queues: an option, a file, the environment, or the loaded classes."""
    newer_queues: tuple[str, ...] = ()
    """The queues that the generated file lacks."""
    health: HealthAddress | None = None
    """The address of the health checks, ``None`` for none. The child of a supervisor has none: the supervisor answers."""


def run_worker(
    settings: Settings, options: WorkerOptions, log_descriptor: int | None = None, supervisor: int | None = None
) -> int:
    """Run one worker process from the main thread until a signal to stop; return its exit status.

    The log goes to ``log_descriptor``, or to stdout. ``supervisor`` is the supervisor's process id.
    """
    check_worker(options.slots, len(options.queues), len(settings.shards))
    signals = SignalQueue()
    signals.install()
    identity = own_identity()
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
        print_banner(log, shard, options.slots)
    try:
        warn_unknown_variables(settings)
        warn_stale_queues(settings)
        router = open_router(settings)
        known = known_queues(router)
        warn_splits(settings, router)
        warn_unknown_queues(settings, [name for name, _ in options.queues], known)
        warn_own_queues(OwnQueues(options.queues, options.queues_from, options.newer_queues), options.shard)
        job_log = JobLog(log, jobs=settings.logging.jobs)
        order = QueueOrder.of(options.queues) if options.no_namespaces else expand_queues(options.queues, known)
        components = build_worker(settings, router, options, order, shard, identity, job_log, supervisor=supervisor)
        serve_flags(shard.name, components.flags)
        serve_leadership(components.cron.leadership)
        if options.health is not None and supervisor is None:
            _start_health_server(options.health, options.shard, components)
        waited = wait_for_redis(shard, components.lease, signals, partial(check_rights, settings, shard))
        if waited is not None:
            return waited
        replay_kept_pushes(default_client())
        status = Launcher(components, signals).run()
        components.events.summarize_foreign(process_ends=True)
        components.events.tracker.close()
    finally:
        logs.close_server_log()
    # A job may have closed stdout.
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    # A job that hangs in its thread must not keep the process alive: its job has been pushed back.
    os._exit(status)


def build_worker(
    settings: Settings,
    router: Router,
    options: WorkerOptions,
    order: QueueOrder,
    shard: Shard,
    identity: str,
    log: JobLog,
    *,
    supervisor: int | None,
) -> ProcessComponents:
    """Return the components of a process that serves the queues in ``order``; nothing runs yet."""
    events = ProcessEvents(shard.name, tracker_of(settings), shard.endpoint.user)
    dead_set, waits, loop = _dead_set_limits(settings.dead), timings.current(), EventLoop()
    states = StatusWriter(shard, events.status_write_failed)
    fetching, upkeep, beating = _open_clients(shard, "fetch", "upkeep", "lease")
    budget, decoded_limit = MemoryBudget(settings.size_limit.decoding_budget), settings.size_limit.decoded_limit
    absent, limits = _absent_keys(identity, waits), settings.process_limits
    fetcher = Fetcher(fetching, identity, order, options.slots, events, dead_set, decoded_limit, absent, limits, waits)
    cancellations = Cancellations(shard.client, absent, loop.cancel_named)
    runs = RunningJobs(fetcher.in_flight.running, cancellations)
    policies = open_policies(settings, events.tracker, shard, upkeep, identity, absent, waits)
    decoding = open_decoder(settings, runs, budget)
    suspects = SuspectRunner(shard.client, identity, options.slots, waits)
    threads, pool = WorkerThreads(fetcher), ChannelPool(shard.client, read_timeout_s=COMMAND_TIMEOUT_S)
    polled, watched = (open_shards(settings, role=f"{role}:{os.getpid()}") for role in ("poller", "worker"))
    together = GroupAdmission(pool, identity, fetcher, decoding, policies.admission, states)
    iterations = Iterations(shard.client, identity, runs, settings.max_iteration_runtime)
    parts = (threads, suspects, states, policies.admission, together, iterations)
    executor = _executor(settings, log, runs, decoding, *parts)
    poll_timing = PollTiming(upkeep, settings.poll_interval, absent, timings=waits)
    settler = _settler(settings, shard.client, identity, events, dead_set, poll_timing, states, waits)
    detector = FailureDetector(waits.lease_s, waits.heartbeat_period_s)
    interruptions = InterruptionLimit(settings.max_retries_after_interruption)
    record = _record(options, upkeep, identity, order, runs, absent, waits)
    return ProcessComponents(
        identity=identity,
        fetcher=fetcher,
        processor=Processor(fetcher, threads, executor, settler, log, runs, loop, events),
        lease=Lease(beating, identity, options.slots, detector, waits),
        record=record,
        metrics=SidekiqMetrics(upkeep, runs.class_metrics, settings.sidekiq_metrics, timings=waits),
        title=Title(shard.name, order.names, "busy"),
        poller=open_poller(settings, router, shard.name, polled, upkeep, poll_timing, events, states, dead_set, budget),
        cron=open_cron(settings, router, shard.name, upkeep, identity, lambda: record.quiet, waits),
        reaper=Reaper(upkeep, events.recovered, detector, dead_set, decoded_limit, interruptions, waits),
        refresh=partial(_call_each, policies.refresh, cancellations.refresh),
        maintenance=(*policies.maintenance, *_monitors(settings, upkeep, events)),
        flags=policies.flags,
        events=events,
        push_back=PushBack(shard.client, identity, fetcher.in_flight, events, interruptions),
        absent=absent,
        poll_interval_s=settings.poll_interval,
        timeout_s=options.timeout_s,
        supervisor=supervisor,
        shared_state=SharedState.from_environment(),
        unserved=_unserved_watch(settings, router, options, order, watched, in_group=supervisor is not None),
        timings=waits,
        connections=(fetching, upkeep, beating, pool, polled, watched, shard),
    )


def _start_health_server(address: HealthAddress, shard: str, components: ProcessComponents) -> None:
    """Answer health checks from now on. Raises ConfigurationError when the server cannot listen."""
    # Loaded here, because the HTTP server of the standard library costs memory that most processes do not need.
    server = import_module("framework.process.health_server")
    health = import_module("framework.process.worker_health")
    checks = health.WorkerHealth(shard, components.record, components.shared_state, components.timings)
    server.HealthServer(checks.answers, address).start()


def _call_each(*steps: Callable[[], None]) -> None:
    for step in steps:
        step()


def _open_clients(shard: Shard, *roles: str) -> "list[redis.Redis]":
    return [shard.open_client(role, read_timeout_s=COMMAND_TIMEOUT_S) for role in roles]


def _executor(
    settings: Settings,
    log: JobLog,
    runs: RunningJobs,
    decoding: PayloadDecoder,
    threads: WorkerThreads,
    suspects: SuspectRunner,
    states: StatusWriter,
    admission: AdmissionChain,
    together: GroupAdmission,
    iterations: Iterations,
) -> Executor:
    return Executor(
        middleware.server.compile(),
        log,
        runs,
        decoding,
        threads.ensure_fetching,
        suspects,
        StrictArgumentsCheck(settings.strict_arguments),
        states,
        settings.retired_workers,
        admission,
        UnknownClassDelays(settings.foreign_classes, settings.unknown_class_max_wait),
        together.admit,
        iterations=iterations,
    )


def _settler(
    settings: Settings,
    client: "redis.Redis",
    identity: str,
    events: ProcessEvents,
    dead_set: SetLimits,
    poll_timing: PollTiming,
    states: StatusWriter,
    waits: Timings,
) -> Settler:
    policy = RetryPolicy(settings.max_retries, keeps_business_failures=settings.dead.business)
    handlers, trimmed = events.handlers, events.trimmed
    return Settler(client, identity, handlers, policy, dead_set, trimmed, poll_timing.expect_retry, states, waits)


def _unserved_watch(
    settings: Settings, router: Router, options: WorkerOptions, order: QueueOrder, shards: Shards, *, in_group: bool
) -> UnservedWatch:
    """Return the watch for queues that this process does not serve. Opens no socket."""
    unserved = UnservedQueues(settings, router)
    wanted = unserved.locations - {QueueLocation(name, options.shard) for name in order.names}
    clients = {
        name: shards[name].open_client("unserved", read_timeout_s=PROCESS_DEADLINE_S)
        for name in {place.shard for place in wanted}
    }
    find = partial(unserved.find, clients, wanted)
    callbacks = UnservedCallbacks(unserved.log_unserved, unserved.log_served)
    return UnservedWatch(find if wanted else None, callbacks, in_group=in_group, timings=timings.current())


def _absent_keys(identity: str, waits: Timings) -> AbsentKeys:
    """Return the keys that a process without work, policies in use or operators' orders does not find."""
    names = (keys.CANCELLED, keys.FLAGS, keys.PAUSED, keys.PAUSED_CLASSES, keys.LIMITS, keys.LIMITS_WAITING, keys.RETRY)
    # The record task checks them; an answer must last until the next check has been made.
    return AbsentKeys((*names, keys.signals(identity), keys.working(identity)), 1.25 * waits.record_period_s)


def _record(
    options: WorkerOptions,
    client: "redis.Redis",
    identity: str,
    order: QueueOrder,
    runs: RunningJobs,
    absent: AbsentKeys,
    waits: Timings,
) -> ProcessRecord:
    return ProcessRecord(
        client,
        identity,
        order,
        options.slots,
        VERSION,
        runs,
        options.tag or default_tag(),
        options.labels,
        options.queues_from,
        absent,
        waits,
    )


def _monitors(settings: Settings, client: "redis.Redis", events: ProcessEvents) -> tuple[Callable[[], None], ...]:
    """Return the periodic reports: of jobs held for long, and of jobs of other applications."""
    return HeldJobsAlert(client, events.held_too_long, settings.held_alert_after).check, events.summarize_foreign


def _dead_set_limits(dead: DeadSettings) -> SetLimits:
    return SetLimits(dead.max_jobs, dead.timeout_days * 86_400.0, dead.business_max_jobs)
