"""The job classes of these tests, copied as the module ``jobs``. A list holds the work; a second list holds finished work."""

import asyncio
import os
import time

from redis import Redis

from framework import LimitedCapacityWorker

proofs = Redis.from_url(os.environ["PROOF_URL"])


def most() -> int:
    setting = proofs.get("most") or b"3"
    if setting == b"raises":
        raise OSError("the setting cannot be read")
    return int(setting)


class DrainWorker(LimitedCapacityWorker):
    """Take one word from the list, and wait while the key ``hold`` exists."""

    feature_category = "not_owned"
    queue = "default"
    max_running_jobs = most

    def perform_work(self, shop: int, mode: str = "full") -> None:
        word = proofs.rpop("work")
        running = proofs.incr("running")
        proofs.rpush("seen", running)
        try:
            while proofs.exists("hold"):
                time.sleep(0.01)
            time.sleep(0.002)
            if word == b"fail":
                raise ValueError("it does not work")
            if word is not None:
                proofs.rpush("done", word)
        finally:
            proofs.decr("running")

    def remaining_work_count(self, shop: int, mode: str = "full") -> int:
        return int(proofs.llen("work"))


class AsyncDrainWorker(LimitedCapacityWorker):
    feature_category = "not_owned"
    queue = "default"
    max_running_jobs = 2

    async def perform_work(self) -> None:
        await asyncio.sleep(0.002)
        word = proofs.rpop("async work")
        if word is not None:
            proofs.rpush("async done", word)

    async def remaining_work_count(self) -> int:
        await asyncio.sleep(0)
        return int(proofs.llen("async work"))
