"""Workers that harm their process; copied to the folder of ``jobs`` as the module ``hostile_jobs``."""

import asyncio
import ctypes
import faulthandler
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from jobs import Base, NoteWorker, prove

_LIBC = ctypes.CDLL(None)
_LIBC_THAT_KEEPS_THE_GIL = ctypes.PyDLL(None)
_leaked: list[object] = []


def _overflow_the_c_stack() -> None:
    """Recurse within C, where the interpreter does not count: the C library reads a nested expression."""
    _LIBC.regcomp(ctypes.create_string_buffer(4_096), b"(" * 1_000_000, 1)


def _take_all_memory() -> None:
    taken: list[bytes] = []
    while True:
        taken.append(bytes(10_000_000))


DEADLY: dict[str, Callable[[], object]] = {
    "exit": lambda: os._exit(1),
    "segmentation": lambda: ctypes.string_at(0),
    "abort": os.abort,
    "stack": _overflow_the_c_stack,
    "descriptors": lambda: os.closerange(0, 101),
}


class DieWorker(Base):
    """Ends its process."""

    def perform(self, kind: str) -> None:
        prove(f"died {kind}", time.time())
        faulthandler.disable()
        DEADLY[kind]()
        if kind == "descriptors":
            time.sleep(30)  # the process notices while it runs


class MemoryWorker(Base):
    def perform(self) -> None:
        prove("memory")
        _take_all_memory()


class OddClassError(Exception):
    @property
    def __class__(self) -> type:
        raise RuntimeError("not even its class")


class OddTextError(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)

    __repr__ = __str__


class SlowTextError(Exception):
    def __str__(self) -> str:
        time.sleep(0.2)
        return "a slow text"


class EndlessTextError(Exception):
    def __str__(self) -> str:
        return str(self)


def _cycle() -> Exception:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    return one


RAISED: dict[str, Callable[[], BaseException]] = {
    "class": OddClassError,
    "text": OddTextError,
    "slow text": SlowTextError,
    "endless text": EndlessTextError,
    "cycle": _cycle,
    "group": lambda: ExceptionGroup("many", [ValueError(str(number)) for number in range(10_000)]),
    "huge": lambda: ValueError("x" * 100_000_000),
    "bytes": lambda: ValueError("\udcff"),
    "exit": lambda: SystemExit(4),
    "interrupt": KeyboardInterrupt,
    "generator": GeneratorExit,
    "cancelled": asyncio.CancelledError,
    "stop": StopIteration,
    "memory": MemoryError,
    "recursion": RecursionError,
}


class RaiseWorker(Base):
    def perform(self, case: str) -> None:
        error = RAISED[case]()
        raise error


class AsyncRaiseWorker(Base):
    async def perform(self, case: str) -> None:
        await asyncio.sleep(0)
        error = RAISED[case]()
        raise error


class RecursionWorker(Base):
    """Recurses to the limit of recursion, and uses the framework on the way back."""

    def perform(self) -> None:
        try:
            self.perform()
        finally:
            self.log_extra(depth=1)
            self.logger.debug("on the way up")


RESULTS: dict[str, Callable[[], object]] = {
    "lambda": lambda: print,
    "lock": threading.Lock,
    "generator": lambda: (number for number in range(3)),
    "not a number": lambda: float("nan"),
    "class": OddClassError,
}


class ResultWorker(Base):
    """Returns a value that JSON cannot hold."""

    def perform(self, case: str) -> object:
        return RESULTS[case]()


SETTINGS: dict[str, Callable[[], object]] = {
    "logging": logging.shutdown,
    "handlers": lambda: setattr(logging.getLogger(), "handlers", []),
    "signal": lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),  # rejected: not in the main thread
    "mask": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT]),
    "folder": lambda: os.chdir("/"),
    "standard streams": lambda: os.closerange(0, 3),
    "exit": sys.exit,
}


class SettingsWorker(Base):
    """Changes settings of the whole process."""

    def perform(self, case: str) -> None:
        SETTINGS[case]()


class ForkWorker(Base):
    """Forks, and lets the child return from ``perform`` by mistake."""

    def perform(self, kind: str) -> None:
        _fork(kind)


class AsyncForkWorker(Base):
    async def perform(self, kind: str) -> None:
        await asyncio.sleep(0)
        _fork(kind)


def _fork(kind: str) -> None:
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        prove("forked", f"{kind} {os.waitstatus_to_exitcode(status)}")
    elif kind == "raises":
        raise ValueError("in the child")
    elif kind == "exits":
        sys.exit(5)
    elif kind == "pushes":
        NoteWorker.perform_async("from a forked child")


class ChildrenWorker(Base):
    """Has children of all kinds, and leaves two of them running; reports their ids."""

    def perform(self) -> None:
        process = multiprocessing.get_context("fork").Process(
            target=NoteWorker.perform_async, args=("multiprocessing",)
        )
        process.start()
        process.join()
        subprocess.run(["true"], check=True)
        stray = subprocess.Popen(["sleep", "600"])
        daemon = subprocess.Popen(["sleep", "600"], start_new_session=True)
        _leaked.extend((stray, daemon))
        prove("family", f"{os.getpid()} {stray.pid} {daemon.pid}")
        while True:
            time.sleep(60)


class UnstoppableWorker(Base):
    """Hangs where no signal and no exception helps."""

    def perform(self, kind: str) -> None:
        prove("begun", kind)
        if kind == "ignores":
            _LIBC.signal(signal.SIGTERM, ctypes.c_void_p(1))
        if kind == "holds the interpreter":
            _LIBC_THAT_KEEPS_THE_GIL.sleep(600)
        while True:
            try:
                time.sleep(600)
            except BaseException:
                continue


class HoldWorker(Base):
    """Holds the interpreter's lock for a while, as C code does that computes."""

    def perform(self, seconds: int) -> None:
        prove("holding", os.getpid())
        _LIBC_THAT_KEEPS_THE_GIL.sleep(seconds)
        prove("held", os.getpid())


class LogWorker(Base):
    """Reports how many milliseconds a log line takes."""

    def perform(self) -> None:
        begun = time.perf_counter()
        self.logger.info("a line")
        prove("talked", (time.perf_counter() - begun) * 1_000)
