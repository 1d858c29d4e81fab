"""Jobs that run until they are stopped, each in another way."""

import asyncio
import time
from collections.abc import Iterator
from datetime import timedelta

import jobs

from framework import Deduplicate, IterableWorker

SECRET = "hunter2"


def wait_here(seconds: float) -> None:
    secret = SECRET
    end = time.monotonic() + seconds
    while time.monotonic() < end and secret:
        time.sleep(0.01)


async def await_here() -> None:
    await asyncio.sleep(600)


class Locked(jobs.Base, abstract=True):
    idempotent = True
    deduplicate = Deduplicate("until_executed")
    concurrency_limit = 5


class TimedWorker(Locked):
    timeout = timedelta(hours=1)

    def perform(self) -> None:
        jobs.prove("runs", self.jid)
        wait_here(600)


class ThreadWorker(Locked):
    def perform(self) -> None:
        jobs.prove("runs", self.jid)
        while not self.cancelled:
            wait_here(0.05)


class TaskWorker(Locked):
    async def perform(self) -> None:
        jobs.prove("runs", self.jid)
        await await_here()


class ProcessWorker(Locked):
    isolation = "process"

    def perform(self) -> None:
        jobs.prove("runs", self.jid)
        wait_here(600)


class ProcessTaskWorker(Locked):
    isolation = "process"

    async def perform(self) -> None:
        jobs.prove("runs", self.jid)
        await await_here()


class ItemsWorker(IterableWorker):
    feature_category = "not_owned"
    queue = "default"
    idempotent = True
    deduplicate = Deduplicate("until_executed")
    concurrency_limit = 5

    def build_enumerator(self, *, cursor: int | None) -> Iterator[tuple[int, int]]:
        yield from ((number, number) for number in range(cursor or 0, 100_000))

    def each_iteration(self, item: int) -> None:
        if item == 0:
            jobs.prove("runs", self.jid)
        wait_here(0.02)

    def on_cancel(self) -> None:
        jobs.prove("on_cancel", self.jid)
