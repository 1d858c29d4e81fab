"""Jobs whose failures quote secrets: the password of Redis, that of another URL, and the environment by name only."""

import os
import time
from datetime import timedelta

import jobs

REDIS, OTHER = os.environ["REDIS_URL"], os.environ["LEAK_URL"]


class LeakWorker(jobs.Base):
    def perform(self, number: str) -> None:
        raise RuntimeError(f"cannot reach {REDIS} nor {OTHER}")


class LeakCauseWorker(jobs.Base):
    def perform(self, number: str) -> None:
        try:
            raise ConnectionError(f"password is wrong for {OTHER}")
        except ConnectionError as error:
            raise ValueError("the database is away") from error


class LeakInProcessWorker(jobs.Base):
    isolation = "process"

    def perform(self, number: str) -> None:
        raise RuntimeError(f"cannot reach {REDIS} nor {OTHER}")


class LeakCrashWorker(jobs.Base):
    isolation = "process"

    def perform(self, number: str) -> None:
        os._exit(3)


class LeakTimeoutWorker(jobs.Base):
    timeout = timedelta(seconds=0.2)

    def perform(self, number: str) -> None:
        while True:
            time.sleep(0.01)
