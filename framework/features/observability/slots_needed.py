"""Compute how many slots a group of queues needs to keep its queueing target, for autoscalers.

The slots follow from the arrival rate, the duration of runs, and the waiting jobs that may run. Held jobs are not in their queues,
and those of a paused queue do not run: no slot helps them. This file reads neither Redis nor a clock, so that it can be simulated.
"""

import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from framework.types import Urgency

WINDOW_S = 60.0
"""The time over which rates are measured."""
_SHORTEST_S = 5.0
_LONGEST_S = 600.0
"""Two readings further apart say nothing about the rates now."""
_FORGET_S = 600.0
"""How long the counts of a process without a record are kept: its record may only have expired for a moment."""
_UNKNOWN_S = 1.0
"""The duration of a run while none has ended yet."""
_PART = 0.5
"""The part of the target within which a new job starts behind the jobs that wait: the rest is for the start of a process."""
_UNFINISHED = 1.25
"""Busy slots beyond this many times the slots that the ended runs explain are those of runs that have not ended yet."""


class QueueingTarget(NamedTuple):
    """How soon which share of the jobs starts."""

    seconds: float
    share: float


TARGETS: Mapping[Urgency, QueueingTarget] = {
    # GitLab's targets; the shares are those of the alerts.
    "high": QueueingTarget(10.0, 0.995),
    "low": QueueingTarget(60.0, 0.99),
    # It has no target: its backlog is drained slowly.
    "throttled": QueueingTarget(1_200.0, 0.9),
}


class LoadSample(NamedTuple):
    """What one reading of a shard says about its load."""

    at: float
    sizes: Mapping[str, int]
    """The jobs in each queue."""
    paused: frozenset[str]
    runs: Mapping[str, Mapping[str, int]]
    """Ended runs by queue, since the start of each process, by its identity."""
    busy: Mapping[str, int]
    """Running jobs by queue."""
    seconds: Mapping[str, float]
    """The mean duration of the runs of the queues whose classes are known."""


class QueueLoad(NamedTuple):
    """The load of one queue: arriving jobs a second, seconds of a run, waiting jobs that may run."""

    arrivals: float
    seconds: float
    waiting: int

    @property
    def slots(self) -> float:
        """The slots that are busy on average if no job waits for long."""
        return self.arrivals * self.seconds


def slots_for(load: QueueLoad, target: QueueingTarget) -> int:
    """Return the least slots that keep the target for this load: those for the arrivals, or for the waiting jobs."""
    arriving = _erlang_slots(load.slots, load.seconds, target)
    draining = min(load.slots + load.waiting, load.waiting * load.seconds / (target.seconds * _PART))
    return max(arriving, math.ceil(draining - 1e-9), 1 if load.waiting else 0)


def _erlang_slots(load: float, seconds: float, target: QueueingTarget) -> int:
    """Return the least slots with which the share of jobs starts within the target (Erlang's delay formula)."""
    if load <= 0:
        return 0
    slots = math.floor(load) + 1
    # Erlang's loss formula for so many slots, by its recursion.
    blocked = 1.0
    for number in range(1, slots + 1):
        blocked = load * blocked / (number + load * blocked)
    while True:
        waits = blocked / (1 - load / slots * (1 - blocked))
        if waits * math.exp(-(slots - load) * target.seconds / max(seconds, 1e-6)) <= 1 - target.share:
            return slots
        slots += 1
        blocked = load * blocked / (slots + load * blocked)


@dataclass
class ShardLoad:
    """The load of one shard over its last readings. Use it from one thread at a time."""

    _samples: deque["_Sums"] = field(default_factory=deque["_Sums"])
    _counted: dict[str, tuple[float, Mapping[str, int]]] = field(
        default_factory=dict[str, tuple[float, Mapping[str, int]]]
    )
    _runs: Counter[str] = field(default_factory=Counter[str])

    def note(self, sample: LoadSample) -> dict[str, QueueLoad]:
        """Take a reading, and return the load of each queue since the earlier ones."""
        self._count(sample)
        now = _Sums(sample.at, dict(self._runs), dict(sample.sizes), dict(sample.busy))
        while self._samples and sample.at - self._samples[0].at > _LONGEST_S:
            self._samples.popleft()
        # One sample older than the window stays.
        while len(self._samples) > 1 and sample.at - self._samples[1].at >= WINDOW_S:
            self._samples.popleft()
        before = self._samples[0] if self._samples and sample.at - self._samples[0].at >= _SHORTEST_S else None
        self._samples.append(now)
        busy = Counter[str]()
        for one in self._samples:
            busy.update(one.busy)
        return _loads(sample, before, now, {name: count / len(self._samples) for name, count in busy.items()})

    def _count(self, sample: LoadSample) -> None:
        for identity, runs in sample.runs.items():
            _, before = self._counted.get(identity, (0.0, {}))
            # The runs of a process that is there at the first reading are no arrivals of this time.
            if self._samples:
                self._runs.update({queue: max(0, count - before.get(queue, 0)) for queue, count in runs.items()})
            self._counted[identity] = sample.at, runs
        gone = [name for name, (at, _) in self._counted.items() if sample.at - at > _FORGET_S]
        for name in gone:
            del self._counted[name]


