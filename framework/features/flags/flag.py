"""Define a feature flag and where flags come from. A flag that is not set leaves the decision to its caller.

Code of a provider or of the application may be slow or hang: ``BackgroundValue`` calls it in a thread.
"""

import hashlib
import math
import os
import random
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, cast

from framework.command_line import command
from framework.errors import PayloadError
from framework.supervised_threads import SupervisedThread, ThreadStartError
from framework.telemetry.logs import LogRateLimit
from framework.text import Sentence
from framework.typeguards import short_repr
from framework.wire.json import dumps, loads

FORMAT = 1
"""The version of the value's format in Redis; values of other versions are ignored."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,199}")

_NAME_FORMAT = "letters, digits and _ . : / -, at most 200 characters, and a letter, digit or _ first"

_CLASS_PREFIXES = ("run_jobs_", "drop_jobs_", "pause_jobs_")

DEADLINE_S = 5.0
"""A call of a ``BackgroundValue`` that takes longer is logged."""

_LOG_INTERVAL_S = 300.0

A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag that is set. Times are epoch seconds of Redis's clock."""

    name: str
    percentage: float
    """The share of evaluations, in percent, in which the flag is on."""
    reason: str = ""
    set_by: str = ""
    set_at: float | None = None
    expires_at: float | None = None

    def sampled(self, sample: Callable[[], float] = random.random) -> bool:
        """Return whether the flag is on for this evaluation, at random."""
        return sample() * 100 < self.percentage

    def includes(self, key: str | int) -> bool:
        """Return whether the flag is on for a key: always the same answer, in each process, for a percentage.

        A key that a percentage includes is also included by a larger one. Flags choose their keys independently.
        """
        if self.percentage >= 100 or self.percentage <= 0:
            return self.percentage >= 100
        text = f"{self.name}\0{key}".encode(errors="surrogatepass")
        share = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) / 2**64
        return share * 100 < self.percentage

    def encode(self) -> bytes:
        fields = {"reason": self.reason, "set_by": self.set_by, "set_at": self.set_at, "expires_at": self.expires_at}
        return dumps({"v": FORMAT, "percentage": self.percentage, **fields})


class Flags(Protocol):
    """Look up flags in the memory of the process, without a round trip. Safe to call from any thread."""

    def enabled(self, name: str, key: str | int | None = None) -> bool:
        """Return whether the flag is on for ``key``, or for this evaluation; False if it is not set."""
        flag = self.find(name)
        if flag is None:
            return False
        return flag.sampled() if key is None else flag.includes(key)

    def find(self, name: str) -> Flag | None:
        """Return the flag, ``None`` if it is not set."""
        ...

    def names(self) -> frozenset[str]:
        """Return the names of the flags that are set."""
        ...

    def watch(self, name: str) -> None:
        """Read this flag too, from now on. A source that reads all flags ignores the call."""
        del name


class FlagSource(Flags, Protocol):
    """Flags that are read again from time to time, from where they are stored."""

    def read(self) -> bool:
        """Read all flags; return whether any has changed since the last read. May raise redis errors."""
        ...


class LayeredFlags(FlagSource):
    """Combine several sources: the first source in which a flag is set decides."""

    def __init__(self, *sources: FlagSource) -> None:
        self._sources = sources

    def find(self, name: str) -> Flag | None:
        return next((flag for source in self._sources if (flag := source.find(name)) is not None), None)

    def names(self) -> frozenset[str]:
        return frozenset(name for source in self._sources for name in source.names())

    def read(self) -> bool:
        changes = [source.read() for source in self._sources]
        return any(changes)

    def watch(self, name: str) -> None:
        for source in self._sources:
            source.watch(name)


def is_class_flag(name: str) -> bool:
    """Return whether operators set the flag on a class: its name is made by one of the functions below."""
    return name.startswith(_CLASS_PREFIXES)


