"""Jobs of the campaign that makes every alert fire."""

import os
import signal
import time
from datetime import timedelta

from framework import ApplicationWorker, CronWorker, Deduplicate


class AlertJob(ApplicationWorker, abstract=True):
    feature_category = "not_owned"


class SteadyWorker(AlertJob):
    queue = "steady"
    urgency = "high"

    def perform(self) -> None: ...


class PausedWorker(AlertJob):
    queue = "paused"

    def perform(self) -> None: ...


class SlowWorker(AlertJob):
    queue = "slow"
    urgency = "high"

    def perform(self, seconds: float) -> None:
        time.sleep(seconds)


class LateWorker(AlertJob):
    queue = "late"
    urgency = "high"

    def perform(self) -> None:
        time.sleep(0.5)


class FailWorker(AlertJob):
    queue = "failing"
    retry = 0

    def perform(self) -> None:
        raise ValueError("the fault of the campaign")


class HeldWorker(AlertJob):
    queue = "held"
    concurrency_limit = 1

    def perform(self, seconds: float) -> None:
        time.sleep(seconds)


class SkippedWorker(AlertJob):
    queue = "skipped"

    def perform(self) -> None: ...


class OrphanWorker(AlertJob):
    """No process serves its queue."""

    queue = "orphan"
    urgency = "high"

    def perform(self) -> None: ...


class PushWorker(AlertJob):
    queue = "steady"

    def perform(self) -> None:
        OrphanWorker.perform_async()


class LockedWorker(AlertJob):
    """No process serves its queue."""

    queue = "locked"
    idempotent = True
    deduplicate = Deduplicate("until_executed", ttl=timedelta(hours=1))

    def perform(self) -> None: ...


class PushLockedWorker(AlertJob):
    queue = "steady"

    def perform(self) -> None:
        LockedWorker.perform_async()


class LongWorker(AlertJob):
    queue = "long"

    def perform(self, seconds: float) -> None:
        time.sleep(seconds)


class PoisonWorker(AlertJob):
    queue = "poison"
    max_retries_after_interruption = 1

    def perform(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class HungryWorker(AlertJob):
    queue = "hungry"

    def perform(self, megabytes: int) -> None:
        kept = b"x" * (megabytes * 1_000_000)
        time.sleep(45)
        del kept


class MinuteWorker(CronWorker, AlertJob):
    queue = "cron"
    cron = "* * * * *"

    def perform(self) -> None: ...


class KeptWorker(AlertJob):
    queue = "steady"
    shard = "second"

    def perform(self) -> None: ...
