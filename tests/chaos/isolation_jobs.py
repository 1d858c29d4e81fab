"""Push to four shards at the same time: a thread and asyncio tasks for each, in one process; and the classes of the jobs.

The test copies it to the folder of its config. ``push_until_told`` prints a line of counts each quarter of a second.
"""

import asyncio
import json
import os
import threading
import time

from redis import Redis

from framework import ApplicationWorker, FrameworkError

SHARDS = ("main", "b", "c", "d")
PAUSE_S = 0.02
"""The pause behind each push: far below what the shards can do, so that a missing push has waited for something."""
DELAYED_EACH = 4
"""Each push of so many is for a moment later, which the pollers of the shards move."""
TASKS = {"main": 1, "b": 1, "c": 1, "d": 16}
"""The tasks that push to each shard: to the faulty one more than an event loop has threads for a shard."""
SLOW_S = 0.25

proofs = Redis.from_url(os.environ["PROOF_URL"])


class Base(ApplicationWorker, abstract=True):
    feature_category = "not_owned"
    queue = "default"


class MainWorker(Base):
    def perform(self) -> None:
        proofs.incr("ran:main")


class BWorker(Base):
    def perform(self) -> None:
        proofs.incr("ran:b")


class CWorker(Base):
    def perform(self) -> None:
        proofs.incr("ran:c")


class DWorker(Base):
    def perform(self) -> None:
        proofs.incr("ran:d")


WORKERS = dict(zip(SHARDS, (MainWorker, BWorker, CWorker, DWorker), strict=True))


class Pushes:
    """What was pushed to one shard in one way."""

    def __init__(self) -> None:
        self.accepted = self.refused = self.slow = 0
        self.longest_s = 0.0

    def note(self, began: float, *, accepted: bool) -> None:
        took_s = time.monotonic() - began
        self.accepted += accepted
        self.refused += not accepted
        self.slow += took_s > SLOW_S
        self.longest_s = max(self.longest_s, took_s)


def by_thread(shard: str, pushes: Pushes) -> None:
    worker = WORKERS[shard]
    number = 0
    while True:
        number += 1
        began = time.monotonic()
        try:
            if number % DELAYED_EACH:
                worker.perform_async()
            else:
                worker.perform_in(0.1)
        except FrameworkError:
            pushes.note(began, accepted=False)
        else:
            pushes.note(began, accepted=True)
        time.sleep(PAUSE_S)


async def by_task(shard: str, pushes: Pushes) -> None:
    worker = WORKERS[shard]
    while True:
        began = time.monotonic()
        try:
            await worker.aperform_async()
        except FrameworkError:
            pushes.note(began, accepted=False)
        else:
            pushes.note(began, accepted=True)
        await asyncio.sleep(PAUSE_S * TASKS[shard])


def push_until_told() -> None:
    """Push until the key ``stop`` exists."""
    threads, tasks = ({shard: Pushes() for shard in SHARDS} for _ in range(2))

    async def all_tasks() -> None:
        await asyncio.gather(*(by_task(shard, tasks[shard]) for shard in SHARDS for _ in range(TASKS[shard])))

    for shard in SHARDS:
        threading.Thread(target=by_thread, args=(shard, threads[shard]), daemon=True).start()
    threading.Thread(target=lambda: asyncio.run(all_tasks()), daemon=True).start()
    while not proofs.exists("stop"):
        ran = proofs.mget([f"ran:{shard}" for shard in SHARDS])
        line = {
            "at": time.monotonic(),
            "processor_s": time.process_time(),
            "pushed by threads": {shard: threads[shard].accepted for shard in SHARDS},
            "pushed by tasks": {shard: tasks[shard].accepted for shard in SHARDS},
            "run": {shard: int(count or 0) for shard, count in zip(SHARDS, ran, strict=True)},
            "slow": {shard: threads[shard].slow + tasks[shard].slow for shard in SHARDS},
            "refused": {shard: threads[shard].refused + tasks[shard].refused for shard in SHARDS},
        }
        print(json.dumps(line), flush=True)  # noqa: T201 - the test reads it
        time.sleep(0.25)