def check_flag_name(name: object) -> str:
    """Return the name of a flag of the application.

    Raises:
        ValueError: the name is not allowed, or is that of a flag of a class.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(
            Sentence("{name} is not a name of a flag; allowed: {format}", name=short_repr(name), format=_NAME_FORMAT)
        )
    if is_class_flag(name):
        verbs = " | ".join(map(command, ("jobs drop", "jobs defer", "jobs pause", "jobs flags clear")))
        raise ValueError(
            Sentence("{name!r} is a flag of a class; set and clear it with {verbs}", name=name, verbs=verbs)
        )
    return name


def run_flag(worker: str) -> str:
    """Return the name of the flag that defers jobs of a class unless it is on (GitLab's ``run_sidekiq_jobs_``)."""
    return f"run_jobs_{worker}"


def drop_flag(worker: str) -> str:
    """Return the name of the flag that drops jobs of a class (GitLab's ``drop_sidekiq_jobs_``)."""
    return f"drop_jobs_{worker}"


def pause_flag(worker: str) -> str:
    """Return the name of the flag that holds jobs of a class: the manual pause."""
    return f"pause_jobs_{worker}"


def decode_flag(name: str, data: bytes) -> Flag:
    """Return the flag encoded in ``data``. Raises ValueError with the reason for malformed data."""
    try:
        value = loads(data)
    except PayloadError as error:
        raise ValueError(error.reason) from None
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004 - the value is data
    fields = cast("dict[str, Any]", value)
    if fields.get("v") != FORMAT:
        raise ValueError(f"its format v = {fields.get('v')!r} is not supported; expected {FORMAT}")
    percentage = _number(fields.get("percentage"))
    if percentage is None or not 0 <= percentage <= 100:
        raise ValueError(f"percentage = {fields.get('percentage')!r} is not a number from 0 to 100")
    set_at, expires_at = (_time(key, fields.get(key)) for key in ("set_at", "expires_at"))
    reason, set_by = (str(fields.get(key) or "") for key in ("reason", "set_by"))
    return Flag(name, percentage, reason, set_by, set_at, expires_at)


def _time(key: str, value: Any) -> float | None:
    time = _number(value)
    if time is None and value is not None:
        raise ValueError(f"{key} = {value!r} is not a time")
    return time


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    # A whole number of hundreds of digits.
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


class BackgroundValue(Generic[A]):
    """Keep the last result of a callable that is called in threads of its own.

    ``value`` is the last result, at first ``initial``. No new call starts while one hangs: threads would pile up behind
    it.
    """

    def __init__(self, name: str, callback: Callable[[], A], initial: A) -> None:
        self.value = initial
        self._name = name
        self._callback = callback
        self._started_at: float | None = None
        self._pid = 0
        self._done = threading.Event()
        self._log_limit = LogRateLimit(_LOG_INTERVAL_S)

    def refresh(self) -> None:
        """Start a call, unless one is running; return at once."""
        now = time.monotonic()
        # After a fork, the thread exists only in the parent.
        if self._started_at is not None and self._pid == os.getpid():
            if now - self._started_at >= DEADLINE_S:
                self._log_limit.warning(
                    "timeout",
                    f"{self._name} has not returned for {now - self._started_at:.0f} s; its last result is used. Shorten its calls",
                    "callback.timeout",
                    answer=str(self.value),
                )
            return
        self._started_at, self._pid = now, os.getpid()
        self._done = threading.Event()
        try:
            SupervisedThread(f"background {self._name}", self._run, self._done).start()
        except ThreadStartError:
            self._started_at = None
            self._done.set()

    def wait(self, timeout_s: float) -> None:
        """Wait for the call that is running, if there is one, for at most ``timeout_s``."""
        if self._started_at is not None:
            self._done.wait(timeout_s)

    def _run(self, done: threading.Event) -> None:
        try:
            self.value = self._callback()
        except BaseException as error:  # noqa: BLE001 - no error of the callable may stop work
            self._log_limit.error(
                "failed",
                f"{self._name} raised an error; its last result is used. Look at the error and correct the cause",
                "callback.failed",
                answer=str(self.value),
                error=error,
            )
        finally:
            self._started_at = None
            done.set()
