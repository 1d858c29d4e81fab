"""Sum up what a simulation has found: figures of classes, urgencies, sets and shards, as text and as JSON."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from framework.features.observability.slots_needed import TARGETS
from framework.features.simulation.engine import ClassResult, SimulationResult
from framework.terminal.output import columns
from framework.text import format_bytes, format_duration

FULL_STORE = 0.7
"""The share of a core from which commands of a Redis wait for each other, so that real jobs wait longer than simulated ones."""


class Waits(NamedTuple):
    """Seconds that jobs waited for their start."""

    p50: float
    p95: float
    p99: float
    longest: float


class ClassWaits(NamedTuple):
    """The figures of one class."""

    name: str
    urgency: str
    queue: str
    shard: str
    started: int
    in_time: float
    """The share of the starts within the target of the urgency."""
    waits: Waits
    recorded: Waits | None
    """What the same jobs really waited."""
    most_held: int
    failed: int
    dead: int
    refused: int


class SetFigures(NamedTuple):
    """The figures of a set of processes."""

    name: str
    fewest: int
    most: int
    busy: float
    """The share of the time of all slots in which they ran jobs."""


class ShardFigures(NamedTuple):
    """The figures of the Redis of a shard."""

    name: str
    store: float
    """The share of one core that its commands take, on average."""
    most_store: float
    most_waiting: int
    most_bytes: int
    traffic: float
    """Bytes a second, in and out, on average."""


class SimulationReport(NamedTuple):
    """All figures of one scenario."""

    name: str
    seconds: float
    classes: Sequence[ClassWaits]
    sets: Sequence[SetFigures]
    shards: Sequence[ShardFigures]
    remarks: Sequence[str]

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "seconds": self.seconds,
            "classes": [_plain(one) for one in self.classes],
            "processes": [_plain(one) for one in self.sets],
            "shards": [_plain(one) for one in self.shards],
            "remarks": list(self.remarks),
        }


def _plain(one: Any) -> dict[str, Any]:
    return {
        key: value._asdict() if isinstance(value, Waits) else value
        for key, value in one._asdict().items()
        if value is not None
    }


def waits_of(seconds: Sequence[float]) -> Waits:
    """Return the figures of some waits; zeros for none."""
    ordered = sorted(seconds) or [0.0]
    p50, p95, p99 = (ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.5, 0.95, 0.99))
    return Waits(p50, p95, p99, ordered[-1])


def report_of(result: SimulationResult) -> SimulationReport:
    """Return the figures of a simulation."""
    classes = [_class_waits(name, one) for name, one in sorted(result.classes.items()) if one.waits or one.refused]
    sets = [_set_figures(result, name) for name in result.model.sets]
    shards = [_shard_figures(result, name) for name in result.store_us]
    scenario = result.model.scenario
    return SimulationReport(
        scenario.name,
        result.model.seconds,
        classes,
        sets,
        shards,
        list(_remarks(result, classes, shards)),
    )


def _class_waits(name: str, one: ClassResult) -> ClassWaits:
    target = TARGETS[one.facts.urgency].seconds
    started = len(one.waits)
    return ClassWaits(
        name,
        one.facts.urgency,
        one.facts.queue,
        ", ".join(one.facts.shards),
        started,
        sum(wait <= target for wait in one.waits) / started if started else 0.0,
        waits_of(one.waits),
        waits_of(one.recorded_waits) if one.recorded_waits else None,
        one.most_held,
        one.failed,
        one.dead,
        one.refused,
    )


def _set_figures(result: SimulationResult, name: str) -> SetFigures:
    slots = result.model.sets[name].slots
    counts = [sample.processes[name] for sample in result.samples]
    busy = sum(sample.busy[name] for sample in result.samples)
    return SetFigures(name, min(counts), max(counts), busy / max(1, sum(counts) * slots))


def _shard_figures(result: SimulationResult, name: str) -> ShardFigures:
    step_us = result.step_s * 1e6
    shares = [us / step_us for us in result.store_us[name][:-1]]
    return ShardFigures(
        name,
        sum(shares) / len(shares),
        max(shares),
        max(sample.waiting[name] + sample.held[name] for sample in result.samples),
        max(sample.waiting_bytes[name] for sample in result.samples),
        sum(result.traffic[name]) / result.model.seconds,
    )


def _remarks(result: SimulationResult, classes: Sequence[ClassWaits], shards: Sequence[ShardFigures]) -> Iterator[str]:
    """Yield what a reader should know about the figures."""
    for shard in shards:
        if shard.most_store > FULL_STORE:
            yield (
                f"shard {shard.name}: its Redis would use {shard.most_store:.0%} of a core. Above {FULL_STORE:.0%} commands wait, "
                "so real jobs wait longer than these. Move classes to another shard."
            )
    last = result.samples[-1]
    for name, waiting in last.waiting.items():
        if waiting and waiting == max(sample.waiting[name] for sample in result.samples):
            yield (
                f"shard {name}: {waiting:,} jobs wait at the end, and the number grows: the slots do not suffice. "
                "A longer scenario has longer waits."
            )
    served = {(one.shard, queue) for one in result.model.sets.values() for queue in one.order.names}
    for name, cls in result.model.classes.items():
        for unserved in (one for one in cls.shards if (one, cls.queue) not in served):
            yield f"class {name}: no set of processes serves its queue {cls.queue} on shard {unserved}."
    for one in classes:
        if one.refused:
            yield f"class {one.name}: {one.refused:,} pushes fail while its shard is away: reliable_push would keep them."


def text_of(report: SimulationReport) -> Iterator[str]:
    """Yield the lines of a report."""
    yield f"{report.name or 'recorded jobs'}: {format_duration(report.seconds)}, {sum(one.started for one in report.classes):,} jobs"
    yield ""
    has_recorded = any(one.recorded for one in report.classes)
    head = ["class", "urgency", "queue", "jobs", "in time", "wait p50", "p95", "p99", "longest", "held", "failed"]
    rows = [[*head, *(["real p95"] if has_recorded else [])]]
    for one in report.classes:
        row = [one.name, one.urgency, f"{one.shard}/{one.queue}", f"{one.started:,}", f"{one.in_time:.1%}"]
        row += [_seconds(wait) for wait in one.waits]
        row += [f"{one.most_held:,}", f"{one.failed:,}"]
        rows.append([*row, *([_seconds(one.recorded.p95) if one.recorded else ""] if has_recorded else [])])
    yield from columns(rows)
    yield ""
    rows = [["processes", "fewest", "most", "slots busy"]]
    rows += [[one.name, str(one.fewest), str(one.most), f"{one.busy:.0%}"] for one in report.sets]
    yield from columns(rows)
    yield ""
    rows = [["shard", "Redis", "most", "most waiting", "bytes", "network"]]
    rows += [
        [
            one.name,
            f"{one.store:.1%}",
            f"{one.most_store:.1%}",
            f"{one.most_waiting:,}",
            format_bytes(one.most_bytes),
            f"{format_bytes(round(one.traffic))}/s",
        ]
        for one in report.shards
    ]
    yield from columns(rows)
    for remark in report.remarks:
        yield ""
        yield remark


def _seconds(value: float) -> str:
    return f"{value * 1_000:.1f} ms" if value < 1 else f"{value:.2f} s" if value < 60 else format_duration(value)
