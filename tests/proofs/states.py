"""Run histories of whole worker processes, made by hypothesis and checked after every command: the long run of
``machine``.

The run consists of rounds, each with a seed of its own, so that a failed round can be repeated without the others.
"""

import argparse
import multiprocessing
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from demo.folder import RunFolder
from demo.stop import StopSignal
from framework.store.embedded import LONGEST_SOCKET_PATH
from tests.proofs.machine.rules import machine_on
from tests.proofs.machine.servers import SHARDS
from tests.proofs.machine.simulated_cluster import SimulatedCluster
from tests.servers.guarded import GuardedServer

HELD, BROKEN, WRONG_USAGE, INTERRUPTED = 0, 1, 2, 130
ROUND = 100
"""The number of histories of one seed."""

_TELL_S = 2.0
_POLL_S = 0.1


class Round(NamedTuple):
    """Some histories with one seed, and the number of steps of each."""

    seed: int
    examples: int
    steps: int


class Found(NamedTuple):
    """A broken invariant, and the program that breaks it."""

    round: Round
    text: str


def run(root: Path, options: argparse.Namespace, stop: StopSignal) -> int:
    """Run ``options.examples`` histories on ``options.jobs`` processes; return the exit status."""
    if min(options.examples, options.steps, options.jobs) < 1:
        print("scripts/prove: --examples, --steps and --jobs must be at least 1", file=sys.stderr)
        return WRONG_USAGE
    var = Path(os.environ.get("FRAMEWORK_VAR_DIR") or root / "var").resolve()
    folder = RunFolder(var / "prove" / "states").path
    if len(os.fsencode(folder / "00" / "second" / "server.sock")) > LONGEST_SOCKET_PATH:
        print(f"scripts/prove: {folder} is too long a path for a socket; set FRAMEWORK_VAR_DIR", file=sys.stderr)
        return WRONG_USAGE
    for name in [name for name in os.environ if name.startswith(("FRAMEWORK_", "REDIS_URL"))]:
        del os.environ[name]
    first = options.seed if options.seed is not None else secrets.randbelow(1_000_000)
    print(f"Seed {first}; {options.examples:,} histories of {options.steps} steps", flush=True)
    children = _ChildProcesses(folder, _rounds(first, options), options.jobs)
    try:
        found = children.watch(stop)
    finally:
        children.end()
    return _print_end(children, found, interrupted=stop.asked)


def _rounds(first: int, options: argparse.Namespace) -> list[Round]:
    starts = range(0, options.examples, ROUND)
    return [Round(first + n, min(ROUND, options.examples - start), options.steps) for n, start in enumerate(starts)]


class _ChildProcesses:
    """Child processes, each with two servers of its own, that run round after round."""

    def __init__(self, folder: Path, rounds: list[Round], children: int) -> None:
        fork: Any = multiprocessing.get_context("fork")  # the command has no suffix, so it cannot be imported again
        self._found, self._done, self._checked = fork.SimpleQueue(), fork.Value("q", 0), fork.Value("q", 0)
        self._rounds = rounds
        self._next = fork.Value("q", 0)
        self._began = time.monotonic()
        count = min(children, len(rounds))
        self._children = [fork.Process(target=self._work, args=(folder / f"{n:02}",)) for n in range(count)]
        for child in self._children:
            child.start()

    @property
    def done(self) -> int:
        """Return the number of histories that have ended."""
        return int(self._done.value)

    @property
    def checked(self) -> int:
        """Return how often the invariants were checked."""
        return int(self._checked.value)

    @property
    def seconds(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self._began

    def watch(self, stop: StopSignal) -> Found | None:
        """Wait for the end of all rounds, or for the first finding, and print the progress."""
        printed = self._began
        while not stop.asked and self._found.empty() and any(child.is_alive() for child in self._children):
            stop.wait(_POLL_S)
            if time.monotonic() - printed >= _TELL_S:
                printed = time.monotonic()
                self._print_progress()
        for number, child in enumerate(self._children):
            if child.exitcode not in (None, 0) and self._found.empty() and not stop.asked:
                self._found.put(Found(self._rounds[0], f"process {number} ended with {child.exitcode}"))
        return None if self._found.empty() else self._found.get()

    def end(self) -> None:
        """End every child process; the servers end with their process."""
        for child in self._children:
            child.terminate()
        for child in self._children:
            child.join()

    def _print_progress(self) -> None:
        wanted = sum(one.examples for one in self._rounds)
        rate = self.done / self.seconds
        left = f"{(wanted - self.done) / rate:,.0f} s left" if rate else ""
        print(
            f"  {self.done:,} of {wanted:,} histories, {rate:.1f}/s, {self.checked:,} instants checked, {left}",
            flush=True,
        )

    def _work(self, folder: Path) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process ends this one
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        folder.mkdir()
        with ExitStack() as stack:
            servers = {name: stack.enter_context(GuardedServer(folder / name)) for name in SHARDS}
            cluster = SimulatedCluster(folder, servers)
            cluster.open()
            stack.callback(cluster.close)
            while (one := self._take()) is not None:
                found = run_round(cluster, one, lambda: self._count(cluster))
                if found is not None:
                    self._found.put(found)
                    return

    def _take(self) -> Round | None:
        with self._next.get_lock():
            number, self._next.value = self._next.value, self._next.value + 1
        return self._rounds[number] if number < len(self._rounds) else None

    def _count(self, cluster: SimulatedCluster) -> None:
        with self._done.get_lock():
            self._done.value += 1
        with self._checked.get_lock():
            self._checked.value += cluster.checked
        cluster.checked = 0


def run_round(cluster: SimulatedCluster, one: Round, after_each: Callable[[], None]) -> Found | None:
    """Run the histories of one seed; return the shortest failing history."""
    machine = machine_on(cluster)
    teardown = machine.teardown

    def counted(self: Any) -> None:
        try:
            teardown(self)
        finally:
            after_each()

    machine.teardown = counted  # type: ignore[method-assign]
    how = settings(
        max_examples=one.examples,
        stateful_step_count=one.steps,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    try:
        run_state_machine_as_test(seed(one.seed)(machine), settings=how)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what was looked for
        notes = "\n".join(getattr(error, "__notes__", []))
        return Found(one, f"{type(error).__name__}: {error}\n\n{notes}\n\nWhat happened:\n" + "\n".join(cluster.trace))
    return None


def _print_end(children: _ChildProcesses, found: Found | None, *, interrupted: bool) -> int:
    if found is not None:
        again = f"scripts/prove states --seed {found.round.seed} --examples {found.round.examples} --steps {found.round.steps}"
        print(f"\n{found.text}\n\nAgain: {again}", flush=True)
        return BROKEN
    print(f"\n  histories                    {children.done:>12,} ({children.done / children.seconds:.1f}/s)")
    print(f"  instants checked              {children.checked:>12,}")
    print(f"  seconds                      {children.seconds:>12,.0f}")
    print("  invariants broken                       0" if not interrupted else "  interrupted", flush=True)
    return INTERRUPTED if interrupted else HELD
