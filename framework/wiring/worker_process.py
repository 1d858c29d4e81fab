"""From settings to one worker process."""

import os
import sys
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import redis
from redis.exceptions import RedisError

from framework import middleware
from framework.command_line import command
from framework.declare import queue_facts, registry
from framework.errors import ConfigurationError, ConfigurationProblem
from framework.execute.cancellation import Cancellations
from framework.execute.decoding import PayloadDecoder
from framework.execute.event_loop import EventLoop
from framework.execute.execution import Executor
from framework.execute.job_log import JobLog
from framework.execute.processor import Processor
from framework.execute.stats import RunningJobs
from framework.execute.unknown import UnknownClassDelays
from framework.exit_codes import EXIT_FAILED, EXIT_UNREACHABLE
from framework.fetch.call import LEASE_MS
from framework.fetch.failure_detector import FailureDetector
from framework.fetch.fetcher import Fetcher
from framework.fetch.identity import own_identity
from framework.fetch.in_flight import InFlight
from framework.fetch.interruptions import InterruptionLimit, SetLimits
from framework.fetch.queues import QueueOrder
from framework.fetch.reaper import Reaper, Reconciler
from framework.fetch.suspects import SuspectRunner
from framework.finish.retry import RetryPolicy
from framework.finish.settle import DeadSetLimits, Settler
from framework.finish.status_writer import StatusWriter
from framework.messages import nearest
from framework.process.components import ProcessComponents
from framework.process.descriptors import check_worker
from framework.process.events import ProcessEvents
from framework.process.heartbeat import LEASE_PERIOD_S, Lease
from framework.process.held_jobs import HeldJobsAlert
from framework.process.launcher import Launcher
from framework.process.metrics import SidekiqMetrics
from framework.process.push_back import PushBack
from framework.process.record import ProcessRecord, default_tag
from framework.process.shared_state import SharedState
from framework.process.signals import DRAIN, STOP, STOP_NOW, SignalQueue
from framework.process.title import Title
from framework.process.unserved import UnservedWatch
from framework.push.strict_arguments import StrictArgumentsCheck
from framework.route.router import Router
from framework.schedule.poll_timing import PollTiming
from framework.settings.model import DeadSettings, Settings
from framework.shard.redis_errors import advice_for, wrong_setting
from framework.shard.shard import Shard
from framework.store.connect import COMMAND_TIMEOUT_S
from framework.store.modes import UnsupportedServerError
from framework.store.rights import MissingRights, missing_worker_rights
from framework.store.tls import tls_advice
from framework.telemetry import logs
from framework.version import VERSION
from framework.wire.memory_budget import MemoryBudget
from framework.wiring.client import open_router, open_shards, tracker_of
from framework.wiring.endpoints import endpoint_of
from framework.wiring.own_queues import OwnQueues, warn_own_queues
from framework.wiring.policies import open_policies
from framework.wiring.queue_checks import warn_stale_queues
from framework.wiring.schedule import open_poller
from framework.wiring.splits import warn_splits
from framework.wiring.unserved import open_unserved_watch
from framework.wiring.variables import warn_unknown_variables

BOOT_PATIENCE_S = 60.0
"""How long a process waits for its Redis at boot before it gives up with status 75 (EX_TEMPFAIL)."""


_NO_REDIS = "start the development store with `{}`, or set REDIS_URL or {} to a Redis that runs"


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """What one process is asked to do."""

    shard: str
    queues: tuple[tuple[str, int], ...]
    slots: int
    timeout_s: float
    no_namespaces: bool = False
    """No name stands for its namespace."""
    tag: str | None = None
    labels: tuple[str, ...] = ()
    queues_from: str = "-q"
    """What named the queues: an option, a file, the environment, or the loaded classes."""
    newer_queues: tuple[str, ...] = ()
    """Those of ``queues`` that the generated file lacks."""


def known_queues(router: Router) -> set[str]:
    """Return every queue that jobs of the registered workers may wait in."""
    return {queue for worker in registry.workers() for queue in router.queues_of(worker.declaration())}


