"""Make one input from (seed, target, number), so that it can be repeated, and try it within bounds of time and memory."""

import os
import time
import traceback
from contextvars import copy_context
from random import Random
from typing import NamedTuple

from tests.proofs import fuzz_output, fuzz_text, fuzz_wire
from tests.proofs.fuzz_target import Target

TARGETS = (*fuzz_wire.TARGETS, *fuzz_text.TARGETS, *fuzz_output.TARGETS)

LONGEST_S = 0.5
"""The processor time that one input may take."""
MOST_BYTES = 64 << 20
"""The peak of resident memory that one input may take, in any allocator."""

_SHOWN = 1_000


class Finding(NamedTuple):
    """A bug, and how to see it again: ``scripts/prove fuzz --seed SEED --target TARGET --case NUMBER``."""

    target: str
    number: int
    what: str
    where: str
    given: str
    trace: str


class Attempt(NamedTuple):
    """The result of one input."""

    outcome: str
    seconds: float
    memory: int
    finding: Finding | None


def named(name: str) -> Target:
    """Return the target of this name."""
    return next(target for target in TARGETS if target.name == name)


class Peak:
    """The peak of this process's resident memory since the last ``begin``, as the kernel measures it: Rust's memory
    counts too.
    """

    def __init__(self) -> None:
        self._status = os.open("/proc/self/status", os.O_RDONLY)
        self._reset = os.open("/proc/self/clear_refs", os.O_WRONLY)
        self._before = 0

    def begin(self) -> None:
        """Start measuring."""
        os.write(self._reset, b"5")
        self._before = self._read(b"VmRSS:")

    def taken(self) -> int:
        """Return by how many bytes the peak has risen."""
        return max(0, self._read(b"VmHWM:") - self._before)

    def _read(self, name: bytes) -> int:
        status = os.pread(self._status, 4_096, 0)
        return int(status.partition(name)[2].split(None, 1)[0]) << 10


_peak = Peak()


def attempt(target: Target, seed: int, number: int) -> Attempt:
    """Make the input and try it."""
    given = target.make(Random(f"{seed} {target.name} {number}"))
    shown = _shown(given)
    _peak.begin()
    started = time.thread_time()
    try:
        outcome = copy_context().run(target.check, given)  # the context that a job sets there stays there
    except BaseException as error:  # noqa: BLE001 - anything that gets here is a finding
        found = _finding(target, number, error, shown)
        return Attempt("finding", time.thread_time() - started, _peak.taken(), found)
    seconds, memory = time.thread_time() - started, _peak.taken()
    what = None
    if seconds > LONGEST_S:
        what = f"it took {seconds:.1f} s of processor time"
    elif memory > MOST_BYTES:
        what = f"it took {memory >> 20} MiB"
    return Attempt(outcome, seconds, memory, Finding(target.name, number, what, "", shown, "") if what else None)


def _finding(target: Target, number: int, error: BaseException, shown: str) -> Finding:
    frames = traceback.extract_tb(error.__traceback__)
    where = next((f"{one.filename}:{one.lineno}" for one in reversed(frames) if "/framework/" in one.filename), "")
    what = ascii(f"{type(error).__name__}: {_message_of(error)}")[1:_SHOWN]
    trace = "".join(traceback.format_tb(error.__traceback__)[-6:])
    return Finding(target.name, number, what, where, shown, ascii(trace)[1:-1].replace("\\n", "\n"))


def _message_of(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:  # noqa: BLE001 - one of the inputs
        return "?"


def _shown(given: object) -> str:
    try:
        return ascii(given)[:_SHOWN]
    except BaseException as error:  # noqa: BLE001 - inputs are made to do that
        return f"<{type(error).__name__}>"
