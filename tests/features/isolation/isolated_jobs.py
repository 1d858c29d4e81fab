"""The classes of these tests, which a job's process imports too. They report through files whose names they are given."""

import atexit
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import sqlalchemy

from framework import ApplicationWorker, Discard, RetryLater, limiter
from framework.errors import OverLimit
from framework.telemetry import logs


class InputError(Exception):
    """An error whose constructor needs more than its message."""

    def __init__(self, field: str, line: int) -> None:
        self.field = field
        super().__init__(f"{field} is missing in line {line}")


class BareLimit(OverLimit):
    """An error that has none of the attributes of its base."""

    def __init__(self) -> None:
        Exception.__init__(self, "bare")


class Base(ApplicationWorker, abstract=True):
    feature_category = "not_owned"
    isolation = "process"


class TalkWorker(Base):
    """Has a version, fields, a line, and an integer that a float cannot hold."""

    version = 2

    def perform(self, number: int) -> None:
        self.logger.info("half way", number=number, version=self.job_version)
        self.log_extra(rows=number + 1)
        self.log_extra(odd="\ud800")


class AsyncWorker(Base):
    async def perform(self) -> None:
        self.log_extra(awaited=True)


class ForgeWorker(Base):
    """Write lines as if it were the framework: code that is not trusted has the socket of its process."""

    def perform(self) -> None:
        send = logs._target.server.writer.write
        send('{"severity":"INFO","time":"x","message":"x","job_status":"done","jid":"other","pid":1,"shard":"other"}')
        send('{"severity":"INFO"}\n{"severity":"ERROR","job_status":"fail"}')


class StatementWorker(Base):
    """Use a database, in its process and before its error."""

    def perform(self, url: str) -> None:
        with sqlalchemy.create_engine(url).begin() as connection:
            connection.execute(sqlalchemy.text("select 1"))
        raise InputError("name", 5)


class EndWorker(Base):
    """End in the way that its argument names."""

    def perform(self, how: str) -> None:
        self.log_extra(how=how)
        getattr(self, f"_{how}")()

    def _kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def _fault(self) -> None:
        ctypes.string_at(0)

    def _exit(self) -> None:
        os._exit(3)

    def _leave(self) -> None:
        sys.exit(4)

    def _fail(self) -> None:
        try:
            {}["x"]
        except KeyError as error:
            raise InputError("name", 5) from error

    def _snooze(self) -> None:
        raise RetryLater(60, "soon")

    def _limit(self) -> None:
        raise OverLimit("api", "", 3, 1.0, backoff=lambda count: 70 * count)

    def _bare(self) -> None:
        raise BareLimit

    def _discard(self) -> None:
        raise Discard("not needed")

    def _garbage(self) -> None:
        # Code that is not trusted writes into every open descriptor.
        for number in range(3, 64):
            try:
                os.write(number, b"\xff" * 64)
            except OSError:
                continue
        time.sleep(600)


class LimitedWorker(Base):
    """Waits for its end in a hard way, with the only lock of a limiter."""

    limiter = limiter.concurrent("isolated", 1, lock_timeout=600)

    def perform(self, file: str) -> None:
        while not Path(file).exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)


class GreedyWorker(Base):
    """Needs more memory than it may have."""

    memory_limit = 1 << 30

    def perform(self, size: int) -> None:
        bytearray(size)


class TinyWorker(Base):
    memory_limit = 1_000

    def perform(self) -> None:
        pass


def start_processes() -> list[int]:
    """Start a process in the job's group, one in a session of its own, and a daemon with a child; return the ids of all."""
    beside = subprocess.Popen(["sleep", "600"])
    away = subprocess.Popen(["sleep", "600"], start_new_session=True)
    command = ["setsid", "--fork", "sh", "-c", "setsid sleep 600 >/dev/null & echo $$ $!; exec >/dev/null; wait"]
    daemon = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return [beside.pid, away.pid, *map(int, daemon.stdout.split())]


class HangWorker(Base):
    """Hangs in C code, with processes beside it; the file has the ids of all."""

    def perform(self, file: str) -> None:
        pids = [os.getpid(), *start_processes()]
        Path(f"{file}.new").write_text(" ".join(map(str, pids)))
        Path(f"{file}.new").rename(file)
        time.sleep(600)


class LeaveWorker(Base):
    """Ends in the way that its argument names, and leaves processes behind; the file has their ids."""

    def perform(self, how: str, file: str) -> None:
        atexit.register(Path(f"{file}.atexit").touch)
        Path(file).write_text(" ".join(map(str, start_processes())))
        if how == "exit":
            os._exit(0)


class PatientWorker(Base):
    """Runs until it is cancelled, or its process stops."""

    def perform(self, file: str) -> None:
        Path(file).touch()
        while not (self.cancelled or self.interrupted):
            time.sleep(0.01)


class ForkWorker(Base):
    """Forks a child, whose run returns too."""

    def perform(self) -> None:
        child = os.fork()
        self.log_extra(from_child=not child)
        if child:
            os.waitpid(child, 0)