def expand_queues(queues: tuple[tuple[str, int], ...], known: Collection[str]) -> QueueOrder:
    """Return the order for queues and namespaces: a namespace stands for itself and every known ``namespace:*``.

    A queue that is also given by its own name has the place and the weight given with that.
    """
    given = {name for name, _ in queues}
    return QueueOrder.of(
        [
            (name, weight)
            for own, weight in queues
            for name in queue_facts.expand_namespaces([own], known)
            if name == own or name not in given
        ]
    )


def warn_unknown_queues(settings: Settings, options: WorkerOptions, known: Collection[str]) -> None:
    """Warn of what would serve nobody in silence: no worker class at all, or a queue that is nearly called like one of ours,
    to be served or limited.

    A queue that is like none may be another producer's; what config/queues.yml lists was generated.
    """
    if not registry.workers():
        logs.logger().warning(
            "no worker class is loaded, so no job can run here: name the module of the workers with -r or the setting "
            "workers_module",
            event_name="boot.no_workers",
        )
    names = {*known, *(name.partition(":")[0] for name in known if ":" in name)}
    listed = {name for name, _ in settings.queues}
    for name, _ in options.queues:
        near = nearest(name, sorted(names), cutoff=0.8) if name not in names | listed else None
        if near is not None:
            logs.logger().warning(
                f"no worker's jobs go to the queue {name!r} (did you mean {near!r}?); it is served, as other producers may "
                "use it",
                event_name="boot.unknown_queue",
                queue=name,
                nearest=near,
            )
    for setting, limits in (("limits", settings.limits), ("process_limits", settings.process_limits)):
        for name in limits:
            near = nearest(name, sorted(known), cutoff=0.8) if name not in {*known, *listed} else None
            if near is not None:
                logs.logger().warning(
                    f"no worker's jobs go to the queue {name!r} of the setting {setting} (did you mean {near!r}?): as it "
                    "stands it limits nothing of ours",
                    event_name="boot.unknown_queue",
                    queue=name,
                    nearest=near,
                )


