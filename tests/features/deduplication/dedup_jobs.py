"""The job classes of test_kills.py, copied to the site as the module ``jobs``."""

import random
import time
from datetime import timedelta

from framework import ApplicationWorker, Deduplicate
from framework.features.deduplication import left_locks

# The leader looks for left locks all the time.
left_locks.PERIOD_S, left_locks._REST = 0.2, 1.0

TTL = timedelta(minutes=1)  # longer than the test: no lock expires during it


class Base(ApplicationWorker, abstract=True):
    feature_category = "not_owned"
    queue = "default"
    idempotent = True
    max_retries_after_interruption = -1

    @classmethod
    def retry_in(cls, count, error, job):
        return 0.05

    def perform(self, number: int) -> None:
        time.sleep(random.random() * 0.02)
        if random.random() < 0.1:
            raise ValueError("on purpose")


class ExecutingWorker(Base):
    """Most jobs are quick, so that many are admitted by one call and a kill finds some that have not started."""

    deduplicate = Deduplicate("until_executing", ttl=TTL)

    def perform(self, number: int) -> None:
        if number < 3:
            super().perform(number)


class WaitingWorker(ExecutingWorker):
    """Its locks last as long as its jobs wait."""

    deduplicate = Deduplicate("until_executing", ttl=TTL, while_waiting=True)


class ExecutedWorker(Base):
    deduplicate = Deduplicate("until_executed", ttl=TTL, including_scheduled=True)


class OnceMoreWorker(Base):
    deduplicate = Deduplicate("until_executed", ttl=TTL, if_deduplicated="reschedule_once")
