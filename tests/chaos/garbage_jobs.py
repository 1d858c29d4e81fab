"""Job classes that use every policy, for tests/chaos/test_garbage.py."""

import os
from collections.abc import Iterator
from datetime import timedelta

from redis import Redis

from framework import ApplicationWorker, CronWorker, Deduplicate, IterableWorker, limiter
from framework.batches import Batch

proofs = Redis.from_url(os.environ["PROOF_URL"])


class Base(ApplicationWorker, abstract=True):
    feature_category = "not_owned"
    queue = "work"

    def perform(self, value: str) -> None:
        proofs.rpush("proof:runs", f"{type(self).__name__} {value}")


class PlainWorker(Base):
    pass


class LimitedWorker(Base):
    concurrency_limit = 2


class DeduplicatedWorker(Base):
    deduplicate = Deduplicate("until_executed", ttl=timedelta(minutes=5))
    idempotent = True


class TrackedWorker(Base):
    status_expiration = timedelta(minutes=5)


class PausableWorker(Base):
    version = 1


class RateLimitedWorker(Base):
    def perform(self, value: str) -> None:
        with limiter.concurrent("garbage", 5).within():
            super().perform(value)


class BatchedWorker(Base):
    def perform(self, value: str) -> None:
        if value == "batch":
            batch = Batch(description="garbage")
            batch.on_success(PlainWorker, "callback")
            with batch.jobs():
                PlainWorker.perform_async("member")
        super().perform(value)


class TickWorker(CronWorker):
    feature_category = "not_owned"
    queue = "work"
    cron = "*/2 * * * * *"

    def perform(self) -> None: ...


class RowsWorker(IterableWorker):
    feature_category = "not_owned"
    queue = "work"

    def build_enumerator(self, value: str, *, cursor: int | None) -> Iterator[tuple[int, int]]:
        for index in range(cursor or 0, 3):
            yield index, index

    def each_iteration(self, item: int, value: str) -> None:
        if item == 2:
            proofs.rpush("proof:runs", f"RowsWorker {value}")


KINDS = (
    PlainWorker,
    LimitedWorker,
    DeduplicatedWorker,
    TrackedWorker,
    PausableWorker,
    RateLimitedWorker,
    BatchedWorker,
    RowsWorker,
)
