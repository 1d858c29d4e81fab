"""The job classes of the injected faults, copied to the site as the module ``jobs``.

All are urgent, so that their jobs are late after ten seconds. What each does is an argument, or a key of the Redis that PROOF_URL
names.
"""

import os
import signal
import time
from datetime import timedelta

from redis import Redis

from framework import ApplicationWorker, CronWorker, DeferOnHealth
from framework.health import HealthIndicator, Normal, Stop, register

switches = Redis.from_url(os.environ["PROOF_URL"])


class Urgent(ApplicationWorker, abstract=True):
    feature_category = "not_owned"
    urgency = "high"


class QuickWorker(Urgent):
    queue = "quick"

    def perform(self, seconds: float = 0.01) -> None:
        time.sleep(seconds)


class SlowWorker(Urgent):
    queue = "quick"

    def perform(self, seconds: float) -> None:
        time.sleep(seconds)


class LimitedWorker(Urgent):
    queue = "quick"
    concurrency_limit = 1

    def perform(self) -> None:
        time.sleep(0.5)


class UniqueWorker(Urgent):
    queue = "quick"
    idempotent = True

    def perform(self, number: int) -> None:
        time.sleep(0.01)


class FailWorker(Urgent):
    queue = "quick"

    def perform(self) -> None:
        if switches.get("deployed"):
            raise KeyError("column gone")


class NumberWorker(Urgent):
    queue = "quick"

    def perform(self, number: int) -> None:
        pass


class PoisonWorker(Urgent):
    queue = "quick"

    def perform(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Switch(HealthIndicator):
    def evaluate(self, question):
        return Stop("9 long transactions") if switches.get("unhealthy") else Normal("idle")


register("switch", Switch)


class DatabaseWorker(Urgent):
    queue = "quick"
    defer_on_health = DeferOnHealth(indicators=("switch",), delay=timedelta(seconds=30))

    def perform(self) -> None:
        pass


class TickWorker(CronWorker):
    feature_category = "not_owned"
    queue = "quick"
    cron = "* * * * *"

    def perform(self) -> None:
        pass


class OtherWorker(Urgent):
    queue = "other"

    def perform(self) -> None:
        pass
