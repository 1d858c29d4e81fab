"""The workers of these tests; copied as the module ``jobs``. With ``GONE`` in the environment one class does not exist."""

import os
import time

from redis import Redis

from framework import ApplicationWorker
from framework.pause import register

proofs = Redis.from_url(os.environ["PROOF_URL"])


class Switched:
    """Return whether the value of a key is ``on``; for ``raises`` and ``hangs`` fail in that way."""

    def should_pause(self) -> bool:
        if proofs.getdel("slow"):
            time.sleep(0.5)
        mode = (proofs.get("strategy") or b"off").decode()
        if mode == "raises":
            raise OSError("the switch cannot be read")
        while mode == "hangs" and proofs.get("strategy") == b"hangs":
            time.sleep(0.02)
        return mode in ("on", "hangs")


register("switched", Switched)


class Base(ApplicationWorker, abstract=True):
    feature_category = "not_owned"
    queue = "default"


class OrderWorker(Base):
    pause_control = "manual"
    version = 2

    def perform(self, number: int) -> None:
        proofs.rpush("ran", number)


class SwitchedWorker(Base):
    pause_control = "switched"

    def perform(self, number: int) -> None:
        proofs.rpush("switched", number)


class AsyncWorker(Base):
    async def perform(self, number: int) -> None:
        proofs.rpush("async", number)


if "GONE" not in os.environ:

    class GoneWorker(Base):
        def perform(self, number: int) -> None:
            proofs.rpush("gone", number)