class _Sums(NamedTuple):
    at: float
    runs: Mapping[str, int]
    sizes: Mapping[str, int]
    busy: Mapping[str, int]


def _loads(sample: LoadSample, before: _Sums | None, now: _Sums, busy: Mapping[str, float]) -> dict[str, QueueLoad]:
    queues = sorted({*now.sizes, *now.runs, *busy})
    span_s = 0.0 if before is None else now.at - before.at
    ended = dict.fromkeys(queues, 0.0)
    arrivals = dict(ended)
    if before is not None:
        for name in queues:
            ended[name] = (now.runs.get(name, 0) - before.runs.get(name, 0)) / span_s
            growth = (now.sizes.get(name, 0) - before.sizes.get(name, 0)) / span_s
            arrivals[name] = max(0.0, ended[name] + growth)
    found: dict[str, QueueLoad] = {}
    mean_s = _mean(sample.seconds)
    for name in queues:
        running = busy.get(name, 0.0)
        seconds = sample.seconds.get(name) or (running / ended[name] if running and ended[name] else mean_s)
        # Runs that have not ended yet need their slots too.
        explained = ended[name] * seconds
        unfinished = running - explained if running > _UNFINISHED * explained + 1 or not explained else 0.0
        paused = name in sample.paused
        arriving = 0.0 if paused else arrivals[name] + unfinished / seconds
        found[name] = QueueLoad(arriving, seconds, 0 if paused else now.sizes.get(name, 0))
    return found


def _mean(seconds: Mapping[str, float]) -> float:
    """Return the duration of a run of a queue of which none is known: that of the others."""
    known = [one for one in seconds.values() if one > 0]
    return sum(known) / len(known) if known else _UNKNOWN_S


def group_slots(
    loads: Mapping[str, QueueLoad],
    urgencies: Mapping[str, Urgency],
    groups: Mapping[str, Sequence[str]],
    limits: Mapping[str, int],
) -> dict[str, int]:
    """Return the slots of each group of queues; a queue of no group is a group of its own.

    ``limits`` has the most jobs of a queue that may run at a time, for queues whose classes all have a concurrency limit.
    """
    group_of = {queue: name for name, queues in groups.items() for queue in queues}
    members: dict[str, list[str]] = {name: [] for name in groups}
    for queue in loads:
        members.setdefault(group_of.get(queue, queue), []).append(queue)
    return {name: sum(_queue_slots(loads, queues, urgencies, limits)) for name, queues in sorted(members.items())}


def _queue_slots(
    loads: Mapping[str, QueueLoad],
    queues: Sequence[str],
    urgencies: Mapping[str, Urgency],
    limits: Mapping[str, int],
) -> list[int]:
    """Return the slots of the queues of one group. Queues of one urgency share their slots, except for those with a limit."""
    if len(queues) == 1:
        # Most queues are groups of their own, and a shard has hundreds.
        (name,) = queues
        slots = slots_for(loads[name], TARGETS[urgencies.get(name, "low")])
        return [min(slots, limits.get(name, slots))]
    found: list[int] = []
    for urgency, target in TARGETS.items():
        shared = [name for name in queues if urgencies.get(name, "low") == urgency and name not in limits]
        if shared:
            found.append(slots_for(_together([loads[name] for name in shared]), target))
    limited = [name for name in queues if name in limits]
    return [
        *found,
        *(min(limits[name], slots_for(loads[name], TARGETS[urgencies.get(name, "low")])) for name in limited),
    ]


def _together(loads: Sequence[QueueLoad]) -> QueueLoad:
    if len(loads) == 1:
        return loads[0]
    arrivals, waiting = sum(one.arrivals for one in loads), sum(one.waiting for one in loads)
    work = sum(one.arrivals * one.seconds for one in loads)
    backlog = sum(one.waiting * one.seconds for one in loads)
    weight = arrivals or waiting
    seconds = (work if arrivals else backlog) / weight if weight else _UNKNOWN_S
    return QueueLoad(arrivals, seconds, waiting if not arrivals or not seconds else math.ceil(backlog / seconds))
