"""The job of ``scripts/prove limit``: it counts the running jobs, and sleeps."""

import os
import time

from redis import Redis

from framework import ApplicationWorker
from tests.proofs.worker_pools import ended

LIMIT = 5
QUEUE = "limited"
STORE = "LIMIT_STORE"
"""The environment variable with the URL of the counts of running jobs, for which no role exists."""
RUNNING, SEEN, DONE = "limit:running", "limit:seen", "limit:done"
"""ZSET of the jobs that run, by process id and number; HASH from how many a job saw to how often; SET of numbers done."""

_redis: "list[Redis]" = []


class LimitProofWorker(ApplicationWorker):
    """At most five in all processes at a time."""

    wire_name = "LimitProofWorker"
    feature_category = "not_owned"
    queue = QUEUE
    concurrency_limit = LIMIT

    def perform(self, number: int, lasts_s: float) -> None:
        """Count the running jobs, and sleep."""
        if not _redis:
            _redis.append(Redis.from_url(os.environ[STORE]))
        client, me = _redis[0], f"{os.getpid()} {number}"
        pipeline = client.pipeline()
        pipeline.zadd(RUNNING, {me: time.time()})
        pipeline.zrange(RUNNING, 0, -1)
        running = pipeline.execute()[1]
        client.hincrby(SEEN, str(sum(not ended(int(one.split()[0])) for one in running)), 1)
        time.sleep(lasts_s)
        client.pipeline().zrem(RUNNING, me).sadd(DONE, number).execute()
