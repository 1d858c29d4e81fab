"""``scripts/prove points``: apply every fault to every command of every scenario, and double faults by rounds.

Single faults come first: all scenarios with all batches. Then ``--rounds`` rounds of double faults: in round k the
process that recovers the jobs of a killed one is killed itself, before and after its k-th command, and another process
follows.
"""

import argparse
import gc
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from demo.folder import RunFolder
from demo.stop import StopSignal
from framework.store.embedded import LONGEST_SOCKET_PATH
from tests.proofs.crash_points.cases import Case, CaseRunner, Verdict
from tests.proofs.crash_points.environment import CaseEnvironment
from tests.proofs.crash_points.scenarios import SCENARIOS
from tests.proofs.crash_points.wire import WAYS, Fault

HELD, BROKEN, INTERRUPTED = 0, 1, 130
_LINE_S = 2.0
_SHOWN = 5


@dataclass
class Row:
    """The result of one scenario with one batch."""

    commands: int
    cases: int = 0
    extra: int = 0
    worst: int = 0
    broken: int = 0

    def count(self, verdict: Verdict) -> None:
        """Add one case."""
        self.cases += 1
        self.extra += verdict.extra
        self.worst = max(self.worst, verdict.extra)
        self.broken += bool(verdict.problems)


def run(root: Path, options: argparse.Namespace, stop: StopSignal) -> int:
    """Run all cases, print the table; return the exit status."""
    unknown = [name for name in options.only if name not in SCENARIOS]
    if unknown:
        print(
            f"scripts/prove: no scenario is called {unknown[0]!r}; there are: {', '.join(SCENARIOS)}", file=sys.stderr
        )
        return 2
    folder = RunFolder(Path(os.environ.get("FRAMEWORK_VAR_DIR") or root / "var").resolve() / "prove").path
    if len(os.fsencode(folder / "redis-second" / "server.sock")) > LONGEST_SOCKET_PATH:
        print(f"scripts/prove: {folder} is too long a path for a socket; set FRAMEWORK_VAR_DIR", file=sys.stderr)
        return 2
    environment = CaseEnvironment(folder)
    try:
        return _Campaign(CaseRunner(environment), options, stop).run()
    finally:
        environment.close()


class _Campaign:
    def __init__(self, runner: CaseRunner, options: argparse.Namespace, stop: StopSignal) -> None:
        self._runner, self._wish, self._stop = runner, options, stop
        self._rows: dict[tuple[str, int], Row] = {}
        self._broken: list[str] = []
        self._recoverers: dict[Case, int] = {}
        """The number of commands of the recovering process, by case of a killed process."""
        self._shown = self._began = time.monotonic()
        gc.freeze()  # forked processes share the modules loaded by now

    def run(self) -> int:
        for name in self._wish.only or SCENARIOS:
            for batch in self._wish.batch or SCENARIOS[name].batches:
                self._rows[name, batch] = Row(len(self._runner.commands(name, batch)))
        self._run_steps("single faults", list(self._singles()))
        for number in range(1, self._wish.rounds + 1):
            self._run_steps(f"double faults, round {number} of {self._wish.rounds}", list(self._doubles(number)))
        self._show()
        if self._broken:
            return BROKEN
        return INTERRUPTED if self._stop.asked else HELD

    def _singles(self) -> Iterator[Case]:
        for name, batch in self._rows:
            for case in self._runner.cases(name, batch, WAYS):
                if case.fault is not None and self._wish.at in (None, case.fault.at):
                    yield case

    def _doubles(self, number: int) -> Iterator[Case]:
        for case, commands in self._recoverers.items():
            if number <= commands:
                for way in ("die before", "die sent"):
                    yield Case(case.scenario, case.batch, case.fault, Fault(number, way))

    def _run_steps(self, what: str, cases: list[Case]) -> None:
        began = time.monotonic()
        for done, case in enumerate(cases):
            if self._stop.asked:
                return
            verdict = self._runner.run_case(case)
            self._rows[case.scenario, case.batch].count(verdict)
            if case.fault is not None and case.fault.kills and case.second is None:
                self._recoverers[case] = len(verdict.recoverer)
            if verdict.problems:
                self._broken.append(verdict.counterexample)
                if len(self._broken) <= _SHOWN:
                    print(f"\n{verdict.counterexample}", flush=True)
            self._progress(what, done + 1, len(cases), began)

    def _progress(self, what: str, done: int, all_: int, began: float) -> None:
        now = time.monotonic()
        if now - self._shown < _LINE_S and done < all_:
            return
        self._shown = now
        rate = done / max(now - began, 0.001)
        print(
            f"  {now - self._began:5.0f} s  {what}: {done:,} of {all_:,} cases, {rate:.0f} a second, "
            f"{(all_ - done) / rate:.0f} s left, {len(self._broken)} broken",
            flush=True,
        )

    def _show(self) -> None:
        head = f"{'batch':>5} {'commands':>8} {'cases':>7} {'extra runs':>10} {'worst':>5} broken"
        print(f"\n{'scenario':<14} {'what it does':<42} {head}")
        for (name, batch), row in self._rows.items():
            print(
                f"{name:<14} {SCENARIOS[name].says:<42} {batch:>5} {row.commands:>8} {row.cases:>7,} {row.extra:>10,} "
                f"{row.worst:>5} {row.broken or ''}"
            )
        cases = sum(row.cases for row in self._rows.values())
        print(f"\n{cases:,} cases in {time.monotonic() - self._began:.0f} s; {len(self._broken) or 'none'} broken.")
