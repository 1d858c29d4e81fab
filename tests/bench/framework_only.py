"""Measure properties of the framework only: shards, long queues, many queues, memory, fairness."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from tests.bench.contestants import SHARDS, Launch
from tests.bench.drains import rate
from tests.bench.errors import RunFailed
from tests.bench.figures import percentile
from tests.bench.machine import resident_mb
from tests.bench.meters import Reading
from tests.bench.workload_run import CLIENT_S, Sample, WorkloadRun

BACKLOG, SMALL_BACKLOG = 1_000_000, 10_000
MANY_QUEUES, FILLED_QUEUES = 1_000, 10
LONG_DRAIN_S = 180.0
PROCESSES, SLOTS = 2, 10
FAIR_PERIOD_S, FAIR_BURST = 0.1, 50
SLOW_EVERY, SLOW_S, FAST_S = 20, 0.5, 0.001
"""20 threads run about 770 such jobs a second; 500 come: mostly some thread is free."""


def one_shard(site: WorkloadRun) -> dict[str, float]:
    return _shards(site, 1)


def four_shards(site: WorkloadRun) -> dict[str, float]:
    """Measure a Redis and a process per shard."""
    return _shards(site, 4)


def _shards(site: WorkloadRun, count: int) -> dict[str, float]:
    jobs = site.jobs(float("inf")) // count
    site.store.empty()
    others = site.extra_stores(len(SHARDS) - 1)
    for store in others:
        store.empty()
    ports = {name: store.port for name, store in zip(SHARDS[1:], others, strict=True)}
    names = SHARDS[:count]
    for name in names:
        site.produce("fill", ports=ports, kind=name, queues=["default"], count=jobs)
    with site.working(*(Launch("noop", shard=name) for name in names), ports=ports, stores=others) as running:
        reading = running.wait_for(jobs * count)
    return {"rate": rate(reading, lasting=False), "jobs": float(reading.count)}


def backlog(site: WorkloadRun) -> dict[str, float]:
    """Measure the cost of a job while a million wait, and while ten thousand do: one drain, two parts of it."""
    total = 50_000 if site.given.quick else BACKLOG
    part = total // 10
    site.store.empty()
    site.produce("fill", kind="noop", queues=["default"], count=total)
    with site.working(Launch("noop")) as running:
        running.wait_for(total, LONG_DRAIN_S)
        samples = running.samples
    # From the end of the warm-up; and until the last few, which an emptying queue would slow down.
    long_us = _cost_us(samples, total // 50, total // 50 + part)
    short_us = _cost_us(samples, total - SMALL_BACKLOG - part, total - SMALL_BACKLOG)
    return {"growth_percent": 100 * (long_us / short_us - 1), "long_us": long_us, "short_us": short_us}


def _cost_us(samples: Sequence[Sample], begin: int, end: int) -> float:
    """Return microseconds per job between the samples nearest to these counts."""
    first = min(samples, key=lambda sample: abs(sample.count - begin))
    last = min(samples, key=lambda sample: abs(sample.count - end))
    if last.count <= first.count:
        raise RunFailed("the drain was over before it could be watched")
    return (last.at - first.at) / (last.count - first.count) * 1e6


def many_queues(site: WorkloadRun) -> dict[str, float]:
    """Measure the cost of a job with 1,000 weighted queues of which ten have jobs, and with one queue."""
    names = [f"queue_{number}" for number in range(MANY_QUEUES)]
    filled = names[:: MANY_QUEUES // FILLED_QUEUES]
    weighted = tuple(f"{name},{1 + number % 5}" for number, name in enumerate(names))
    one = _drained(site, ["default"], ("default",))
    many = _drained(site, filled, weighted)
    return {"times": one / many, "one_queue_rate": one, "many_queues_rate": many}


def _drained(site: WorkloadRun, filled: list[str], served: tuple[str, ...]) -> float:
    jobs = site.jobs(float("inf"))
    site.store.empty()
    site.produce("fill", kind="noop", queues=filled, count=jobs)
    with site.working(Launch("noop", queues=served)) as running:
        reading: Reading = running.wait_for(jobs)
    return rate(reading, lasting=False)


def memory(site: WorkloadRun) -> dict[str, float]:
    """Measure how much more memory is resident after a million jobs than after the first hundred thousand."""
    total = 50_000 if site.given.quick else BACKLOG
    seen: list[tuple[int, float]] = []
    site.store.empty()
    site.produce("fill", kind="noop", queues=["default"], count=total)
    with site.working(Launch("noop")) as running:
        running.each_look = lambda count: seen.append((count, resident_mb(running.pids)))
        running.wait_for(total, LONG_DRAIN_S)
        seen.append((total, resident_mb(running.pids)))
    early = min(seen, key=lambda sample: abs(sample[0] - total // 10))[1]
    return {"growth_mb": seen[-1][1] - early, "resident_mb": seen[-1][1], "early_mb": early}


def fairness(site: WorkloadRun) -> dict[str, float]:
    """Measure how long jobs waited while a thread was free in any of two processes; milliseconds."""
    count = 500 if site.given.quick else 10_000
    site.store.empty()
    launches = [Launch("mixed", concurrency=SLOTS)] * PROCESSES
    with site.working(*launches) as running:
        warm = PROCESSES * SLOTS
        site.produce("mixed", count=warm, burst=1, period_s=0.02, slow_every=warm + 1, slow_s=SLOW_S, fast_s=FAST_S)
        running.wait_for(warm)
        given: dict[str, Any] = {"slow_every": SLOW_EVERY, "slow_s": SLOW_S, "fast_s": FAST_S}
        with site.producing("mixed", count=count, burst=FAIR_BURST, period_s=FAIR_PERIOD_S, **given) as producer:
            producer.wait_for_end(CLIENT_S, site.given.stopped)
        running.wait_for(count + warm)
        runs = [tuple(notes[at : at + 3]) for notes in running.meters.notes() for at in range(0, len(notes), 3)]
    runs.sort()
    waits = [1000 * wait for wait in waits_with_free_slots(runs, PROCESSES * SLOTS)[warm:]]
    return {
        "max": max(waits),
        "p50": percentile(waits, 0.5),
        "p90": percentile(waits, 0.9),
        "p99": percentile(waits, 0.99),
        "p99.9": percentile(waits, 0.999),
        "over_50ms": float(sum(wait > 50 for wait in waits)),
    }


def waits_with_free_slots(runs: Sequence[tuple[float, ...]], slots: int) -> list[float]:
    """Return for each run (pushed, started, ended) the seconds from push to start during which fewer than ``slots``
    runs were active.
    """
    edges = sorted([(started, 1) for _, started, _ in runs] + [(ended, -1) for _, _, ended in runs])
    times, free_until = [0.0], [0.0]
    busy = 0
    # The time with a free thread that had passed at each edge; between edges it grows by all or by none.
    open_: list[bool] = [True]
    for at, change in edges:
        free_until.append(free_until[-1] + (at - times[-1] if busy < slots else 0.0))
        times.append(at)
        busy += change
        open_.append(busy < slots)

    def free_before(moment: float) -> float:
        place = bisect_right(times, moment) - 1
        return free_until[place] + (moment - times[place] if open_[place] else 0.0)

    return [free_before(started) - free_before(pushed) for pushed, started, _ in runs]
