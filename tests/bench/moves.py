"""Measure the processor time of Redis for moves of jobs, and for calls that are no jobs: microseconds of its main thread for each.

The fill of a drain is not part of it. Redis's own count is exact enough for some thousand jobs, and a busy machine changes it little.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from tests.bench.contestants import Launch
from tests.bench.errors import RunFailed, Stopped
from tests.bench.workload_run import WorkloadRun

JOBS, QUICK_JOBS = 8_000, 500
LONGEST_S = 300.0
SETTLED_S = 0.2
WARM = 200
"""Pushes that the client makes in addition."""


@dataclass(frozen=True)
class Drained:
    """Jobs of one kind whose move ends in the set ``place``, ``""`` for nowhere."""

    kind: str
    place: str = ""
    queue: str = "default"


DRAINS: Mapping[str, Drained] = {
    "death": Drained("dying", "dead"),
    "retry": Drained("retried", "retry"),
    "deferral": Drained("deferred", "schedule"),
    "pause": Drained("paused", "aw:paused_jobs:PausedWorker"),
    "fair_run": Drained("fair", queue="fair"),
    "plain_run": Drained("plain"),
    "deduplicated_run": Drained("deduplicated"),
    "recorded_run": Drained("recorded"),
    "batch_of_one_run": Drained("batch"),
}
SINGLE_PUSHES: Mapping[str, str] = {
    "fair_push": "fair",
    "deduplicated_push": "deduplicated",
    "recorded_push": "recorded",
}
BULK_PUSHES: Mapping[str, str] = {"fair_bulk_push": "fair", "deduplicated_bulk_push": "deduplicated"}
CALLS: Mapping[str, str] = {
    "batch_of_one_push": "batch",
    "cron_tick": "tick",
    "within_concurrent": "concurrent",
    "within_bucket": "bucket",
    "within_window": "window",
    "within_leaky": "leaky",
}

NAMES = (*DRAINS, *SINGLE_PUSHES, *BULK_PUSHES, *CALLS)


def moves(site: WorkloadRun) -> dict[str, float]:
    """Return for each move the microseconds of Redis for a job, and the number of commands, those inside of scripts too."""
    count = QUICK_JOBS if site.given.quick else JOBS
    figures: dict[str, float] = {}
    for name, drained in DRAINS.items():
        figures |= _drain(site, name, drained, count)
    for name, kind in SINGLE_PUSHES.items():
        figures |= _measured(site, name, count, partial(site.produce, "push", kind=kind, count=count - WARM))
    for name, kind in BULK_PUSHES.items():
        figures |= _measured(
            site, name, count, partial(site.produce, "fill", kind=kind, queues=["default"], count=count)
        )
    for name, kind in CALLS.items():
        figures |= _measured(site, name, count, partial(site.produce, "repeat", kind=kind, count=count))
    return figures


def _drain(site: WorkloadRun, name: str, drained: Drained, count: int) -> dict[str, float]:
    site.store.empty()
    if drained.kind == "batch":
        site.produce("repeat", kind="batch", count=count)
    else:
        site.produce("fill", kind=drained.kind, queues=["default"], count=count)

    def drain() -> None:
        with site.working(Launch(drained.kind, queues=(drained.queue,), module="framework_moves")) as running:
            if drained.place:
                _wait_for(site, lambda: site.store.members(drained.place) >= count)
            else:
                running.wait_for(count)
                _wait_for(site, lambda: not site.store.members(f"queue:{drained.queue}"))
            # The last acknowledgements are sent within milliseconds.
            time.sleep(SETTLED_S)

    return _measured(site, name, count, drain, empty=False)


def _wait_for(site: WorkloadRun, is_reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONGEST_S
    while not is_reached():
        if site.given.stopped():
            raise Stopped
        if time.monotonic() > deadline:
            raise RunFailed(f"the jobs have not moved within {LONGEST_S:g} s")
        time.sleep(0.05)


def _measured(
    site: WorkloadRun, name: str, count: int, do: Callable[[], object], *, empty: bool = True
) -> dict[str, float]:
    if empty:
        site.store.empty()
    before, commands = site.store.cpu_us(), site.store.commands()
    do()
    used = site.store.cpu_us() - before
    ran = site.store.commands() - commands
    return {
        f"{name}_us": used / count,
        f"{name}_commands": ran.total() / count,
        f"{name}_scripts": (ran["evalsha"] + ran["eval"]) / count,
    }
