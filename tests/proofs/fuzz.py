"""``scripts/prove fuzz``: give malicious inputs, by the million, to every reader and writer of foreign data.

Only the framework's typed errors may come out, in bounded time and memory. Each input comes from (seed, target,
number).
"""

import argparse
import json
import os
import secrets
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from demo.folder import RunFolder
from demo.stop import StopSignal
from tests.proofs.fuzz_case import TARGETS, attempt, named
from tests.proofs.fuzz_worker import AT

HELD, FOUND, WRONG_USAGE, INTERRUPTED = 0, 1, 2, 130
_LINE_S = 2.0
_POLL_S = 0.1
_HANGS_S = 30.0


def run(root: Path, options: argparse.Namespace, stop: StopSignal) -> int:
    """Try ``options.inputs`` inputs, or one; print the table; return the exit status."""
    unknown = sorted(set(options.target) - {target.name for target in TARGETS})
    if unknown:
        known = ", ".join(target.name for target in TARGETS)
        print(f"scripts/prove: no target is named {', '.join(unknown)}; there are {known}", file=sys.stderr)
        return WRONG_USAGE
    seed = options.seed if options.seed is not None else secrets.randbelow(1_000_000)
    if options.case is not None:
        return _one(seed, options)
    parent = Path(os.environ.get("FRAMEWORK_VAR_DIR") or root / "var").resolve() / "prove" / "fuzz"
    folder = RunFolder(parent).path
    print(f"Seed {seed}; findings under {os.path.relpath(folder)}", flush=True)
    started = time.monotonic()
    count = os.cpu_count() or 1
    workers = [_Worker(root, folder, [seed, first, count, options.inputs], options.target) for first in range(count)]
    try:
        _watch(workers, options.inputs, started, stop)
    finally:
        for worker in workers:
            worker.end()
    found = _summed(workers)
    found |= {"seed": seed, "seconds": round(time.monotonic() - started, 1)}
    for path in (folder / "report.json", parent / "report.json"):
        path.write_text(json.dumps(found, indent=2))
    _show(found)
    if stop.asked:
        return INTERRUPTED
    return FOUND if found["findings"] or found["inputs"] < options.inputs else HELD


class _Worker:
    """A process of the fuzzing, and its last line of progress."""

    def __init__(self, root: Path, folder: Path, numbers: list[int], targets: list[str]) -> None:
        self.progress: dict[str, Any] = {"done": 0, "outcomes": {}, "slowest": {}, "largest": {}, "findings": []}
        self._at = folder / f"at-{numbers[1]}"
        self._at.write_bytes(AT.pack(0, -1))
        self._errors = (folder / f"worker-{numbers[1]}.err").open("wb")
        temporary = folder / f"files-{numbers[1]}"
        temporary.mkdir()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.proofs.fuzz_worker", *map(str, numbers), str(self._at), *targets],
            env={**os.environ, "PYTHONPATH": str(root), "TMPDIR": str(temporary)},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        self._last, self._since = self._place(), time.monotonic()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def running(self) -> bool:
        """Return whether it runs. A hanging process is ended here, and is a finding."""
        if self._process.poll() is not None:
            return False
        place = self._place()
        if place != self._last:
            self._last, self._since = place, time.monotonic()
        if time.monotonic() - self._since > _HANGS_S:
            self._process.kill()
            return False
        return True

    def end(self) -> None:
        """End it; a process that did not end in order has found a bug."""
        asked = self._process.poll() is None
        if asked:
            self._process.terminate()
        status = self._process.wait()
        self._reader.join()
        self._errors.close()
        if status and not asked:
            index, number = self._place()
            what = f"the process ended with status {status}: it crashed, hung, or had no memory left"
            target = TARGETS[index].name
            self.progress["findings"].append(
                [target, number, what, "", "", Path(self._errors.name).read_text()[-3_000:]]
            )

    def _place(self) -> tuple[int, int]:
        index, number = AT.unpack(self._at.read_bytes())
        return index, number

    def _read(self) -> None:
        assert self._process.stdout is not None  # noqa: S101
        with self._process.stdout as lines:
            for line in lines:
                self.progress = json.loads(line)


