"""One call of the bench, from the wish to the files."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from demo_parts.folder import RunFolder
from demo_parts.stop import StopSignal

from bench_parts import contestants, workloads
from bench_parts.campaign import Campaign, Plan
from bench_parts.table import printed

DONE, NOTHING, INTERRUPTED = 0, 1, 130
SECONDS, QUICK_SECONDS = 3.0, 0.1


@dataclass(frozen=True)
class Wish:
    """What the command line asks for."""

    workloads: Sequence[str]
    contestants: Sequence[str]
    modes: Sequence[str]
    repetitions: int
    jobs: int | None
    quick: bool
    aof: bool
    delay_ms: float
    out: Path | None


def run(wish: Wish, root: Path) -> int:
    """Measure, report, and return the exit status."""
    stop = StopSignal()
    var = Path(os.environ.get("FRAMEWORK_VAR_DIR") or root / "var") / "bench"
    folder = RunFolder(var / "runs")
    campaign = Campaign(_plan(wish, var, folder), lambda: stop.asked)
    results = campaign.run()
    print(printed(results))
    if results.stopped:
        return INTERRUPTED
    return DONE if results.results else NOTHING


def _plan(wish: Wish, var: Path, folder: RunFolder) -> Plan:
    fastest = contestants.BY_NAME["framework"].pace
    seconds = wish.jobs / fastest if wish.jobs else QUICK_SECONDS if wish.quick else SECONDS
    return Plan(
        workloads=[workloads.BY_NAME[name] for name in dict.fromkeys(wish.workloads)],
        contestants=[contestants.BY_NAME[name] for name in dict.fromkeys(wish.contestants)],
        modes=wish.modes,
        repetitions=1 if wish.quick else wish.repetitions,
        seconds=seconds,
        quick=wish.quick,
        aof=wish.aof,
        delay_ms=wish.delay_ms,
        environments=var / "envs",
        runs=folder.path,
    )
