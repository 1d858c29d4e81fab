"""``scripts/prove history``: replay append-only files, and check after each step that no job was in no key, or in two."""

import argparse
import os
import secrets
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from demo.folder import RunFolder
from demo.stop import StopSignal
from tests.proofs.aof import HistoryError
from tests.proofs.keyspace import UnknownCommandError
from tests.proofs.mixed_load import MixedLoadRun
from tests.proofs.prover import Verdict, prove_all

HELD, BROKEN, UNPROVEN, INTERRUPTED = 0, 1, 2, 130
_LINE_S = 2.0
_SHOWN = 5


def run(root: Path, options: argparse.Namespace, stop: StopSignal) -> int:
    """Replay the histories of ``options.places``, or make one; return the exit status (2: no complete history)."""
    places: list[Path] = options.places
    if not places:
        folder = RunFolder(Path(os.environ.get("FRAMEWORK_VAR_DIR") or root / "var").resolve() / "prove").path
        seed = options.seed if options.seed is not None else secrets.randbelow(1_000_000)
        print(f"Seed {seed}; {options.run:g} s of kills, retries, jobs for later and lost replies", flush=True)
        mixed = MixedLoadRun(root, folder, seed=seed, progress=partial(print, flush=True))
        mixed.run(options.run, stopped=lambda: stop.asked)
        places = [mixed.data]
        print(f"  {mixed.kills} kills; the history is {os.path.relpath(mixed.data)}", flush=True)
    progress = Progress(stop)
    try:
        verdicts = prove_all(places, progress.print_progress)
    except (HistoryError, UnknownCommandError) as error:
        print(f"\nNot proven: {error}")
        return UNPROVEN
    except KeyboardInterrupt:
        return INTERRUPTED
    show(verdicts)
    if any(verdict.broken for verdict in verdicts):
        return BROKEN
    return INTERRUPTED if stop.asked else HELD


class Progress:
    """Prints a line every 2 s while a history is replayed."""

    def __init__(self, stop: StopSignal) -> None:
        self._stop = stop
        self._shown = self._started = time.monotonic()

    def print_progress(self, verdict: Verdict, done: int, size: int) -> None:
        """Print the progress. Raises KeyboardInterrupt when it must stop."""
        now = time.monotonic()
        if self._stop.asked:
            raise KeyboardInterrupt
        if now - self._shown < _LINE_S:
            return
        self._shown = now
        rate = verdict.commands / (now - self._started)
        left = (now - self._started) * (size - done) / max(done, 1)
        print(
            f"  {verdict.commands:>12,} commands, {done / max(size, 1):4.0%}, {rate:,.0f}/s, {left:.0f} s left",
            flush=True,
        )


def show(verdicts: Sequence[Verdict]) -> None:
    """Print a table for each history, then its first violations."""
    for verdict in verdicts:
        print(f"\nHistory of {os.path.relpath(verdict.place)}")
        for name, value in rows(verdict):
            print(f"  {name:<46} {value:>16}")
        for violation in verdict.violations[:_SHOWN]:
            print(f"\n{violation}")
    broken = sum(verdict.broken for verdict in verdicts)
    instants = sum(verdict.groups for verdict in verdicts)
    if broken:
        print(f"\n{broken:,} jobs broke an invariant.")
    else:
        print(f"\nAt none of {instants:,} instants was an accepted, unfinished job in no key, or in two.")


def rows(verdict: Verdict) -> list[tuple[str, str]]:
    """Return the rows of the table of one history."""
    marks = "checked against end marks" if verdict.marked else "no end marks in this history"
    return [
        ("commands", f"{verdict.commands:,}"),
        ("instants (between groups)", f"{verdict.groups:,}"),
        ("jobs", f"{verdict.jobs:,}"),
        *((f"  {end}", f"{count:,}") for end, count in sorted(verdict.ends.items())),
        *((f"  in {key} at the end", f"{count:,}") for key, count in sorted(verdict.left.items())),
        *((f"  most slots in {key}", f"{count:,}") for key, count in sorted(verdict.slots.items())),
        ("acknowledgements", marks),
        ("violations", f"{verdict.broken:,}"),
        ("commands/s", f"{verdict.commands / max(verdict.seconds, 1e-9):,.0f}"),
        *([("dropped at the torn end", verdict.torn.reason)] if verdict.torn else []),
    ]
