"""The framework's classes whose jobs move otherwise than queue, run, end; and calls that are no jobs."""

import itertools
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NoReturn

import body
from framework_jobs import NumberedWorker, PlainWorker

from framework import ApplicationWorker, DeferOnHealth, health, limiter, pause
from framework.batches import Batch
from framework.cron_expression import CronExpression
from framework.declare.port import current
from framework.features.cron.entries import CronEntry
from framework.features.cron.push import TICK_JOBS
from framework.features.cron.settings import CronSettings
from framework.features.cron.store import CronStates

TENANTS = 500


class Busy:
    """A health indicator that stops every job."""

    def evaluate(self, _question: health.Question) -> health.Signal:
        return health.Stop("always")


class Always:
    """A pause strategy that never ends its pause."""

    def should_pause(self) -> bool:
        return True


health.register("busy", Busy())
pause.register("always", Always)


class FailingWorker(NumberedWorker, abstract=True):
    """It counts itself, and fails."""

    def perform(self, _number: int) -> NoReturn:
        body.noop()
        raise ValueError("always")


class DyingWorker(FailingWorker):
    retry = 0


class RetriedWorker(FailingWorker):
    pass


class DeferredWorker(NumberedWorker):
    defer_on_health = DeferOnHealth(indicators=("busy",), delay=timedelta(minutes=30))


class PausedWorker(NumberedWorker):
    pause_control = "always"


class FairWorker(NumberedWorker):
    queue = None
    fair_by = staticmethod(lambda args: args[0] % TENANTS)


WORKERS: dict[str, type[ApplicationWorker]] = {
    "dying": DyingWorker,
    "retried": RetriedWorker,
    "deferred": DeferredWorker,
    "paused": PausedWorker,
    "fair": FairWorker,
}

_LIMITERS = {
    "concurrent": limiter.concurrent("bench_concurrent", 1_000_000),
    "bucket": limiter.bucket("bench_bucket", 100_000_000, "hour"),
    "window": limiter.window("bench_window", 100_000_000, "hour"),
    "leaky": limiter.leaky("bench_leaky", 100_000_000, 3_600),
}


def _push_batch() -> None:
    with Batch().jobs():
        PlainWorker.perform_async(1)


def _cron_tick() -> Callable[[], object]:
    """Return a function that settles the next of some old ticks, as the leader does."""
    client: Any = current()
    entry = CronEntry("bench", PlainWorker.declaration(), CronExpression("* * * * *", "UTC"), (1,))
    jobs = TICK_JOBS.load()(client)
    states = CronStates(client.shards["main"].client, CronSettings.of(client.settings).cron.application)
    ticks, state = itertools.count(60, 60), b""

    def tick() -> None:
        nonlocal state
        at = next(ticks)
        job = jobs.make(entry, at)
        if job is not None:
            state = states.push(entry.name, state, at, entry.fingerprint, job, entry.overlap).state

    return tick


def caller(kind: str) -> Callable[[], object]:
    """Return the function that does this once."""
    if kind == "batch":
        return _push_batch
    if kind == "tick":
        return _cron_tick()
    one = _LIMITERS[kind]

    def within() -> None:
        with one.within():
            pass

    return within
