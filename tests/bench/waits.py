"""Measure an idle process: the delay to the start of a job, and the cost of waiting."""

import time

from tests.bench.contestants import Contestant, Launch
from tests.bench.errors import Stopped
from tests.bench.figures import percentile
from tests.bench.machine import cpu_seconds, resident_mb
from tests.bench.workload_run import Running, WorkloadRun

PERIOD_S = 0.020
SETTLE_S = 12.0
"""From the last job of the warm-up to the first second that counts: by then its statistics are written, every 10 s at most."""
WARM_JOBS = 20
PROBES = 5  # no-op jobs that the client of a latency run pushes first
ONE_QUEUE = ("default",)
TEN_QUEUES = ("default", *(f"queue_{number}" for number in range(1, 10)))


def latency(site: WorkloadRun) -> dict[str, float]:
    """Measure milliseconds from just before the push to the start of the job."""
    return _latency(site, ONE_QUEUE)


def latency_ten_queues(site: WorkloadRun) -> dict[str, float]:
    """Measure the same with jobs going to ten queues in turn."""
    return _latency(site, TEN_QUEUES)


def latency_of_policies(site: WorkloadRun) -> dict[str, float]:
    """Measure the same for a limited and deduplicated class, beside a plain class."""
    plain, guarded = (_latency(site, ONE_QUEUE, kind) for kind in ("latency", "guarded_latency"))
    shown = {
        f"{name}_{figure}": part[figure] for name, part in (("plain", plain), ("guarded", guarded)) for figure in part
    }
    return {"times": guarded["p50"] / plain["p50"], **shown}


def idle(site: WorkloadRun) -> dict[str, float]:
    """Measure processor, commands and memory of a process without jobs."""
    return _idle(site, ONE_QUEUE)


def idle_ten_queues(site: WorkloadRun) -> dict[str, float]:
    """Measure the same, with ten queues."""
    return _idle(site, TEN_QUEUES)


def admits_ten_queues(contestant: Contestant) -> bool:
    return contestant.many_queues


def admits_idle(contestant: Contestant) -> bool:
    # The bare loop has neither heartbeat nor schedule: its idle cost means nothing.
    return not contestant.lines and not contestant.queueless


def _latency(site: WorkloadRun, queues: tuple[str, ...], kind: str = "latency") -> dict[str, float]:
    count = 50 if site.given.quick else 500
    site.store.empty()
    with site.working(Launch("latency", queues=queues)) as running:
        _warm_up(site, running)
        # Only clients of the framework have kinds other than the first.
        other = {} if kind == "latency" else {"kind": kind}
        site.produce("latency", queues=list(queues), count=count, period_s=PERIOD_S, **other)
        running.wait_for(WARM_JOBS + PROBES + count)
        waited = [1000 * value for notes in running.meters.notes() for value in notes[WARM_JOBS:]]
    return {
        "p50": percentile(waited, 0.5),
        "p95": percentile(waited, 0.95),
        "p99": percentile(waited, 0.99),
        "max": max(waited),
    }


def _idle(site: WorkloadRun, queues: tuple[str, ...]) -> dict[str, float]:
    window_s = 1.0 if site.given.quick else 10.0
    site.store.empty()
    with site.working(Launch("latency", queues=queues)) as running:
        _warm_up(site, running)
        _sleep(site, 0.2 if site.given.quick else SETTLE_S)
        began, used, commands = time.monotonic(), cpu_seconds(running.pids), site.store.commands()
        _sleep(site, window_s)
        spent = cpu_seconds(running.pids) - used
        after = site.store.commands()
        lasted = time.monotonic() - began
        after.subtract(commands)
        figures = {
            "cpu_percent": 100 * spent / lasted,
            "commands": after.total() / lasted,
            "resident_mb": resident_mb(running.pids),
            "processes": float(len(running.pids)),
        }
    return figures | {f"command {name}": count / lasted for name, count in after.most_common(8) if count}


def _warm_up(site: WorkloadRun, running: Running) -> None:
    """Wait until the process has booted and run some jobs."""
    site.produce("fill", kind="latency", queues=["default"], count=WARM_JOBS)
    running.wait_for(WARM_JOBS)


def _sleep(site: WorkloadRun, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        if site.given.stopped():
            raise Stopped
        time.sleep(min(left, 0.5))
