"""Define the workloads: each is prepared once and run once per repetition."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.bench import drains, framework_only, guideline, moves, policies, pushes, waits
from tests.bench.contestants import Contestant
from tests.bench.workload_run import WorkloadRun

Figures = Mapping[str, float]


@dataclass(frozen=True)
class Workload:
    """``run`` returns figures by name; ``figure`` is the one that the chart shows."""

    name: str
    title: str
    figure: str
    unit: str
    run: Callable[[WorkloadRun], Figures]
    admits: Callable[[Contestant], bool]
    prepare: Callable[[WorkloadRun], None] = lambda _site: None
    more_is_better: bool = True
    pinnable: bool = True
    once: bool = False
    """Whether one repetition is enough: the run compares parts of itself."""
    details: tuple[str, ...] = ()
    """The figures that the chart names next to the bar."""
    reference: str = "sidekiq"
    """The contestant of whose figure the others are shown as a multiple."""


def _ours(contestant: Contestant) -> bool:
    return "mixed" in contestant.kinds


def _able(kind: str) -> Callable[[Contestant], bool]:
    return lambda contestant: kind in contestant.kinds


WORKLOADS: tuple[Workload, ...] = (
    Workload(
        "noop", "Drain of no-op jobs", "rate", "jobs/s",
        run=drains.NOOP.run, prepare=drains.NOOP.prepare, admits=_able("noop"),
    ),
    Workload(
        "guideline", "A platform's mix: most classes follow the guidelines, Sidekiq's are plain", "rate", "jobs/s",
        run=guideline.WHOLE.run, prepare=guideline.WHOLE.prepare, admits=_able("guideline"), details=("worker_cpu_us",),
        reference="sidekiq-lines",
    ),
    Workload(
        "guideline_small", "The same mix without large arguments", "rate", "jobs/s",
        run=guideline.SMALL.run, prepare=guideline.SMALL.prepare, admits=_able("guideline"), details=("worker_cpu_us",),
        reference="sidekiq-lines",
    ),
    Workload("push", "Push, one at a time", "rate", "jobs/s", run=pushes.single, admits=pushes.admits_single),
    Workload("bulk", "Push, 1,000 a call", "rate", "jobs/s", run=pushes.bulk, admits=pushes.admits_bulk),
    Workload(
        "latency", "Idle process: from push to start", "p50", "ms",
        run=waits.latency, admits=_able("latency"), more_is_better=False, details=("p99",),
    ),
    Workload(
        "latency10", "The same, over ten queues", "p50", "ms",
        run=waits.latency_ten_queues, admits=waits.admits_ten_queues, more_is_better=False, details=("p99",),
    ),
    Workload(
        "idle", "An idle process", "cpu_percent", "% of a core",
        run=waits.idle, admits=waits.admits_idle, more_is_better=False, pinnable=False,
        details=("commands", "resident_mb"),
    ),
    Workload(
        "idle10", "An idle process, ten queues", "cpu_percent", "% of a core",
        run=waits.idle_ten_queues, admits=waits.admits_ten_queues, more_is_better=False, pinnable=False,
        details=("commands", "resident_mb"),
    ),
    Workload(
        "cpu", "Jobs of some 0.13 ms of processor time and one INCR", "rate", "jobs/s",
        run=drains.CPU.run, prepare=drains.CPU.prepare, admits=_able("cpu"),
    ),
    Workload(
        "io", "Jobs that wait 10 ms, 50 at a time", "rate", "jobs/s",
        run=drains.IO.run, prepare=drains.IO.prepare, admits=_able("io"),
    ),
    Workload(
        "async", "Coroutines that wait 50 ms, 1,000 at a time", "rate", "jobs/s",
        run=drains.ASYNC.run, prepare=drains.ASYNC.prepare, admits=_able("async"),
    ),
    Workload(
        "async25", "Coroutines that wait 25 ms, 1,000 at a time", "rate", "jobs/s",
        run=drains.SHORT_ASYNC.run, prepare=drains.SHORT_ASYNC.prepare, admits=_able("async25"),
    ),
    Workload(
        "payload100k", "Jobs with 98 kB of arguments", "rate", "jobs/s",
        run=drains.PAYLOAD.run, prepare=drains.PAYLOAD.prepare, admits=_able("payload"),
    ),
    Workload(
        "policies", "Cost of a no-op job of a class with all guidelines, against a plain class", "guidelines_times", "times",
        run=policies.drains, admits=_ours, more_is_better=False,
        details=("limited_times", "deduplicated_times", "tracked_times", "recorded_times", "health_times"),
    ),
    Workload(
        "policy_pushes", "Cost of a push of a class with all guidelines, against a plain class", "push_guidelines_times",
        "times", run=policies.pushes, admits=_ours, more_is_better=False,
        details=("push_deduplicated_times", "bulk_deduplicated_share", "bulk_tracked_share"),
    ),
    Workload(
        "policy_latency", "Idle process, limited and deduplicated class: p50 against a plain class", "times", "times",
        run=waits.latency_of_policies, admits=_ours, more_is_better=False, details=("plain_p50", "guarded_p50"),
    ),
    Workload(
        "full_limit", "A limit of 5, jobs that wait 10 ms, 50 threads: use of the slots", "slot_percent", "%",
        run=policies.full_limit, prepare=policies.prepare_full_limit, admits=_ours,
    ),
    Workload(
        "moves", "Processor time of Redis for a job's death", "death_us", "us", run=moves.moves, admits=_ours,
        more_is_better=False,
        details=tuple(f"{name}_us" for name in moves.NAMES if name != "death"),
    ),
    Workload("shards1", "No-op jobs, one shard, one process", "rate", "jobs/s", run=framework_only.one_shard, admits=_ours),
    Workload(
        "shards4", "No-op jobs, four shards, a process each", "rate", "jobs/s",
        run=framework_only.four_shards, admits=_ours,
    ),
    Workload(
        "backlog", "Cost of a job: 1,000,000 waiting against 10,000", "growth_percent", "% more",
        run=framework_only.backlog, admits=_ours, more_is_better=False,
    ),
    Workload(
        "queues1000", "Cost of a job: 1,000 weighted queues against one", "times", "times",
        run=framework_only.many_queues, admits=_ours, more_is_better=False,
    ),
    Workload(
        "memory", "Growth of resident memory over 1,000,000 jobs", "growth_mb", "MB",
        run=framework_only.memory, admits=_ours, more_is_better=False, pinnable=False, once=True,
    ),
    Workload(
        "fairness", "Longest wait while a slot is free, slow and fast jobs, two processes", "max", "ms",
        run=framework_only.fairness, admits=_ours, more_is_better=False, pinnable=False, once=True, details=("p50", "p99"),
    ),
)  # fmt: skip

BY_NAME = {workload.name: workload for workload in WORKLOADS}
