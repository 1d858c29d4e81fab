"""Define the framework's targets, row by row: the bench compares, and its exit status does not depend on them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.bench.campaign import Results
from tests.bench.contestants import CONTESTANTS
from tests.bench.figures import shown

FRAMEWORK, LINES, SIDEKIQ, SIDEKIQ_LINES, BARE = "framework", "framework-lines", "sidekiq", "sidekiq-lines", "bare"
SAFE_PEERS = tuple(each.name for each in CONTESTANTS if each.lock and each.safe)
LOSING_PEERS = tuple(each.name for each in CONTESTANTS if each.lock and not each.safe)


@dataclass(frozen=True)
class Medians:
    """The medians of one mode."""

    results: Results
    mode: str

    def __call__(self, workload: str, contestant: str, figure: str) -> float | None:
        return self.results.median(workload, contestant, self.mode, figure)

    def ratio(self, workload: str, figure: str, one: str, other: str) -> float | None:
        """Return ``one`` as a multiple of ``other``; None when either was not measured."""
        above, below = self(workload, one, figure), self(workload, other, figure)
        return above / below if above is not None and below else None

    def best(self, workload: str, figure: str, names: tuple[str, ...]) -> str | None:
        """Return the one with the highest median."""
        measured = [name for name in names if self(workload, name, figure) is not None]
        return max(measured, key=lambda name: self(workload, name, figure) or 0.0, default=None)


Measure = Callable[[Medians], float | None]


@dataclass(frozen=True)
class Target:
    """One target. ``measure`` is to be at least (or at most) ``goal``; ``floor`` is the best possible value here."""

    says: str
    goal: float
    measure: Measure
    at_least: bool = True
    unit: str = "x"
    floor: Measure = lambda _medians: None


@dataclass(frozen=True)
class Verdict:
    """The result of one target in one mode."""

    says: str
    mode: str
    goal: str
    measured: str
    met: bool
    floor: str


def _figure(workload: str, figure: str, contestant: str = FRAMEWORK) -> Measure:
    return lambda medians: medians(workload, contestant, figure)


def _times(workload: str, figure: str, one: str, other: str) -> Measure:
    return lambda medians: medians.ratio(workload, figure, one, other)


def _times_best(peers: tuple[str, ...]) -> Measure:
    def measure(medians: Medians) -> float | None:
        best = medians.best("noop", "rate", peers)
        return medians.ratio("noop", "rate", FRAMEWORK, best) if best else None

    return measure


TARGETS: tuple[Target, ...] = (
    Target("drain, no job lines, against Sidekiq", 5, _times("noop", "rate", FRAMEWORK, SIDEKIQ)),
    Target("drain, two job lines in a file, against Sidekiq", 2.5, _times("noop", "rate", LINES, SIDEKIQ)),
    Target("drain, against the best Python peer that loses nothing", 8, _times_best(SAFE_PEERS)),
    Target("drain, against the best Python peer that loses jobs", 5, _times_best(LOSING_PEERS)),
    Target(
        "guideline mix: drain with both job lines, against plain jobs of Sidekiq with its JSON lines", 2.5,
        _times("guideline", "rate", LINES, SIDEKIQ_LINES),
    ),
    Target(
        "guideline mix: the worker's processor time per job, Sidekiq's against the framework's", 2.5,
        _times("guideline", "worker_cpu_us", SIDEKIQ_LINES, LINES),
    ),
    Target(
        "push one, against Sidekiq", 1.2, _times("push", "rate", FRAMEWORK, SIDEKIQ),
        floor=_times("push", "rate", BARE, SIDEKIQ),
    ),
    Target("push one, against a bare LPUSH", 0.95, _times("push", "rate", FRAMEWORK, BARE), floor=lambda _: 1.0),
    Target("push 1,000 a call", 400_000, _figure("bulk", "rate"), unit="jobs/s", floor=_figure("bulk", "rate", BARE)),
    Target(
        "idle push to start, p50, against Sidekiq", 0.75, _times("latency", "p50", FRAMEWORK, SIDEKIQ), at_least=False,
        floor=_times("latency", "p50", BARE, SIDEKIQ),
    ),
    Target(
        "idle push to start, p99, against Sidekiq", 1, _times("latency", "p99", FRAMEWORK, SIDEKIQ), at_least=False,
        floor=_times("latency", "p99", BARE, SIDEKIQ),
    ),
    Target("idle push to start, ten queues, p99", 2, _figure("latency10", "p99"), at_least=False, unit="ms"),
    Target("idle, one queue: processor", 0.2, _figure("idle", "cpu_percent"), at_least=False, unit="% of a core"),
    Target("idle, ten queues: processor", 0.2, _figure("idle10", "cpu_percent"), at_least=False, unit="% of a core"),
    Target("idle, one queue: Redis commands", 5, _figure("idle", "commands"), at_least=False, unit="a second"),
    Target("idle, ten queues: Redis commands", 5, _figure("idle10", "commands"), at_least=False, unit="a second"),
    Target("idle: resident memory", 60, _figure("idle", "resident_mb"), at_least=False, unit="MB"),
    Target(
        "jobs of 10 ms of waiting, 50 threads (97 % of 5,000)", 4850, _figure("io", "rate"), unit="jobs/s",
        floor=_figure("io", "rate", BARE),
    ),
    Target(
        "coroutines of 25 ms, 1,000 in flight (of 50 ms they could be just 20,000)", 20_000,
        _figure("async25", "rate"), unit="jobs/s", floor=_figure("async25", "rate", BARE),
    ),
    Target(
        "jobs of 0.13 ms of processor + INCR, against the bare body", 0.9, _times("cpu", "rate", FRAMEWORK, BARE),
        floor=lambda _: 1.0,
    ),
    Target(
        "growth of the cost of a job, 1,000,000 waiting", 10, _figure("backlog", "growth_percent"), at_least=False,
        unit="%",
    ),
    Target("cost of a job, 1,000 weighted queues against one", 1.5, _figure("queues1000", "times"), at_least=False),
    Target(
        "growth of memory over a million jobs (none; 1 MB is what the allocator moves by itself)", 1,
        _figure("memory", "growth_mb"), at_least=False, unit="MB",
    ),
    Target("processor time of a limited job, against a plain one", 1.6, _figure("policies", "limited_times"), at_least=False),
    Target(
        "processor time of a deduplicated job, against a plain one", 1.6, _figure("policies", "deduplicated_times"),
        at_least=False,
    ),
    Target("processor time of a tracked job, against a plain one", 1.4, _figure("policies", "tracked_times"), at_least=False),
    Target(
        "processor time of a recorded job (60 us and a plain one of 25), against a plain one", 3.4,
        _figure("policies", "recorded_times"), at_least=False,
    ),
    Target(
        "processor time of a job with a health check, against a plain one", 1.1, _figure("policies", "health_times"),
        at_least=False,
    ),
    Target(
        "processor time of a job with all of them, against a plain one", 2.5, _figure("policies", "guidelines_times"),
        at_least=False,
    ),
    Target("use of the slots of a full limit", 97, _figure("full_limit", "slot_percent"), unit="%"),
    Target("idle push to start, limited and deduplicated, p50, against a plain one", 1.3, _figure("policy_latency", "times"),
           at_least=False),
    Target(
        "processor time of a deduplicated push, against a plain one", 1.3,
        _figure("policy_pushes", "push_deduplicated_times"), at_least=False,
    ),
    Target("rate of a deduplicated push, against a plain one", 0.8, _figure("policy_pushes", "push_deduplicated_share")),
    Target("rate of a deduplicated bulk, against a plain one", 0.35, _figure("policy_pushes", "bulk_deduplicated_share")),
    Target("rate of a tracked bulk, against a plain one", 0.6, _figure("policy_pushes", "bulk_tracked_share")),
    Target("longest wait while a slot is free", 50, _figure("fairness", "max"), at_least=False, unit="ms"),
)  # fmt: skip


def verdicts(results: Results) -> Iterator[Verdict]:
    """Return every measured target, in each mode in which it was measured."""
    modes = list(dict.fromkeys(result.mode for result in results.results))
    for target in TARGETS:
        for mode in modes:
            medians = Medians(results, mode)
            value = target.measure(medians)
            if value is not None:
                yield _judged(target, medians, value)


def unmeasured(results: Results) -> list[str]:
    """Return the targets without a result."""
    known = {verdict.says for verdict in verdicts(results)}
    return [target.says for target in TARGETS if target.says not in known]


def _judged(target: Target, medians: Medians, value: float) -> Verdict:
    floor = target.floor(medians)
    return Verdict(
        says=target.says,
        mode=medians.mode,
        goal=f"{'>=' if target.at_least else '<='} {_named(f'{target.goal:,g}', target.unit)}",
        measured=_named(shown(value), target.unit),
        met=value >= target.goal if target.at_least else value <= target.goal,
        floor=_named(shown(floor), target.unit) if floor is not None else "",
    )


def _named(figure: str, unit: str) -> str:
    return f"{figure}x" if unit == "x" else f"{figure} {unit}"
