"""Explain why a class makes no progress on a shard: its jobs, the processes that serve them, its rates, and its blockers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from framework.admin.class_traffic import Backlog, ClassRates, RunCounts, measure, read_backlog, read_runs
from framework.admin.explain import Explainer
from framework.admin.held_jobs import held_keys, measure_held
from framework.admin.job_counts import QUEUE_PREFIX, OnProgress
from framework.admin.snapshot import ShardSnapshot
from framework.execute.blocker import Blocker
from framework.policies.concurrency.explain import LimitBlockers
from framework.policies.concurrency.limit_state import LimitState
from framework.process.record import ProcessInfo
from framework.shard.profile_store import read_profiles

_MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class ClassExplanation:
    """The explanation of a class on one shard. Times are epoch seconds of the shard's clock, as is ``now``."""

    shard: str
    queue: str
    """The queue of its jobs: that of its route, or where most of them wait."""
    routed: bool
    """Whether new jobs come to this shard."""
    now: float
    backlog: Backlog
    runs: RunCounts
    rates: ClassRates
    limit: LimitState
    serving: Sequence[ProcessInfo]
    """The processes that fetch from the queue."""
    blockers: Mapping[str, Sequence[Blocker]]
    """The blockers of its jobs, by queue: the queue of new jobs, and every other with jobs of the class."""
    profiles: int = 0
    """The kept profiles of its jobs."""

    @property
    def slots(self) -> int:
        """The most of its jobs that can run at once: the slots of the processes, or fewer by its limit."""
        slots = sum(one.slots for one in self.serving)
        limit = self.limit.limit
        return slots if limit is None or limit == 0 else max(0, min(slots, limit))

    @property
    def capacity(self) -> float | None:
        """The runs per minute if its jobs alone use these slots; ``None`` while the duration of a run is not known."""
        mean_s = self.runs.mean_s
        return None if not mean_s else self.slots * _MINUTE_S / mean_s

    @property
    def soonest_s(self) -> float | None:
        """The seconds until none waits at this capacity, without arrivals; ``None`` while it is not known."""
        capacity = self.capacity
        if capacity is None:
            return None
        return self.backlog.waiting / capacity * _MINUTE_S if capacity else float("inf")


class ClassExplainer:
    """Explain classes on one shard. ``explain`` raises redis errors."""

    def __init__(self, snapshot: ShardSnapshot, explainer: Explainer, limits: LimitBlockers) -> None:
        self._snapshot = snapshot
        self._explainer = explainer
        self._limits = limits

    def explain(
        self, worker: str, aliases: Sequence[str], queue: str | None, on_progress: OnProgress
    ) -> ClassExplanation:
        """Return the explanation of a class by its wire name; ``queue`` is that of its route to this shard, if it has one."""
        client, now = self._snapshot.client, self._snapshot.now
        held = [one for one in measure_held(client, held_keys(client)) if one.name == worker]
        backlog = read_backlog(client, [worker, *aliases], held, on_progress)
        runs = read_runs(client, worker, now)
        waits_in = [
            place.removeprefix(QUEUE_PREFIX)
            for place, _ in backlog.places.most_common()
            if place.startswith(QUEUE_PREFIX)
        ]
        queues: list[str] = [] if queue is None else [queue]
        queues += [name for name in waits_in if name not in queues]
        chosen = queues[0] if queues else ""
        return ClassExplanation(
            self._snapshot.shard,
            chosen,
            queue is not None,
            now,
            backlog,
            runs,
            measure(backlog, runs, now),
            self._limits.state(worker),
            self._snapshot.processes_serving(chosen),
            {one: self._explainer.of_class(worker, one) for one in queues},
            sum(one.cls == worker for one in read_profiles(client, self._snapshot.shard)),
        )
