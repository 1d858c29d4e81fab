"""Measure the cost of policies: no-op jobs of classes with one policy, with all, and with none, in one run."""

from tests.bench.contestants import Launch
from tests.bench.drains import Drain, drained
from tests.bench.errors import RunFailed
from tests.bench.pushes import pushed
from tests.bench.workload_run import WorkloadRun

PLAIN = "plain"
PACES = {
    PLAIN: 60_000,
    "health": 60_000,
    "limited": 20_000,
    "deduplicated": 20_000,
    "tracked": 20_000,
    "recorded": 5_000,
    "guidelines": 8_000,
}
"""The classes, and roughly the jobs that each runs in a second: that decides how many are pushed."""

SHORTEST_S = 0.4  # of a drain: the bench samples processor times each 50 ms
BULK_CLASSES = (PLAIN, "limited", "deduplicated", "tracked", "guidelines")
FULL_SLOTS, FULL_JOB_S = 5, 0.010

_FULL = Drain("full_limit", concurrency=50, at_most_per_s=FULL_SLOTS / FULL_JOB_S, lasting=True)


def drains(site: WorkloadRun) -> dict[str, float]:
    """Return per class the worker's processor time of a job, as a multiple of the plain class's too, and the rate."""
    found = {kind: _drain(site, kind, pace) for kind, pace in PACES.items()}
    return {
        f"{kind}_{name}": value
        for kind, figures in found.items()
        for name, value in (
            ("times", figures["worker_cpu_us"] / found[PLAIN]["worker_cpu_us"]),
            ("us", figures["worker_cpu_us"]),
            ("rate", figures["rate"]),
            ("store_us", figures["store_cpu_us"]),
        )
    }


def _drain(site: WorkloadRun, kind: str, pace: float) -> dict[str, float]:
    jobs = max(site.jobs(pace), round(SHORTEST_S * pace))
    site.store.empty()
    site.produce("fill", kind=kind, queues=["default"], count=jobs)
    with site.working(Launch(kind)) as running:
        reading = running.wait_for(jobs)
    figures = drained(site, running, reading, jobs, lasting=False)
    if "worker_cpu_us" not in figures:
        raise RunFailed(f"the drain of {jobs} {kind} jobs was too short for two samples; give more seconds")
    return figures


def pushes(site: WorkloadRun) -> dict[str, float]:
    """Return per class the processor times of producer and Redis of a push, one at a time and in bulk, and the rates."""
    figures: dict[str, float] = {}
    for action, usual, quick in (("push", 8_000, 500), ("bulk", 100_000, 5_000)):
        count = quick if site.given.quick else usual
        found = {kind: pushed(site, action, kind, count) for kind in BULK_CLASSES}
        for kind, measured in found.items():
            figures[f"{action}_{kind}_times"] = measured["cpu_us"] / found[PLAIN]["cpu_us"]
            figures[f"{action}_{kind}_us"] = measured["cpu_us"]
            figures[f"{action}_{kind}_store_us"] = measured["store_cpu_us"]
            figures[f"{action}_{kind}_rate"] = measured["rate"]
            figures[f"{action}_{kind}_share"] = measured["rate"] / found[PLAIN]["rate"]
    return figures


def prepare_full_limit(site: WorkloadRun) -> None:
    _FULL.prepare(site)


def full_limit(site: WorkloadRun) -> dict[str, float]:
    """Return the share of the slots' time that jobs use: 5 slots, 50 threads, jobs that wait 10 ms."""
    figures = _FULL.run(site)
    return {"slot_percent": 100 * figures["rate"] * FULL_JOB_S / FULL_SLOTS, **figures}
