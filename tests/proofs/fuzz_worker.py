"""A process of ``scripts/prove fuzz``: tries every STEP-th input and reports its progress each half second, as a line
of JSON.

The current input is in a mapped file, so that a crash or a hang is reported with its input.
"""

import json
import mmap
import resource
import struct
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from random import Random
from typing import Any

from tests.proofs.fuzz_case import TARGETS, Finding, attempt
from tests.proofs.fuzz_output import stop_ruby
from tests.proofs.fuzz_target import Target
from tests.proofs.fuzz_text import remove_folder

AT = struct.Struct("@qq")
"""Position of the target, number of the input."""

_MOST_MEMORY = 2 << 30
_LINE_S = 0.5
_MOST_FINDINGS = 20


class Work:
    """The inputs tried so far."""

    def __init__(self) -> None:
        self.done = 0
        self.outcomes: dict[str, Counter[str]] = defaultdict(Counter)
        self.slowest: dict[str, tuple[float, int]] = {}
        self.largest: dict[str, tuple[int, int]] = {}
        self.findings: dict[tuple[str, str, str], Finding] = {}

    def try_input(self, target: Target, seed: int, number: int) -> None:
        """Try one input."""
        found = attempt(target, seed, number)
        self.done += 1
        self.outcomes[target.name][found.outcome] += 1
        if found.seconds > self.slowest.get(target.name, (0.0, 0))[0]:
            self.slowest[target.name] = (found.seconds, number)
        if found.memory > self.largest.get(target.name, (0, 0))[0]:
            self.largest[target.name] = (found.memory, number)
        if found.finding is not None and len(self.findings) < _MOST_FINDINGS:
            key = (target.name, found.finding.where, found.finding.what[:40])
            self.findings.setdefault(key, found.finding)

    def print_progress(self) -> None:
        """Print the progress line."""
        line: dict[str, Any] = {
            "done": self.done,
            "outcomes": self.outcomes,
            "slowest": self.slowest,
            "largest": self.largest,
            "findings": list(self.findings.values()),
        }
        print(json.dumps(line), flush=True)


def main() -> None:
    """Run. Arguments: seed, first number, step, inputs, the file for the current input, names of targets."""
    seed, first, step, inputs = map(int, sys.argv[1:5])
    names = sys.argv[6:]
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
    with Path(sys.argv[5]).open("r+b") as file:
        at = mmap.mmap(file.fileno(), AT.size)
    chosen = [(index, target) for index, target in enumerate(TARGETS) if not names or target.name in names]
    weighted_targets = [pair for pair in chosen for _ in range(pair[1].weight)]
    Random(seed).shuffle(weighted_targets)
    work, printed = Work(), time.monotonic()
    try:
        for number in range(first, inputs, step):
            index, target = weighted_targets[number % len(weighted_targets)]
            AT.pack_into(at, 0, index, number)
            work.try_input(target, seed, number)
            if time.monotonic() - printed > _LINE_S:
                printed = time.monotonic()
                work.print_progress()
        work.print_progress()
    finally:
        stop_ruby()
        remove_folder()


if __name__ == "__main__":
    main()
