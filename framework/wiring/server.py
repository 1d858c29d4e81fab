"""From settings to one worker process."""

import os
import sys
import time
from dataclasses import dataclass
from typing import Any

from redis.exceptions import RedisError

from framework.declare import catalog, registry
from framework.execute.event_loop import EventLoop
from framework.execute.execution import Executor
from framework.execute.job_log import JobLog
from framework.execute.processor import Processor
from framework.execute.runs import Runs
from framework.fetch.fetcher import Fetcher
from framework.fetch.identity import NONCE_VARIABLE, own_identity
from framework.fetch.queues import QueueOrder
from framework.fetch.reaper import Reaper, Reconciler
from framework.finish.retry import RetryPolicy
from framework.finish.settle import DeadSetLimits, Settler
from framework.process.events import ProcessEvents
from framework.process.heartbeat import Lease
from framework.process.launcher import Launcher, Parts
from framework.process.record import ProcessRecord
from framework.process.signals import STOP, SignalQueue
from framework.schedule.poller import Poller
from framework.settings.model import Settings
from framework.shard.shard import Shard
from framework.store.connect import COMMAND_TIMEOUT_S
from framework.telemetry import logs
from framework.version import VERSION
from framework.wiring import chains
from framework.wiring.connect import endpoint_of

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


def known_queues() -> list[str]:
    """Return every queue name that the registered workers can stand for: generated ones and declared overrides."""
    declarations = [worker.declaration() for worker in registry.workers()]
    return sorted({d.generated_queue for d in declarations} | {d.queue for d in declarations if d.queue})


def expanded(queues: tuple[tuple[str, int], ...]) -> QueueOrder:
    """Return the order for queues and namespaces: a namespace stands for itself and every known ``namespace:*``."""
    known = known_queues()
    return QueueOrder.of(
        [(name, weight) for given, weight in queues for name in catalog.expand_namespaces([given], known)]
    )


def serve(settings: Settings, service: Service, log_descriptor: int | None = None) -> int:
    """Run one worker process from this, the main thread, until it is told to stop; return its exit status.

    The log goes to ``log_descriptor``, or to stdout.
    """
    signals = SignalQueue()
    signals.install()
    supervised = NONCE_VARIABLE in os.environ
    identity = own_identity()
    log = logs.open_server_log(
        settings.logging.level,
        {"pid": os.getpid(), "worker_id": os.environ.get("FRAMEWORK_WORKER_ID", identity)},
        log_descriptor,
    )
    shard = Shard(service.shard, endpoint_of(settings, service.shard), role=f"worker:{os.getpid()}")
    try:
        waited = _wait_for_redis(shard, signals)
        if waited is not None:
            return waited
        job_log = JobLog(log, shard.name, jobs=settings.logging.jobs)
        parts = assemble(settings, service, shard, identity, job_log, supervised=supervised)
        status = Launcher(parts, signals).run()
    finally:
        logs.close_server_log()
    sys.stdout.flush()
    # A job that hangs in its thread must not keep the process: what it held has been given back.
    os._exit(status)


def assemble(
    settings: Settings, service: Service, shard: Shard, identity: str, log: JobLog, *, supervised: bool
) -> Parts:
    """Join the parts of one process; nothing runs yet."""
    events = ProcessEvents(shard.name)
    runs = Runs()
    order = expanded(service.queues)
    limit = settings.size_limit.decompressed_limit
    executor = Executor(chains.server.compiled(), log, EventLoop(), runs, limit)
    dead_set = DeadSetLimits(settings.dead.max_jobs, settings.dead.timeout_days * 86_400.0)
    link = _Link()
    fetcher = Fetcher(shard, identity, order, service.slots, link, events)
    policy = RetryPolicy(settings.max_retries)
    settler = Settler(shard.client, identity, fetcher, events.handlers, policy, dead_set, events.trimmed)
    processor = link.processor = Processor(service.slots, executor, settler, log, runs, events)
    upkeep = shard.open_client("upkeep", read_timeout_s=COMMAND_TIMEOUT_S)
    return Parts(
        identity=identity,
        client=shard.client,
        fetcher=fetcher,
        processor=processor,
        lease=Lease(shard.open_client("lease", read_timeout_s=COMMAND_TIMEOUT_S), identity),
        record=ProcessRecord(upkeep, identity, order, service.slots, VERSION, runs),
        poller=Poller(upkeep, events, middleware=chains.client.compiled(), decompressed_limit=limit),
        reaper=Reaper(upkeep, events.recovered),
        reconciler=Reconciler(upkeep, identity, fetcher.custody),
        events=events,
        poll_interval_s=settings.poll_interval,
        timeout_s=service.timeout_s,
        supervised=supervised,
    )


class _Link:
    """Fetcher and processor need each other: the fetcher dispatches, the processor acknowledges."""

    processor: Processor

    def __call__(self, unit: Any, held: int) -> None:
        self.processor.dispatch(unit, held)


def _wait_for_redis(shard: Shard, signals: SignalQueue) -> int | None:
    """Wait until the shard answers; return an exit status when it did not in time or when told to stop."""
    log = logs.logger(shard=shard.name)
    deadline = time.monotonic() + BOOT_PATIENCE_S
    said = False
    while True:
        try:
            shard.client.ping()  # pyright: ignore[reportUnknownMemberType]
        except (RedisError, OSError) as error:
            if not said:
                log.warning("waiting for Redis", event_name="boot.waiting", address=shard.endpoint.shown, error=error)
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
        if any(number in STOP for number in signals.wait(0.5)):
            return 0
