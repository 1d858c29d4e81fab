"""Job classes that reach every state of a job, for tests/process/test_role_census.py; copied to the site as the module ``jobs``."""

import os
import time
from datetime import timedelta
from typing import Literal

from redis import Redis

from framework import ApplicationWorker, Deduplicate, Discard, Job, LimitedCapacityWorker, RetryLater

proofs = Redis.from_url(os.environ["PROOF_URL"])


class Base(ApplicationWorker, abstract=True):
    feature_category = "not_owned"
    queue = "default"

    @classmethod
    def retry_in(cls, count: int, error: Exception, job: Job) -> float | Literal["kill"]:
        del count, error, job
        return 0.1


class NoteWorker(Base):
    status_expiration = 600

    def perform(self, value: str) -> None:
        proofs.rpush("proof:note", value)


class FlakyWorker(Base):
    status_expiration = 600

    def perform(self) -> None:
        if proofs.incr("tries") < 2:
            raise ValueError("not this time")
        proofs.rpush("proof:flaky", 1)


class DoomedWorker(Base):
    status_expiration = 600
    retry = 0

    def perform(self) -> None:
        raise ValueError("never")


class DroppedWorker(Base):
    def perform(self) -> None:
        raise Discard("no need")


class LaterWorker(Base):
    def perform(self) -> None:
        if proofs.incr("later") < 2:
            raise RetryLater(0.1, "not yet")


class PatientWorker(Base):
    def perform(self) -> None:
        proofs.rpush("proof:patient", self.jid)
        while not self.cancelled:
            time.sleep(0.02)


class OneWorker(Base):
    concurrency_limit = 1

    def perform(self) -> None:
        time.sleep(0.05)


class FewWorker(LimitedCapacityWorker):
    feature_category = "not_owned"
    queue = "default"
    max_running_jobs = 2

    def perform_work(self) -> None:
        proofs.rpush("proof:few", 1)

    def remaining_work_count(self) -> int:
        return 5 - int(proofs.llen("proof:few"))


class KeyedWorker(Base):
    idempotent = True
    deduplicate = Deduplicate("until_executed", including_scheduled=True)

    def perform(self, key: int) -> None:
        time.sleep(0.1)


class DebouncedWorker(KeyedWorker):
    deduplicate = Deduplicate("debounce", window=timedelta(milliseconds=200))


class FairWorker(Base):
    priority = "low"
    fair_by = staticmethod(lambda args: args[0])

    def perform(self, tenant: str, number: int) -> None: ...


class FlaggedWorker(KeyedWorker):
    deduplicate = Deduplicate(feature_flag="keyed")


class PausedWorker(Base):
    def perform(self) -> None:
        proofs.rpush("proof:paused", 1)


class HangWorker(Base):
    """Runs when its process dies, and again when its process stops."""

    def perform(self) -> None:
        proofs.rpush("proof:hang", os.getpid())
        while not proofs.exists("release:hang"):
            time.sleep(0.02)


class AsideWorker(Base):
    """A flag drops it at the start of its run."""

    def perform(self) -> None:
        proofs.rpush("proof:aside", 1)
