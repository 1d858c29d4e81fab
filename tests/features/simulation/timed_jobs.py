"""Jobs that wait and compute as long as their arguments say, for real runs that a simulation predicts."""

import time

from framework import ApplicationWorker


class TimedWorker(ApplicationWorker, abstract=True):
    feature_category = "not_owned"

    def perform(self, seconds: float, processor: float) -> None:
        end = time.thread_time() + processor
        while time.thread_time() < end:
            pass
        time.sleep(max(0.0, seconds - processor))


class UrgentWorker(TimedWorker):
    urgency = "high"


class PlainWorker(TimedWorker): ...


class LimitedWorker(TimedWorker):
    concurrency_limit = 2
