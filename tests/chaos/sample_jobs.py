"""Workers of the fault tests; copied to the folder of their config as the module ``jobs``.

Their proofs go to the Redis that PROOF_URL names, which never has a fault.
"""

import ctypes
import os
import threading
import time

from redis import Redis

from framework import ApplicationWorker

proofs = Redis.from_url(os.environ["PROOF_URL"])


def prove(name: str, value: object = 1) -> None:
    proofs.rpush(f"proof:{name}", str(value))


class Base(ApplicationWorker, abstract=True):
    feature_category = "not_owned"
    queue = "default"


class NopWorker(Base):
    def perform(self, value: str) -> None:
        pass


class NoteWorker(Base):
    def perform(self, value: str) -> None:
        prove("note", value)


class AsyncNoteWorker(Base):
    async def perform(self, value: str) -> None:
        prove("note", value)


class ElsewhereWorker(Base):
    """Is routed to another shard by the rules of a test."""

    def perform(self, value: str) -> None:
        prove("note", value)


class LongWorker(Base):
    """Runs until the test lets it end."""

    def perform(self, name: str) -> None:
        prove("begun", name)
        while not proofs.exists(f"let_end:{name}"):
            time.sleep(0.02)
        prove("ended", name)


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class FailWorker(Base):
    def perform(self, kind: str) -> None:
        prove("failing", kind)
        if kind == "unspeakable":
            raise UnprintableError
        if kind == "huge":
            raise ValueError("x" * 1_000_000)
        if kind == "bytes":
            raise ValueError(b"\xff\xfe".decode("utf-8", "surrogateescape"))
        if kind == "recursion":
            self.perform_again(kind)
        raise ValueError(kind)

    def perform_again(self, kind: str) -> None:
        self.perform_again(kind)


class HangWorker(Base):
    """Hangs where no exception can reach it."""

    def perform(self, kind: str) -> None:
        prove("begun", kind)
        if kind == "lock":
            lock = threading.Lock()
            lock.acquire()
            lock.acquire()
        if kind == "c":
            ctypes.CDLL(None).sleep(3600)
