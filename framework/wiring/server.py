"""From settings to one worker process."""

import os
import sys
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

from redis.exceptions import RedisError

from framework.declare import catalog, registry
from framework.execute.event_loop import EventLoop
from framework.execute.execution import Executor
from framework.execute.job_log import JobLog
from framework.execute.processor import Processor
from framework.execute.runs import Runs
from framework.fetch.blame import Announcer
from framework.fetch.call import LEASE_MS
from framework.fetch.custody import Custody
from framework.fetch.fetcher import Fetcher
from framework.fetch.grace import Grace
from framework.fetch.identity import own_identity
from framework.fetch.queues import QueueOrder
from framework.fetch.reaper import Keep, Reaper, Reconciler
from framework.finish.retry import RetryPolicy
from framework.finish.settle import DeadSetLimits, Settler
from framework.finish.states import States
from framework.process.board import Board
from framework.process.events import ProcessEvents
from framework.process.heartbeat import LEASE_PERIOD_S, Lease
from framework.process.launcher import EXIT_DIED, Launcher, Parts
from framework.process.parked import ParkedWatch
from framework.process.record import ProcessRecord
from framework.process.signals import DRAIN, STOP, STOP_NOW, SignalQueue
from framework.process.title import Title
from framework.push.strictness import Strictness
from framework.route.router import Router
from framework.schedule.rhythm import Rhythm
from framework.settings.model import Settings
from framework.settings.suggest import nearest
from framework.shard.shard import Shard
from framework.store.connect import COMMAND_TIMEOUT_S
from framework.telemetry import logs
from framework.version import VERSION
from framework.wiring import chains
from framework.wiring.connect import endpoint_of, open_router, tracker_of
from framework.wiring.policies import open_policies
from framework.wiring.schedule import open_poller
from framework.wiring.stale_queues import warn_of_stale_queues

EXIT_UNREACHABLE = 75
BOOT_PATIENCE_S = 60.0
"""How long a process waits for its Redis at boot before it gives up with status 75 (EX_TEMPFAIL)."""


@dataclass(frozen=True, slots=True)
class Service:
    """What one process is asked to do."""

    shard: str
    queues: tuple[tuple[str, int], ...]
    slots: int
    timeout_s: float
    exact: bool = False
    """No name stands for its namespace."""


def known_queues(router: Router) -> set[str]:
    """Return every queue that jobs of the registered workers may wait in."""
    return {queue for worker in registry.workers() for queue in router.queues_of(worker.declaration())}


def expanded(queues: tuple[tuple[str, int], ...], known: Collection[str]) -> QueueOrder:
    """Return the order for queues and namespaces: a namespace stands for itself and every known ``namespace:*``.

    A queue that is also given by its own name has the place and the weight given with that.
    """
    given = {name for name, _ in queues}
    return QueueOrder.of(
        [
            (name, weight)
            for own, weight in queues
            for name in catalog.expand_namespaces([own], known)
            if name == own or name not in given
        ]
    )


def warn_of_the_service(settings: Settings, service: Service, known: Collection[str]) -> None:
    """Warn of what would serve nobody in silence: no worker class at all, or a queue that is nearly called like one of ours,
    to be served or limited.

    A queue that is like none may be another producer's; what config/queues.yml lists was generated.
    """
    if not registry.workers():
        logs.logger().warning(
            "no worker class is loaded, so every job would fail: name the module of the workers with -r or the setting "
            "workers_module",
            event_name="boot.no_workers",
        )
    names = {*known, *(name.partition(":")[0] for name in known if ":" in name)}
    listed = {name for name, _ in settings.queues}
    for name, _ in service.queues:
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


def serve(
    settings: Settings, service: Service, log_descriptor: int | None = None, supervisor: int | None = None
) -> int:
    """Run one worker process from this, the main thread, until it is told to stop; return its exit status.

    The log goes to ``log_descriptor``, or to stdout. ``supervisor`` is the process id of whoever looks after us.
    """
    signals = SignalQueue()
    signals.install()
    identity = own_identity()
    log = logs.open_server_log(
        settings.logging.level,
        {
            "pid": os.getpid(),
            "worker_id": os.environ.get("FRAMEWORK_WORKER_ID", identity),
            "shard": service.shard,
        },
        log_descriptor,
    )
    shard = Shard(service.shard, endpoint_of(settings, service.shard), role=f"worker:{os.getpid()}")
    try:
        warn_of_stale_queues(settings)
        known = known_queues(open_router(settings))
        warn_of_the_service(settings, service, known)
        job_log = JobLog(log, jobs=settings.logging.jobs)
        order = QueueOrder.of(service.queues) if service.exact else expanded(service.queues, known)
        parts = assemble(settings, service, order, shard, identity, job_log, supervisor=supervisor)
        waited = _wait_for_redis(shard, parts.lease, signals)
        if waited is not None:
            return waited
        status = Launcher(parts, signals).run()
        parts.events.tracker.close()
    finally:
        logs.close_server_log()
    with suppress(OSError, ValueError):  # a job may have closed it
        sys.stdout.flush()
    # A job that hangs in its thread must not keep the process: what it held has been given back.
    os._exit(status)


