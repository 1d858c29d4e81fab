"""Measure drains: the rate at which a filled queue empties, by the meter and not by a clock around the boot."""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.bench.contestants import Launch
from tests.bench.errors import RunFailed
from tests.bench.meters import Reading
from tests.bench.workload_run import Running, WorkloadRun


@dataclass(frozen=True)
class Drain:
    """Jobs of one kind; their own work allows ``at_most_per_s`` (which only decides how many are pushed)."""

    kind: str
    concurrency: int = 10
    at_most_per_s: float = float("inf")
    lasting: bool = False
    """Whether jobs take a while: the clock then starts with the first start, not with the first end."""

    def prepare(self, site: WorkloadRun) -> None:
        """Fill the queue with the contestant's own client, and keep a copy."""
        if self.kind not in site.contestant.queueless:
            site.produce("fill", kind=self.kind, queues=["default"], count=self._jobs(site))
            site.store.keep()

    def run(self, site: WorkloadRun) -> dict[str, float]:
        """Return the figures of one drain of the kept queue."""
        jobs = self._jobs(site)
        site.store.restore()
        with site.working(Launch(self.kind, self.concurrency)) as running:
            reading = running.wait_for(jobs)
        return drained(site, running, reading, jobs, lasting=self.lasting)

    def _jobs(self, site: WorkloadRun) -> int:
        return site.jobs(self.at_most_per_s)


NOOP = Drain("noop")
CPU = Drain("cpu", at_most_per_s=6_000)
IO = Drain("io", concurrency=50, at_most_per_s=5_000, lasting=True)
ASYNC = Drain("async", concurrency=1_000, at_most_per_s=20_000, lasting=True)
SHORT_ASYNC = Drain("async25", concurrency=1_000, at_most_per_s=40_000, lasting=True)
PAYLOAD = Drain("payload", at_most_per_s=500)


def drained(site: WorkloadRun, running: Running, reading: Reading, jobs: int, *, lasting: bool) -> dict[str, float]:
    """Return the figures of a finished drain whose worker has ended."""
    if reading.count < 2 or reading.last <= reading.first:
        raise RunFailed(f"{reading.count} of {jobs} jobs were done, so there is no rate")
    figures = {"rate": rate(reading, lasting=lasting), "jobs": float(reading.count), **per_job(running)}
    if reading.count < jobs:
        figures["left_at_time_limit"] = float(jobs - reading.count)
    extra = running.meters.read().count - jobs
    if extra > 0 and not site.contestant.queueless:
        raise RunFailed(f"{extra} of {jobs} jobs ran twice")
    if site.contestant.lines:
        check_lines(running.children[0].log, jobs)
    return figures


def rate(reading: Reading, *, lasting: bool) -> float:
    """Return jobs per second between the first and the last stamp: the first job counts only if it started in that
    time.
    """
    return (reading.count - (not lasting)) / (reading.last - reading.first)


def per_job(running: Running) -> dict[str, float]:
    """Return processor time per job (microseconds) of worker and store, between the first and the last sample."""
    if len(running.samples) < 2:
        return {}
    first, last = running.samples[0], running.samples[-1]
    jobs = last.count - first.count
    return {
        "worker_cpu_us": (last.worker_cpu_s - first.worker_cpu_s) / jobs * 1e6,
        "store_cpu_us": (last.store_cpu_s - first.store_cpu_s) / jobs * 1e6,
    }


def check_lines(log: Path, jobs: int) -> None:
    """Raise RunFailed unless the log has exactly one start and one done line of each of ``jobs`` jobs; then remove it."""
    seen: dict[str, Counter[str]] = {"start": Counter(), "done": Counter()}
    with log.open("rb") as lines:
        for line in lines:
            entry = json.loads(line)
            # Sidekiq's lines have the status as their message, and the job in a context.
            status = entry.get("job_status") or entry.get("msg")
            if status in seen:
                seen[status][entry.get("jid") or entry["ctx"]["jid"]] += 1
    for status, jids in seen.items():
        if len(jids) != jobs or jids.total() != jobs:
            raise RunFailed(f"{jids.total()} {status} lines of {len(jids)} jobs for {jobs} jobs; see {log}")
    if seen["start"] != seen["done"]:
        raise RunFailed(f"start and done lines are not of the same jobs; see {log}")
    log.unlink()
