"""Measure pushes: one producer on the worker's core, no worker."""

from tests.bench.contestants import Contestant
from tests.bench.workload_run import WorkloadRun

WARM_PUSHES = {"push": 200, "bulk": 1_000}
"""Pushes of ``jobs/client.py`` before its clock starts."""


def single(site: WorkloadRun) -> dict[str, float]:
    """Return jobs per second of one client that pushes one at a time."""
    return _pushed(site, "push", 500 if site.given.quick else 12_000)


def bulk(site: WorkloadRun) -> dict[str, float]:
    """Return jobs per second of one client that pushes 1,000 a call."""
    return _pushed(site, "bulk", 5_000 if site.given.quick else 200_000)


def _pushed(site: WorkloadRun, action: str, count: int) -> dict[str, float]:
    return pushed(site, action, "noop", count)


def pushed(site: WorkloadRun, action: str, kind: str, count: int) -> dict[str, float]:
    """Push jobs, and return the client's figures and the processor time of Redis per push, in microseconds."""
    site.store.empty()
    before = site.store.cpu_s()
    figures = site.produce(action, cores=site.given.cores.worker, kind=kind, count=count)
    used = site.store.cpu_s() - before
    # Redis also has the pushes before the client's clock starts.
    return {**figures, "store_cpu_us": used / (count + WARM_PUSHES[action]) * 1e6}


def admits_single(contestant: Contestant) -> bool:
    # Job lines are the worker's; and one of several workers of the same client represents all.
    return not contestant.lines and not contestant.same_client


def admits_bulk(contestant: Contestant) -> bool:
    return admits_single(contestant) and contestant.bulk
