"""Jobs of a full Redis: a flood of a class that cannot start, and a small class behind it in the same queue."""

import os

from redis import Redis

from framework import ApplicationWorker

_redis = Redis.from_url(os.environ["PROOF_URL"])


class LimitedWorker(ApplicationWorker):
    """Take one of ten slots; run only once the test has opened the gate."""

    feature_category = "not_owned"
    queue = "flood"
    concurrency_limit = 10

    def perform(self, number: int, text: str = "") -> None:
        while not _redis.get("gate") and not _redis.blpop("wait", 1):
            pass
        _redis.sadd("ran:flood", number)


class StoppedWorker(ApplicationWorker):
    """Note the run. A flag of the test stops the class."""

    feature_category = "not_owned"
    queue = "flood"

    def perform(self, number: int, text: str = "") -> None:
        _redis.sadd("ran:flood", number)


class SmallWorker(ApplicationWorker):
    """Note the run."""

    feature_category = "not_owned"
    queue = "flood"

    def perform(self, number: int) -> None:
        _redis.sadd("ran:small", number)
