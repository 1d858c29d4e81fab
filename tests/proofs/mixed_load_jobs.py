"""Jobs of every kind, loaded by the workers with ``-r tests.proofs.mixed_load_jobs``.

Each job that ends for good writes its end mark, so that the history of its Redis shows which acknowledgement came after
an end.
"""

import random
import time
from typing import Literal

from framework import ApplicationWorker, Deduplicate, Job, RetryLater
from tests.proofs.end_marks import mark

SOON_S = 0.3
_GENERATION = 40
_LIMITED = 3
_AGAIN = 0.3


class MixedWorker(ApplicationWorker, abstract=True):
    feature_category = "not_owned"
    queue = "mixed"

    @classmethod
    def retry_in(cls, count: int, error: Exception, job: Job) -> float | Literal["kill"]:
        """Return a short time, so that a short history has many retries."""
        del count, error, job
        return SOON_S


class SeedWorker(MixedWorker):
    """Pushes a generation of the other jobs with the real client, with every push method."""

    wire_name = "SeedWorker"

    def perform(self) -> None:
        ShortWorker.perform_bulk([(index % 8,) for index in range(_GENERATION)])
        for index in range(4):
            ShortWorker.perform_in(SOON_S, index)
            UnsteadyWorker.perform_async()
            PatientWorker.perform_async()
            KeyedWorker.perform_async(index // 2)
        LimitedWorker.perform_bulk([()] * _LIMITED)
        PausedWorker.perform_bulk([()] * _LIMITED)
        LongWorker.perform_async()
        DoomedWorker.perform_async()
        mark(self.jid)


class LimitedWorker(MixedWorker):
    """Runs one at a time, and slowly: the others wait for its slot."""

    wire_name = "LimitedWorker"
    concurrency_limit = 1

    def perform(self) -> None:
        time.sleep(0.05)
        mark(self.jid)


class PausedWorker(MixedWorker):
    """Is paused until the end of the load."""

    wire_name = "PausedWorker"

    def perform(self) -> None:
        mark(self.jid)


class KeyedWorker(MixedWorker):
    """Equal jobs are pushed again and again, and fail sometimes; one at a time."""

    wire_name = "KeyedWorker"
    idempotent = True
    deduplicate = Deduplicate("until_executed")
    concurrency_limit = 1

    def perform(self, key: int) -> None:
        del key
        if random.random() < _AGAIN:
            raise ValueError("not this time")
        time.sleep(0.05)
        mark(self.jid)


class ShortWorker(MixedWorker):
    wire_name = "ShortWorker"

    def perform(self, milliseconds: int) -> None:
        time.sleep(milliseconds / 1000)
        mark(self.jid)


class LongWorker(MixedWorker):
    """Runs long enough to be running when its process is killed."""

    wire_name = "LongWorker"

    def perform(self) -> None:
        time.sleep(0.8)
        mark(self.jid)


class UnsteadyWorker(MixedWorker):
    """Fails sometimes."""

    wire_name = "UnsteadyWorker"

    def perform(self) -> None:
        if random.random() < _AGAIN:
            raise ValueError("not this time")
        mark(self.jid)


class PatientWorker(MixedWorker):
    """Snoozes sometimes."""

    wire_name = "PatientWorker"

    def perform(self) -> None:
        if random.random() < _AGAIN:
            raise RetryLater(SOON_S)
        mark(self.jid)


class DoomedWorker(MixedWorker):
    """Fails for good, and stays in the dead set."""

    wire_name = "DoomedWorker"
    retry = 0

    def perform(self) -> None:
        raise ValueError("never")