def _watch(workers: list[_Worker], inputs: int, started: float, stop: StopSignal) -> None:
    shown = started
    while not stop.wait(_POLL_S):
        running = [worker.running for worker in workers]
        if not any(running):
            return
        now = time.monotonic()
        if now - shown < _LINE_S:
            continue
        shown = now
        done = sum(worker.progress["done"] for worker in workers)
        findings = sum(len(worker.progress["findings"]) for worker in workers)
        rate = done / (now - started)
        left = f"about {(inputs - done) / rate:,.0f} s left" if rate else ""
        print(
            f"  {now - started:5.0f} s  {done:>10,} of {inputs:,} inputs, {rate:,.0f} a second, {findings} findings; {left}",
            flush=True,
        )


def _summed(workers: list[_Worker]) -> dict[str, Any]:
    outcomes: dict[str, Counter[str]] = {target.name: Counter() for target in TARGETS}
    slowest: dict[str, list[Any]] = {}
    largest: dict[str, list[Any]] = {}
    findings: dict[tuple[str, str, str], list[Any]] = {}
    for worker in workers:
        for name, counts in worker.progress["outcomes"].items():
            outcomes[name].update(counts)
        for name, (seconds, number) in worker.progress["slowest"].items():
            slowest[name] = max(slowest.get(name, [0.0, 0]), [seconds, number])
        for name, (memory, number) in worker.progress["largest"].items():
            largest[name] = max(largest.get(name, [0, 0]), [memory, number])
        for target, number, what, where, *rest in worker.progress["findings"]:
            findings.setdefault((target, where, what[:40]), [target, number, what, where, *rest])
    return {
        "inputs": sum(worker.progress["done"] for worker in workers),
        "outcomes": {name: dict(counts.most_common()) for name, counts in outcomes.items() if counts},
        "slowest": slowest,
        "largest": largest,
        "findings": list(findings.values()),
    }


def _show(found: dict[str, Any]) -> None:
    print(f"\n  {'target':14} {'inputs':>10} {'slowest':>9} {'largest':>9}   outcomes")
    for name, counts in found["outcomes"].items():
        seconds, _ = found["slowest"].get(name, (0.0, 0))
        memory, _ = found["largest"].get(name, (0, 0))
        words = ", ".join(f"{word} {count:,}" for word, count in counts.items())
        print(f"  {name:14} {sum(counts.values()):>10,} {seconds * 1000:>6,.0f} ms {memory / 1e6:>6,.1f} MB   {words}")
    print(f"\n  {found['inputs']:,} inputs in {found['seconds']:,.0f} s, seed {found['seed']}")
    for target, number, what, where, given, trace in found["findings"]:
        print(
            f"\nFOUND by `scripts/prove fuzz --seed {found['seed']} --target {target} --case {number}`: {what}\n  {where}"
        )
        print(f"  given: {given[:300]}\n{trace}")
    if not found["findings"]:
        print("\nNothing came out but results and typed errors.")


def _one(seed: int, options: argparse.Namespace) -> int:
    if len(options.target) != 1:
        print("scripts/prove: --case needs the one --target that it is of", file=sys.stderr)
        return WRONG_USAGE
    tried = attempt(named(options.target[0]), seed, options.case)
    print(
        f"{tried.outcome} after {tried.seconds * 1000:.1f} ms of processor time, {tried.memory / 1e6:.1f} MB of memory"
    )
    if tried.finding is not None:
        print(f"{tried.finding.what}\n  {tried.finding.where}\n  given: {tried.finding.given}\n{tried.finding.trace}")
    return FOUND if tried.finding is not None else HELD