def run_worker(
    settings: Settings, options: WorkerOptions, log_descriptor: int | None = None, supervisor: int | None = None
) -> int:
    """Run one worker process from this, the main thread, until it is told to stop; return its exit status.

    The log goes to ``log_descriptor``, or to stdout. ``supervisor`` is the process id of whoever looks after us.
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
    )
    shard = Shard(options.shard, endpoint_of(settings, options.shard), role=f"worker:{os.getpid()}")
    try:
        warn_unknown_variables(settings)
        warn_stale_queues(settings)
        router = open_router(settings)
        known = known_queues(router)
        warn_splits(settings, router)
        warn_unknown_queues(settings, options, known)
        warn_own_queues(OwnQueues(options.queues, options.queues_from, options.newer_queues), options.shard)
        job_log = JobLog(log, jobs=settings.logging.jobs)
        order = QueueOrder.of(options.queues) if options.no_namespaces else expand_queues(options.queues, known)
        parts = build_worker(settings, options, order, shard, identity, job_log, supervisor=supervisor)
        waited = _wait_for_redis(shard, parts.lease, signals, partial(_check_rights, settings, shard))
        if waited is not None:
            return waited
        status = Launcher(parts, signals).run()
        parts.events.summarize_foreign(process_ends=True)
        parts.events.tracker.close()
    finally:
        logs.close_server_log()
    with suppress(OSError, ValueError):  # a job may have closed it
        sys.stdout.flush()
    # A job that hangs in its thread must not keep the process: what it held has been given back.
    os._exit(status)


def build_worker(
    settings: Settings,
    options: WorkerOptions,
    order: QueueOrder,
    shard: Shard,
    identity: str,
    log: JobLog,
    *,
    supervisor: int | None,
) -> ProcessComponents:
    """Join the parts of one process, which serves the queues in ``order``; nothing runs yet."""
    events = ProcessEvents(shard.name, tracker_of(settings), shard.endpoint.user)
    dead_set, keep = _dead_set_limits(settings.dead)
    states, custody = StatusWriter(shard, events.status_write_failed), InFlight(options.slots)
    fetching, upkeep = (shard.open_client(role, read_timeout_s=COMMAND_TIMEOUT_S) for role in ("fetch", "upkeep"))
    budget, decoded_limit = MemoryBudget(settings.size_limit.decoding_budget), settings.size_limit.decoded_limit
    reconciler = Reconciler(fetching, identity, custody, events.recovered, keep, decoded_limit)
    fetcher = Fetcher(fetching, identity, order, custody, events, reconciler, settings.process_limits)
    runs = RunningJobs(custody.running, cancellations := Cancellations(shard.client))
    policies = open_policies(settings, events.tracker, shard, upkeep, identity)
    executor = Executor(
        middleware.server.compile(),
        log,
        runs,
        PayloadDecoder(runs, settings.size_limit.decompressed_limit, decoded_limit, budget),
        fetcher.ensure_fetching,
        SuspectRunner(shard.client, identity, options.slots),
        StrictArgumentsCheck(settings.strict_arguments),
        states,
        settings.retired_workers,
        policies.admission,
        UnknownClassDelays(settings.foreign_classes, settings.unknown_class_max_wait),
    )
    policy = RetryPolicy(settings.max_retries, keeps_business_failures=settings.dead.business)
    rhythm = PollTiming(upkeep, settings.poll_interval)
    settler = Settler(
        shard.client, identity, fetcher, events.handlers, policy, dead_set, events.trimmed, rhythm.expect_retry, states
    )
    grace, limit = (
        FailureDetector(LEASE_MS / 1000, LEASE_PERIOD_S),
        InterruptionLimit(settings.max_retries_after_interruption),
    )
    return ProcessComponents(
        identity=identity,
        fetcher=fetcher,
        processor=Processor(fetcher, executor, settler, log, runs, EventLoop(), events),
        lease=Lease(shard.open_client("lease", read_timeout_s=COMMAND_TIMEOUT_S), identity, options.slots, grace),
        record=_record(options, upkeep, identity, order, runs),
        metrics=SidekiqMetrics(upkeep, runs.class_metrics, settings.sidekiq_metrics),
        title=Title(shard.name, order.names, "busy"),
        poller=open_poller(settings, shard.name, upkeep, rhythm, events, states, dead_set, budget),
        reaper=Reaper(upkeep, events.recovered, grace, keep, decoded_limit, limit),
        reconciler=reconciler,
        refresh=policies.refresh,
        maintenance=(*policies.maintenance, *_monitors(settings, upkeep, events), cancellations.refresh),
        events=events,
        push_back=PushBack(shard.client, identity, custody, events, limit),
        poll_interval_s=settings.poll_interval,
        timeout_s=options.timeout_s,
        supervisor=supervisor,
        shared_state=SharedState.from_environment(),
        unserved=_unserved_watch(settings, options, order, in_group=supervisor is not None),
    )


def _unserved_watch(settings: Settings, options: WorkerOptions, order: QueueOrder, *, in_group: bool) -> UnservedWatch:
    shards = open_shards(settings, role=f"worker:{os.getpid()}")
    return open_unserved_watch(settings, open_router(settings), order, shards, options.shard, in_group=in_group)


def _record(
    options: WorkerOptions, client: "redis.Redis", identity: str, order: QueueOrder, runs: RunningJobs
) -> ProcessRecord:
    tag = options.tag or default_tag()
    named_by = options.queues_from
    return ProcessRecord(client, identity, order, options.slots, VERSION, runs, tag, options.labels, named_by)


def _monitors(settings: Settings, client: "redis.Redis", events: ProcessEvents) -> tuple[Callable[[], None], ...]:
    """Return what is told now and then: jobs that are parked for long, and jobs of other applications."""
    return HeldJobsAlert(client, events, settings.held_alert_after).check, events.summarize_foreign


def _dead_set_limits(dead: DeadSettings) -> tuple[DeadSetLimits, SetLimits]:
    limits = DeadSetLimits(dead.max_jobs, dead.timeout_days * 86_400.0, dead.business_max_jobs)
    return limits, SetLimits(limits.max_jobs, limits.timeout_s)


def _wait_for_redis(shard: Shard, lease: Lease, signals: SignalQueue, check_rights: Callable[[], None]) -> int | None:
    """Wait for the first beat of ``lease``; return an exit status when it did not come in time or when told to stop.

    Nothing less will do: a server that answers may load, be a replica, or be gone a moment later. A lease that somebody holds
    already is a copy's of us, with whom we would share a working list: whoever started us starts us with another nonce.

    ``check_rights`` is called before the first beat, as soon as Redis answers; an error of another kind than Redis's ends the boot.
    """
    log = logs.logger()
    deadline = time.monotonic() + BOOT_PATIENCE_S
    said = asked = False
    while True:
        try:
            if not asked:
                check_rights()
            if not asked and lease.is_held():
                log.error("another process has this identity; this one ends", event_name="identity.collision")
                return EXIT_FAILED
            asked = True  # from here on the lease may be ours, whatever became of the reply
            lease.renew()
        except (RedisError, OSError) as error:
            lease.client.connection_pool.disconnect()
            if isinstance(error, UnsupportedServerError):
                raise _misconfigured(shard, "url", error) from None
            if not said:
                _log_waiting(shard, error)
                said = True
            if time.monotonic() >= deadline:
                return _unreachable(shard, error)
        else:
            return None
        if any(number in (*STOP, STOP_NOW, DRAIN) for number in signals.wait(0.5)):
            return 0


def _log_waiting(shard: Shard, error: RedisError | OSError) -> None:
    advice = _advice(shard, error)
    logs.logger().warning(
        f"waiting for Redis: {advice}" if advice else "waiting for Redis",
        event_name="boot.waiting",
        address=shard.endpoint.shown,
        user=shard.endpoint.user,
        error=error,
    )


def _unreachable(shard: Shard, error: RedisError | OSError) -> int:
    """Tell why the wait was in vain and return the exit status; raises ConfigurationError where a setting is the reason."""
    setting = wrong_setting(error)
    if setting is not None:
        raise _misconfigured(shard, setting, error) from None
    advice = _advice(shard, error) or _NO_REDIS.format(command("store start"), shard.endpoint.source)
    logs.logger().error(
        f"Redis cannot be reached: {advice}", event_name="boot.unreachable", address=shard.endpoint.shown
    )
    return EXIT_UNREACHABLE


def _advice(shard: Shard, error: RedisError | OSError) -> str | None:
    return advice_for(error, shard.endpoint.source) if isinstance(error, RedisError) else tls_advice(error)


def _misconfigured(shard: Shard, setting: str, error: RedisError | OSError) -> ConfigurationError:
    """Return what ends a process whose Redis answers, but is none for us or takes us for none of its users."""
    endpoint = shard.endpoint
    advice = _advice(shard, error)
    message = f"{endpoint.shown}: {error}; {advice}" if advice else f"{endpoint.shown}: {error}"
    logs.logger().error(
        "this Redis cannot be used as it is configured; the process ends",
        event_name="boot.misconfigured",
        address=endpoint.shown,
        user=endpoint.user,
        error=error,
    )
    return ConfigurationError([ConfigurationProblem(endpoint.source, f"shards.{shard.name}.{setting}", message)])


def _check_rights(settings: Settings, shard: Shard) -> None:
    """Refuse to start without a right that some job would need; raises ConfigurationError, and redis errors."""
    refused = missing_worker_rights(shard.client)
    log, user = logs.logger(), shard.endpoint.user
    if refused.optional:
        log.debug(
            "Redis refuses commands that are not needed", event_name="boot.optional_rights", commands=refused.optional
        )
    if refused.commands or refused.keys:
        log.error(
            "this user may not do what a worker has to; the process ends",
            event_name="boot.rights_refused",
            user=user,
            commands=refused.commands,
            keys=refused.keys,
        )
        raise ConfigurationError([_missing_rights(settings, shard, refused)])


def _missing_rights(settings: Settings, shard: Shard, refused: MissingRights) -> ConfigurationProblem:
    user = shard.endpoint.user
    lacking = [f"the command{'s' * (len(refused.commands) > 1)} {', '.join(refused.commands)}"] * bool(refused.commands)
    lacking += [f"the key{'s' * (len(refused.keys) > 1)} {', '.join(refused.keys)}"] * bool(refused.keys)
    return ConfigurationProblem(
        settings.config_file_label("redis.yml"),
        f"shards.{shard.name}.username",
        f"the ACL of {shard.endpoint.shown} refuses {' and '.join(lacking)} to the user {user!r}. Grant what is missing with `ACL "
        f"SETUSER {user} {refused.rules}`, or all that a worker needs: `{command(f'acl worker --user {user}')}` prints it",
    )
