"""Run the bench once, from the options to the files."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from demo.folder import RunFolder
from demo.stop import StopSignal
from tests.bench import contestants, environments, machine, workloads
from tests.bench.campaign import Campaign, Plan, Results
from tests.bench.report import targets_text, write
from tests.bench.table import printed

DONE, NOTHING, INTERRUPTED = 0, 1, 130
SECONDS, QUICK_SECONDS = 3.0, 0.1


@dataclass(frozen=True)
class BenchOptions:
    """The options of the command line."""

    workloads: Sequence[str]
    contestants: Sequence[str]
    modes: Sequence[str]
    repetitions: int
    jobs: int | None
    quick: bool
    aof: bool
    delay_ms: float
    out: Path | None


def run(options: BenchOptions, root: Path) -> int:
    """Measure, report, and return the exit status."""
    stop = StopSignal()
    var = var_folder(root)
    folder = RunFolder(var / "runs")
    results = Campaign(_plan(options, var, folder), lambda: stop.asked).run()
    if not results.results:
        print("scripts/bench: nothing was measured; the lines above say why.", file=sys.stderr)
        return INTERRUPTED if results.stopped else NOTHING
    print(printed(results))
    if targets := targets_text(results):
        print(f"\n{targets}")
    for path in write(
        options.out or var / "results" / folder.run_id, results, _facts(options, results, folder.run_id, root)
    ):
        print(path)
    return INTERRUPTED if results.stopped else DONE


def var_folder(root: Path) -> Path:
    """Return the folder of what runs make."""
    return Path(os.environ.get("FRAMEWORK_VAR_DIR") or root / "var") / "bench"


def _facts(options: BenchOptions, results: Results, run_id: str, root: Path) -> dict[str, str]:
    """Return the conditions that a reader of the figures must know."""
    pins = {
        name: ", ".join(environments.pinned_versions(lock))
        for name in options.contestants
        if (lock := contestants.BY_NAME[name].lock)
    }
    sidekiq = {"sidekiq": environments.sidekiq_version()} if "sidekiq" in options.contestants else {}
    return {
        "run": run_id + (" (stopped before its end)" if results.stopped else ""),
        **machine.described(),
        "redis": results.redis + (", append-only file synced every second" if options.aof else ", no persistence"),
        "round trip added": f"{options.delay_ms:g} ms",
        "repetitions": "1, of a fraction of a second: --quick, figures mean little"
        if options.quick
        else str(options.repetitions),
        "framework": _commit(root),
        **sidekiq,
        **pins,
    }


def _commit(root: Path) -> str:
    """Return version and commit of the measured code; "dirty" when files differ from that commit."""
    known = version("application-worker")
    if not (root / ".git").exists() or not shutil.which("git"):
        return known
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--exclude", "*"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return f"{known}, commit {done.stdout.strip()}"


def _plan(options: BenchOptions, var: Path, folder: RunFolder) -> Plan:
    fastest = contestants.BY_NAME["framework"].pace
    seconds = options.jobs / fastest if options.jobs else QUICK_SECONDS if options.quick else SECONDS
    return Plan(
        workloads=[workloads.BY_NAME[name] for name in dict.fromkeys(options.workloads)],
        contestants=[contestants.BY_NAME[name] for name in dict.fromkeys(options.contestants)],
        modes=options.modes,
        repetitions=1 if options.quick else options.repetitions,
        seconds=seconds,
        quick=options.quick,
        aof=options.aof,
        delay_ms=options.delay_ms,
        environments=var / "envs",
        runs=folder.path,
    )
