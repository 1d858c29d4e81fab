"""The framework: the bench's workers and how to push them. It uses the public API only, as any application."""

import importlib
import os
from collections.abc import Callable, Sequence
from typing import Any

import body

import framework
from framework import ApplicationWorker, DeferOnHealth
from framework.health import Normal, Question, Signal, register


class BenchWorker(ApplicationWorker, abstract=True):
    """The base of all of them."""

    feature_category = "not_owned"
    queue = "default"


class NoopWorker(BenchWorker):
    def perform(self) -> None:
        body.noop()


class CpuWorker(BenchWorker):
    def perform(self) -> None:
        body.cpu()


class IoWorker(BenchWorker):
    def perform(self) -> None:
        body.io()


class AsyncWorker(BenchWorker):
    async def perform(self) -> None:
        await body.wait_async(0.050)


class ShortAsyncWorker(BenchWorker):
    async def perform(self) -> None:
        await body.wait_async(0.025)


class PayloadWorker(BenchWorker):
    def perform(self, text: str) -> None:
        body.payload(text)


class LatencyWorker(BenchWorker):
    def perform(self, sent: float) -> None:
        body.latency(sent)


class MixedWorker(BenchWorker):
    def perform(self, sent: float, pause_s: float) -> None:
        body.mixed(sent, pause_s)


class NumberedWorker(BenchWorker, abstract=True):
    """A no-op job with a number, so that no two jobs are duplicates. The policies of its subclasses are compared."""

    def perform(self, _number: int) -> None:
        body.noop()


class Calm:
    """A health indicator that never stops a job."""

    def evaluate(self, _question: Question) -> Signal:
        return Normal("always")


register("calm", Calm())


class PlainWorker(NumberedWorker):
    pass


class HealthWorker(NumberedWorker):
    defer_on_health = DeferOnHealth(indicators=("calm",))


class LimitedWorker(NumberedWorker):
    concurrency_limit = 1_000


class DeduplicatedWorker(NumberedWorker):
    idempotent = True


class TrackedWorker(NumberedWorker):
    status_expiration = 600


class RecordedWorker(NumberedWorker):
    track = True


class GuidelinesWorker(NumberedWorker):
    defer_on_health = DeferOnHealth(indicators=("calm",))
    concurrency_limit = 1_000
    idempotent = True
    status_expiration = 600


class FullLimitWorker(BenchWorker):
    concurrency_limit = 5

    def perform(self) -> None:
        body.io()


class GuardedLatencyWorker(LatencyWorker):
    concurrency_limit = 1_000
    idempotent = True


WORKERS: dict[str, type[ApplicationWorker]] = {
    "noop": NoopWorker,
    "cpu": CpuWorker,
    "io": IoWorker,
    "async": AsyncWorker,
    "async25": ShortAsyncWorker,
    "payload": PayloadWorker,
    "latency": LatencyWorker,
    "mixed": MixedWorker,
    "plain": PlainWorker,
    "health": HealthWorker,
    "limited": LimitedWorker,
    "deduplicated": DeduplicatedWorker,
    "tracked": TrackedWorker,
    "recorded": RecordedWorker,
    "guidelines": GuidelinesWorker,
    "full_limit": FullLimitWorker,
    "guarded_latency": GuardedLatencyWorker,
}


if "BENCH_SHARDS" in os.environ:
    # Only now, as the framework rejects workers of a shard that the configuration does not have.
    WORKERS |= importlib.import_module("framework_shards").WORKERS


def prepare() -> None:
    framework.boot()


def _worker(kind: str) -> type[ApplicationWorker]:
    return WORKERS[kind] if kind in WORKERS else importlib.import_module("framework_moves").WORKERS[kind]


def pusher(kind: str, queue: str) -> Callable[..., object]:
    worker = _worker(kind)
    return worker.perform_async if queue == "default" else worker.set(queue=queue).perform_async


def bulk_pusher(kind: str, queue: str) -> Callable[[Sequence[Sequence[Any]]], object]:
    worker = _worker(kind)
    return worker.perform_bulk if queue == "default" else worker.set(queue=queue).perform_bulk


def guideline_pusher() -> Callable[..., object]:
    """Return the function that pushes a job of the guideline mix, whose classes no other workload loads."""
    pusher: Callable[..., object] = importlib.import_module("guideline_jobs").push
    return pusher


def caller(kind: str) -> Callable[[], object]:
    """Return the function that does this once: a call that pushes no plain job."""
    made: Callable[[], object] = importlib.import_module("framework_moves").caller(kind)
    return made
