"""One input: made from (seed, target, number), so that it can be had again, and tried within bounds of time and memory."""

import time
import traceback
import tracemalloc
from contextvars import copy_context
from random import Random
from typing import NamedTuple

from prove_parts import fuzz_telling, fuzz_text, fuzz_wire
from prove_parts.fuzz_target import Target

TARGETS = (*fuzz_wire.TARGETS, *fuzz_text.TARGETS, *fuzz_telling.TARGETS)

LONGEST_S = 0.5
"""Processor time that one input may take."""
MOST_BYTES = 64 << 20
"""Memory that one input may take at its peak."""

_SHOWN = 1_000


class Finding(NamedTuple):
    """What must not happen, and how to see it again: ``scripts/prove fuzz --seed SEED --target TARGET --case NUMBER``."""

    target: str
    number: int
    what: str
    where: str
    given: str
    trace: str


class Attempt(NamedTuple):
    """What became of one input."""

    outcome: str
    seconds: float
    finding: Finding | None


def named(name: str) -> Target:
    """Return the target of this name."""
    return next(target for target in TARGETS if target.name == name)


def attempt(target: Target, seed: int, number: int, *, traced: bool = False) -> Attempt:
    """Make the input and try it; ``traced`` measures its memory too, which takes its time."""
    given = target.make(Random(f"{seed} {target.name} {number}"))
    shown = _shown(given)
    if traced:
        tracemalloc.start()
    started = time.thread_time()
    try:
        outcome = copy_context().run(target.check, given)  # whatever a job's context is set to there stays there
    except BaseException as error:  # noqa: BLE001 - anything that gets here is a finding
        return Attempt("finding", time.thread_time() - started, _finding(target, number, error, shown))
    finally:
        peak = tracemalloc.get_traced_memory()[1] if traced else 0
        tracemalloc.stop()
    seconds = time.thread_time() - started
    what = None
    if seconds > LONGEST_S and not traced:
        what = f"it took {seconds:.1f} s of processor time"
    elif peak > MOST_BYTES:
        what = f"it took {peak >> 20} MiB"
    return Attempt(outcome, seconds, Finding(target.name, number, what, "", shown, "") if what else None)


def _finding(target: Target, number: int, error: BaseException, shown: str) -> Finding:
    frames = traceback.extract_tb(error.__traceback__)
    where = next((f"{one.filename}:{one.lineno}" for one in reversed(frames) if "/framework/" in one.filename), "")
    what = ascii(f"{type(error).__name__}: {_said(error)}")[1:_SHOWN]
    trace = "".join(traceback.format_tb(error.__traceback__)[-6:])
    return Finding(target.name, number, what, where, shown, ascii(trace)[1:-1].replace("\\n", "\n"))


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:  # noqa: BLE001 - one of the inputs
        return "?"


def _shown(given: object) -> str:
    try:
        return ascii(given)[:_SHOWN]
    except BaseException as error:  # noqa: BLE001 - inputs are made to do that
        return f"<{type(error).__name__}>"
