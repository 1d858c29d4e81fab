"""The job classes of these tests, copied to the site as the module ``jobs``.

They record their runs in the Redis that PROOF_URL names.
"""

import asyncio
import gc
import os
import signal
import sys
import threading
import time
from datetime import timedelta

from redis import Redis

from framework import ApplicationWorker, BusinessError, Discard, Job, RetryLater
from framework.errors import Shutdown

proofs = Redis.from_url(os.environ["PROOF_URL"])


def prove(name: str, value: object = 1) -> None:
    proofs.rpush(f"proof:{name}", str(value))


class Base(ApplicationWorker, abstract=True):
    feature_category = "not_owned"
    queue = "default"


class NoopWorker(Base):
    def perform(self, *args: object) -> None:
        prove("noop", self.jid)


class TalkWorker(Base):
    urgency = "high"
    version = 3
    loggable_arguments = ("mode",)

    def perform(self, number: int, secret: str, mode: str = "full") -> None:
        print("a print in a job")  # noqa: T201 - on purpose
        self.logger.info("half way", step=number)
        self.log_extra(rows=7, odd="\ud800")


class StreamsWorker(Base):
    """Leaves the streams of Python without a use."""

    def perform(self) -> None:
        sys.stdout, sys.stderr = None, object()  # type: ignore[assignment]


class ParentWorker(Base):
    def perform(self) -> None:
        NoopWorker.perform_async("child")


class AsyncWorker(Base):
    async def perform(self, number: int) -> None:
        await asyncio.sleep(0)
        prove("async", f"{number} {threading.current_thread().name}")
        NoopWorker.perform_async("child")


class PatientWorker(Base):
    """Runs until it is cancelled."""

    def perform(self) -> None:
        prove("patient", "begun")
        while not self.cancelled:
            time.sleep(0.01)
        prove("patient", "cancelled")


class AsyncPatientWorker(Base):
    async def perform(self) -> None:
        prove("patient", "begun")
        while not self.cancelled:  # noqa: ASYNC110 - as a job does that works in steps
            await asyncio.sleep(0.01)
        prove("patient", "cancelled")


class AsyncExitWorker(Base):
    async def perform(self) -> None:
        sys.exit(3)


class BadError(Exception):
    def __str__(self) -> str:
        raise SystemExit


class FailWorker(Base):
    def perform(self, kind: str) -> None:
        prove("fail", kind)
        if kind == "later":
            raise RetryLater(timedelta(hours=1), "not yet")
        if kind == "discard":
            raise Discard("no need")
        if kind == "business":
            raise BusinessError("account closed")
        if kind == "exit":
            sys.exit(5)
        if kind == "unspeakable":
            raise BadError
        raise ValueError(kind)


class RecursiveWorker(Base):
    def perform(self) -> None:
        self.perform()


class FrozenWorker(Base):
    def perform(self) -> None:
        prove("frozen", gc.get_freeze_count())


class StrictWorker(Base):
    def perform(self, number: int) -> None:
        prove("strict", number)


class LongWorker(Base):
    """Runs until its release key exists."""

    max_retries_after_interruption = 2

    def perform(self, name: str) -> None:
        prove(f"begun:{name}", os.getpid())
        while not proofs.exists(f"release:{name}"):
            time.sleep(0.02)
        prove(f"ended:{name}", os.getpid())

    @classmethod
    def interruptions_exhausted(cls, job: Job) -> None:
        prove("exhausted", job.jid)


class AsyncLongWorker(Base):
    """Runs until it is cancelled, or longer."""

    async def perform(self, how: str) -> None:
        prove(f"begun:{how}", os.getpid())
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                if how == "cancelled":
                    raise


class GivesWayWorker(Base):
    """Stops on shutdown and is requeued for another process."""

    def perform(self) -> None:
        prove("begun:polite", os.getpid())
        while not self.interrupted:
            time.sleep(0.02)
        raise Shutdown


class HangingHookWorker(Base):
    """Quarantined at its first interruption; its hook never ends."""

    max_retries_after_interruption = 0

    def perform(self) -> None:
        prove("begun:hook", os.getpid())
        time.sleep(3600)

    @classmethod
    def interruptions_exhausted(cls, job: Job) -> None:
        prove("hook hangs", job.jid)
        threading.Event().wait()


class StubbornWorker(Base):
    """Catches every exception."""

    def perform(self) -> None:
        prove("begun:stubborn", os.getpid())
        while True:
            try:
                time.sleep(3600)
            except BaseException:
                continue


class ForkWorker(Base):
    """Fork a child that waits, and end it in the usual way."""

    def perform(self) -> None:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writer, b"up")
            threading.Event().wait(60)
            os._exit(0)
        os.read(reader, 2)
        os.kill(child, signal.SIGTERM)
        _, status = os.waitpid(child, 0)
        prove("fork", os.waitstatus_to_exitcode(status))