def assemble(
    settings: Settings,
    service: Service,
    order: QueueOrder,
    shard: Shard,
    identity: str,
    log: JobLog,
    *,
    supervisor: int | None,
) -> Parts:
    """Join the parts of one process, which serves the queues in ``order``; nothing runs yet."""
    events = ProcessEvents(shard.name, tracker_of(settings), shard.endpoint.user)
    dead_set = DeadSetLimits(settings.dead.max_jobs, settings.dead.timeout_days * 86_400.0)
    keep = Keep(dead_set.max_jobs, dead_set.timeout_s)
    states = States(shard, events.state_refused)
    custody = Custody(service.slots)
    fetching = shard.open_client("fetch", read_timeout_s=COMMAND_TIMEOUT_S)
    reconciler = Reconciler(fetching, identity, custody, events.recovered, keep)
    fetcher = Fetcher(fetching, identity, order, custody, events, reconciler, settings.process_limits)
    runs = Runs(custody.running)
    upkeep = shard.open_client("upkeep", read_timeout_s=COMMAND_TIMEOUT_S)
    policies = open_policies(settings, events.tracker, shard, upkeep, identity)
    executor = Executor(
        chains.server.compiled(),
        log,
        runs,
        settings.size_limit.decompressed_limit,
        fetcher.relay,
        Announcer(shard.client, identity, service.slots),
        Strictness(settings.strict_arguments),
        states,
        settings.retired_workers,
        policies.gates,
    )
    policy = RetryPolicy(settings.max_retries)
    rhythm = Rhythm(upkeep, settings.poll_interval)
    settler = Settler(
        shard.client, identity, fetcher, events.handlers, policy, dead_set, events.trimmed, rhythm.expect_retry, states
    )
    processor = Processor(fetcher, executor, settler, log, runs, EventLoop(), events)
    grace = Grace(LEASE_MS / 1000, LEASE_PERIOD_S)
    return Parts(
        identity=identity,
        client=shard.client,
        fetcher=fetcher,
        processor=processor,
        lease=Lease(shard.open_client("lease", read_timeout_s=COMMAND_TIMEOUT_S), identity, service.slots, grace),
        record=ProcessRecord(upkeep, identity, order, service.slots, VERSION, runs),
        title=Title(shard.name, order.names, "busy"),
        poller=open_poller(settings, shard.name, upkeep, rhythm, events, states, dead_set),
        reaper=Reaper(upkeep, events.recovered, grace, keep),
        reconciler=reconciler,
        learn=policies.learn,
        upkeep=(*policies.upkeep, ParkedWatch(upkeep, events, settings.parked_alert_after).look),
        events=events,
        poll_interval_s=settings.poll_interval,
        timeout_s=service.timeout_s,
        supervisor=supervisor,
        board=Board.inherited(),
    )


def _wait_for_redis(shard: Shard, lease: Lease, signals: SignalQueue) -> int | None:
    """Wait for the first beat of ``lease``; return an exit status when it did not come in time or when told to stop.

    Nothing less will do: a server that answers may load, be a replica, or be gone a moment later. A lease that somebody holds
    already is a copy's of us, with whom we would share a working list: whoever started us starts us with another nonce.
    """
    log = logs.logger()
    deadline = time.monotonic() + BOOT_PATIENCE_S
    said = asked = False
    while True:
        try:
            if not asked and lease.taken():
                log.error("another process has this identity; this one ends", event_name="identity.collision")
                return EXIT_DIED
            asked = True  # from here on the lease may be ours, whatever became of the reply
            lease.beat()
        except (RedisError, OSError) as error:
            lease.client.connection_pool.disconnect()
            if not said:
                address, user = shard.endpoint.shown, shard.endpoint.user
                log.warning("waiting for Redis", event_name="boot.waiting", address=address, user=user, error=error)
                said = True
            if time.monotonic() >= deadline:
                log.error(
                    "Redis cannot be reached: start the development store with `scripts/store start`, or set REDIS_URL or "
                    "config/redis.yml to a Redis that runs",
                    event_name="boot.unreachable",
                    address=shard.endpoint.shown,
                )
                return EXIT_UNREACHABLE
        else:
            return None
        if any(number in (*STOP, STOP_NOW, DRAIN) for number in signals.wait(0.5)):
            return 0
