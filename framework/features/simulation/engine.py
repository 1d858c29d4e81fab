"""Run a model event by event: jobs come, processes fetch them in their order of queues, limits hold them, autoscalers follow.

The order of queues, the formula of retries and the number of needed slots are those of the real processes. What a fetch takes, and
the jobs that a process fetches ahead, are left out: both are below 5 ms. So is what a Redis does that is busy all the time: the
report says when its load comes near to that.
"""

import heapq
import random
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from math import ceil
from typing import TypeAlias

from framework.features.observability.slots_needed import TARGETS, LoadSample, QueueLoad, ShardLoad, group_slots
from framework.features.simulation.model import Model, SimulatedClass
from framework.features.simulation.parts import (
    ClassSlots,
    JobClass,
    ProcessSet,
    SimulatedJob,
    SimulatedProcess,
    SimulatedQueue,
    SimulatedShard,
)
from framework.features.simulation.recorded import RecordedJob
from framework.features.simulation.scenario import Change, Durations
from framework.features.simulation.store_costs import HELD_BYTES, HELD_US, RETRY_BYTES, RETRY_US
from framework.finish.retry import retry_delay_s
from framework.timings import current as current_timings
from framework.types import Urgency

STEPS = 300
"""Points of each line of a chart."""
_DEPLOYED_AT_ONCE = 0.25
"""The share of a set that a deploy restarts at the same time: the default of Kubernetes."""
_FIRST_READING_S = 10.0

_Event: TypeAlias = tuple[float, int, Callable[[], None]]


def _no_seconds() -> "array[float]":
    return array("d")


@dataclass
class ClassResult:
    """The jobs of one class: seconds of wait of each start, and their ends."""

    facts: SimulatedClass
    waits: "array[float]" = field(default_factory=_no_seconds)
    recorded_waits: "array[float]" = field(default_factory=_no_seconds)
    """What the same jobs really waited; empty unless they were recorded."""
    ended: int = 0
    failed: int = 0
    dead: int = 0
    refused: int = 0
    """Pushes to a shard that was away, which were not kept."""
    most_held: int = 0
    seconds: float = 0.0


@dataclass
class FleetSample:
    """The state of the fleet at one moment; the counts are by shard, or by set of processes."""

    at: float
    waiting: Mapping[str, int]
    held: Mapping[str, int]
    waiting_bytes: Mapping[str, int]
    processes: Mapping[str, int]
    busy: Mapping[str, int]
    in_time: Mapping[str, float]
    """The share of the jobs that started within their target in this step, by urgency."""


@dataclass
class SimulationResult:
    """What a simulation has found."""

    model: Model
    classes: Mapping[str, ClassResult]
    samples: list[FleetSample]
    store_us: Mapping[str, list[float]]
    """The processor time of each shard's Redis in each step."""
    traffic: Mapping[str, list[float]]
    most_waiting: Mapping[str, tuple[int, float]]
    """The most jobs of a queue, and when, by shard and queue."""
    step_s: float


class Simulation:
    """Run one model, once."""

    def __init__(self, model: Model) -> None:
        scenario = model.scenario
        self._model = model
        self._seconds = model.seconds
        self._step_s = self._seconds / STEPS
        self._dice = random.Random(scenario.seed)
        self._events: list[_Event] = []
        self._ends: list[tuple[float, int, SimulatedProcess, SimulatedJob]] = []
        self._count = 0
        self._now = 0.0
        self._overhead = scenario.processor_of_job
        self._shards: dict[str, SimulatedShard] = {}
        self._classes: dict[str, list[JobClass]] = {}
        """The parts of each class, one for each of its shards."""
        self._results: dict[str, ClassResult] = {}
        self._sets: dict[str, ProcessSet] = {}
        self._loads: dict[str, ShardLoad] = {}
        self._samples: list[FleetSample] = []
        self._most: dict[str, tuple[int, float]] = {}
        self._started = Counter[str]()
        self._in_time = Counter[str]()
        self._build()

    def run(self) -> SimulationResult:
        """Return what happens until the end of the scenario's time."""
        # The rotation of queues draws from the module's generator.
        random.seed(self._model.scenario.seed)
        for one in self._sets.values():
            for _ in range(one.facts.processes.count):
                self._fetch(one.add())
        self._plan_arrivals()
        self._plan_changes()
        self._plan_periods()
        self._loop()
        return SimulationResult(
            self._model,
            self._results,
            self._samples,
            {name: shard.store_us for name, shard in self._shards.items()},
            {name: shard.traffic for name, shard in self._shards.items()},
            self._most,
            self._step_s,
        )

    # --- events

    def _loop(self) -> None:
        """Run the events in the order of their times; the ends of runs have a heap of their own, as they are most of all."""
        events, ends, until = self._events, self._ends, self._seconds
        while True:
            if ends and (not events or ends[0][0] <= events[0][0]):
                at, _, process, job = heapq.heappop(ends)
                if at > until:
                    return
                self._now = at
                if job in process.jobs:
                    self._end(process, job)
            elif events:
                at, _, act = heapq.heappop(events)
                if at > until:
                    return
                self._now = at
                act()
            else:
                return

    def _at(self, moment: float, act: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (moment, self._count, act))

    # --- the fleet

    def _build(self) -> None:
        for facts in self._model.sets.values():
            shard = self._shard(facts.shard)
            one = self._sets[facts.name] = ProcessSet(facts, shard)
            shard.sets.append(one)
            for queue in facts.order.names:
                shard.queue(queue).sets.append(one)
        for name, cls in self._model.classes.items():
            slots = ClassSlots(cls.limit)
            shards = map(self._shard, cls.shards)
            self._classes[name] = [JobClass(cls, shard, shard.queue(cls.queue), slots) for shard in shards]
            self._results[name] = ClassResult(cls)

    @property
    def _parts(self) -> Iterator[JobClass]:
        return chain.from_iterable(self._classes.values())

    def _shard(self, name: str) -> SimulatedShard:
        found = self._shards.get(name)
        if found is None:
            found = self._shards[name] = SimulatedShard(name, STEPS + 1)
            self._loads[name] = ShardLoad()
        return found

    # --- jobs come

    def _plan_arrivals(self) -> None:
        for parts in self._classes.values():
            for cls in parts:
                self._plan_next(cls)
            if parts[0].facts.load.burst is not None:
                self._at(0.0, partial(self._burst, parts))
        for one in self._model.recorded:
            self._results[one.name].recorded_waits.append(one.waited)
        self._plan_replay(iter(self._model.recorded))

    def _plan_replay(self, jobs: Iterator[RecordedJob]) -> None:
        if (one := next(jobs, None)) is not None:
            self._at(one.at, partial(self._replay, one, jobs))

    def _replay(self, one: RecordedJob, jobs: Iterator[RecordedJob]) -> None:
        """Let a recorded job come, and plan the next one."""
        cls = self._part(self._classes[one.name])
        self._push(SimulatedJob(cls, self._now, one.duration, one.processor, 1))
        self._plan_replay(jobs)

    def _plan_next(self, cls: JobClass) -> None:
        if cls.rate > 0:
            self._at(self._now + self._dice.expovariate(cls.rate), partial(self._arrive, cls, cls.rate))

    def _arrive(self, cls: JobClass, rate: float) -> None:
        if rate != cls.rate:
            # The rate has changed meanwhile: another chain of arrivals goes on.
            return
        self._push(self._new_job(cls))
        self._plan_next(cls)

    def _burst(self, parts: Sequence[JobClass]) -> None:
        burst = parts[0].facts.load.burst
        if burst is not None:
            for _ in range(burst.jobs):
                self._push(self._new_job(self._part(parts)))
            self._at(self._now + burst.every, partial(self._burst, parts))

    def _part(self, parts: Sequence[JobClass]) -> JobClass:
        """Return the part of a class that gets the next job: its key chooses, which is as good as chance."""
        return parts[0] if len(parts) == 1 else self._dice.choice(parts)

    def _new_job(self, cls: JobClass) -> SimulatedJob:
        load, dice = cls.facts.load, self._dice
        duration = load.duration.draw(dice) if isinstance(load.duration, Durations) else load.duration
        tenant = 1
        while tenant < load.tenants and dice.random() < 0.5:
            tenant += 1
        return SimulatedJob(cls, self._now, duration, load.processor, tenant)

    def _push(self, job: SimulatedJob) -> None:
        shard = job.cls.shard
        if shard.is_away:
            if self._model.keeps_pushes:
                shard.kept.append(job)
            else:
                self._results[job.cls.facts.name].refused += 1
            return
        cost = job.cls.facts.cost
        self._load(shard, cost.push_us)
        shard.traffic[int(self._now / self._step_s)] += cost.traffic_bytes
        self._enqueue(job)

    def _enqueue(self, job: SimulatedJob) -> None:
        """Give a due job to a process that waits, or put it into its queue."""
        queue = job.cls.queue
        process = None if queue.size or job.cls.shard.is_away else self._idle_process(queue)
        if process is None:
            self._put(queue, job)
        else:
            self._admit(process, job)
            self._note_idle(process)

    def _idle_process(self, queue: SimulatedQueue) -> SimulatedProcess | None:
        for one in queue.sets:
            while one.idle:
                process = one.idle.popleft()
                process.is_idle = False
                if process.free and not process.stops:
                    return process
        return None

    @staticmethod
    def _note_idle(process: SimulatedProcess) -> None:
        if process.free and not (process.is_idle or process.stops):
            process.is_idle = True
            process.of.idle.append(process)

    def _put(self, queue: SimulatedQueue, job: SimulatedJob, *, in_front: bool = False) -> None:
        queue.put(job, in_front=in_front)
        shard = job.cls.shard
        shard.waiting_bytes += job.cls.facts.cost.waiting_bytes
        key = f"{shard.name}/{queue.name}"
        most = self._most.get(key)
        if most is None or queue.size > most[0]:
            self._most[key] = queue.size, self._now

    # --- processes fetch

    def _fetch(self, process: SimulatedProcess) -> None:
        """Let a process fetch for its free slots, until it has none or its queues have no jobs."""
        shard = process.of.shard
        while process.free and not (process.stops or shard.is_away):
            found: set[str] = set()
            queues = process.rotation.next(process.free, self._now)
            for name, quota in queues:
                self._take(process, shard.queues[name], quota, found)
            # What the quotas leave free.
            for name, _ in queues:
                self._take(process, shard.queues[name], process.free, found)
            process.rotation.record_found(found, enough=not process.free)
            if not found and process.rotation.all_checked:
                self._note_idle(process)
                return

    def _take(self, process: SimulatedProcess, queue: SimulatedQueue, quota: int, found: set[str]) -> None:
        taken = 0
        while queue.size and process.free and taken < quota:
            job = queue.take()
            job.cls.shard.waiting_bytes -= job.cls.facts.cost.waiting_bytes
            found.add(queue.name)
            taken += self._admit(process, job)

    def _admit(self, process: SimulatedProcess, job: SimulatedJob) -> bool:
        """Start a job, or hold it if its class has no slot; return whether it starts."""
        cls = job.cls
        if cls.slots.free:
            self._start(process, job)
            return True
        cls.held.append(job)
        shard, result = cls.shard, self._results[cls.facts.name]
        shard.waiting_bytes += cls.facts.cost.waiting_bytes + HELD_BYTES
        self._load(shard, HELD_US)
        result.most_held = max(result.most_held, sum(len(one.held) for one in self._classes[cls.facts.name]))
        return False

    @staticmethod
    def _unhold(job: SimulatedJob) -> None:
        job.cls.shard.waiting_bytes -= job.cls.facts.cost.waiting_bytes + HELD_BYTES

    def _start(self, process: SimulatedProcess, job: SimulatedJob) -> None:
        cls, now = job.cls, self._now
        process.free -= 1
        process.jobs.add(job)
        cls.running += 1
        cls.slots.running += 1
        # The threads of a process take turns in its interpreter.
        begins = max(now, process.interpreter_at)
        used = self._overhead + job.processor
        process.interpreter_at = begins + used
        wait = begins - job.came
        facts = cls.facts
        self._results[facts.name].waits.append(wait)
        self._started[facts.urgency] += 1
        self._in_time[facts.urgency] += wait <= TARGETS[facts.urgency].seconds
        self._load(cls.shard, facts.cost.run_us)
        self._count += 1
        heapq.heappush(self._ends, (begins + max(job.duration, used), self._count, process, job))

    def _end(self, process: SimulatedProcess, job: SimulatedJob) -> None:
        cls = job.cls
        process.jobs.discard(job)
        process.free += 1
        process.ended[cls.queue.name] += 1
        cls.running -= 1
        cls.slots.running -= 1
        result = self._results[cls.facts.name]
        result.ended += 1
        result.seconds += job.duration
        if cls.facts.load.failures and self._dice.random() < cls.facts.load.failures:
            self._fail(job, result)
        if process.stops:
            self._note_stopped(process)
        # The slot of a limit goes to the job that waits the longest, which this process runs next.
        if cls.may_release:
            self._release(cls, None if process.stops else process)
        else:
            for other in self._classes[cls.facts.name]:
                if other.may_release:
                    self._release(other, None)
        self._fetch(process)

    def _release(self, cls: JobClass, process: SimulatedProcess | None) -> None:
        """Start held jobs that may start: in this process, or through their queue."""
        while cls.held and cls.slots.free:
            job = cls.held.popleft()
            self._unhold(job)
            if process is not None and process.free:
                self._start(process, job)
                continue
            idle = self._idle_process(cls.queue)
            if idle is None:
                self._put(cls.queue, job, in_front=True)
                return
            self._start(idle, job)
            self._note_idle(idle)

    def _fail(self, job: SimulatedJob, result: ClassResult) -> None:
        result.failed += 1
        job.failures += 1
        shard = job.cls.shard
        self._load(shard, RETRY_US)
        if job.failures > job.cls.facts.retries:
            result.dead += 1
            return
        again = SimulatedJob(job.cls, 0.0, job.duration, job.processor, job.tenant)
        again.failures = job.failures
        again.came = self._now + retry_delay_s(job.failures - 1, self._dice.random)
        size = job.cls.facts.cost.waiting_bytes + RETRY_BYTES
        shard.waiting_bytes += size
        self._at(again.came, partial(self._come_again, again, size))

    def _come_again(self, job: SimulatedJob, size: int) -> None:
        job.cls.shard.waiting_bytes -= size
        self._enqueue(job)

    def _load(self, shard: SimulatedShard, us: float) -> None:
        shard.store_us[int(self._now / self._step_s)] += us * self._model.scenario.redis

    # --- what changes

    def _plan_changes(self) -> None:
        for change in self._model.scenario.changes:
            self._at(change.at, partial(self._change, change))

    def _change(self, change: Change) -> None:
        """Apply a change, and plan its end if it has one."""
        back: list[Callable[[], None]] = []
        for name, rate in change.rate.items():
            back.append(partial(self._set_rate, name, sum(one.rate for one in self._classes[name])))
            self._set_rate(name, rate)
        for name, limit in change.limit.items():
            back.append(partial(self._set_limit, name, self._classes[name][0].slots.limit))
            self._set_limit(name, limit)
        for name, count in change.count.items():
            back.append(partial(self._set_count, name, sum(1 for _ in self._sets[name].serving())))
            self._set_count(name, count)
        for name in change.off:
            back.append(partial(self._set_off, name, is_off=False))
            self._set_off(name, is_off=True)
        for name in change.away:
            back.append(partial(self._answer, name))
            self._shards[name].is_away = True
        for name in change.restart:
            self._deploy(self._sets[name])
        if change.lasts is not None:
            for act in back:
                self._at(change.at + change.lasts, act)

    def _set_rate(self, name: str, rate: float) -> None:
        parts = self._classes[name]
        for cls in parts:
            if cls.rate != rate / len(parts):
                cls.rate = rate / len(parts)
                self._plan_next(cls)

    def _set_limit(self, name: str, limit: int | None) -> None:
        parts = self._classes[name]
        parts[0].slots.limit = limit
        for cls in parts:
            self._release_through_queue(cls)

    def _set_off(self, name: str, *, is_off: bool) -> None:
        parts = self._classes[name]
        parts[0].slots.is_off = is_off
        for cls in parts:
            self._release_through_queue(cls)

    def _release_through_queue(self, cls: JobClass) -> None:
        """Put the held jobs that may start back into their queue, the oldest in front."""
        released = [cls.held.popleft() for _ in range(int(min(cls.slots.free, len(cls.held))))]
        for job in reversed(released):
            self._unhold(job)
            self._put(cls.queue, job, in_front=True)
        self._wake(cls.shard)

    def _answer(self, name: str) -> None:
        """Let a shard answer again: kept pushes arrive, and processes fetch."""
        shard = self._shards[name]
        shard.is_away = False
        kept, shard.kept = shard.kept, type(shard.kept)()
        for job in kept:
            self._push(job)
        for cls in self._parts:
            if cls.shard is shard:
                self._release(cls, None)
        self._wake(shard)

    def _wake(self, shard: SimulatedShard) -> None:
        for one in shard.sets:
            for process in list(one.serving()):
                self._fetch(process)

    # --- processes start and stop

    def _set_count(self, name: str, count: int) -> None:
        """Set the number of processes at once: those that are too many die, and their jobs run again after the lease."""
        one = self._sets[name]
        serving = list(one.serving())
        for process in serving[count:]:
            self._lose(process, current_timings().alive_within_s)
        for _ in range(count - len(serving)):
            self._fetch(one.add())

    def _lose(self, process: SimulatedProcess, returns_after_s: float) -> None:
        process.stops = process.is_gone = True
        process.of.processes.remove(process)
        jobs, process.jobs = process.jobs, set()
        for job in jobs:
            job.cls.running -= 1
        if jobs:
            self._at(self._now + returns_after_s, partial(self._return, list(jobs)))

    def _return(self, jobs: list[SimulatedJob]) -> None:
        for job in sorted(jobs, key=lambda one: one.came, reverse=True):
            self._put(job.cls.queue, job, in_front=True)
        for cls in {job.cls for job in jobs}:
            self._release_through_queue(cls)

    def _deploy(self, one: ProcessSet) -> None:
        one.restarts_left = sum(1 for _ in one.serving())
        for process in list(one.serving())[: ceil(one.restarts_left * _DEPLOYED_AT_ONCE)]:
            self._restart(process)

    def _restart(self, process: SimulatedProcess) -> None:
        process.of.restarts_left -= 1
        process.of.starting += 1
        process.restarts = True
        self._stop(process)

    def _stop(self, process: SimulatedProcess) -> None:
        """Let a process end its jobs; what still runs after its timeout runs again elsewhere."""
        process.stops = True
        self._at(self._now + process.of.facts.timeout_s, partial(self._give_up, process))
        self._note_stopped(process)

    def _give_up(self, process: SimulatedProcess) -> None:
        if not process.is_gone:
            self._lose(process, 0.0)
            self._follow_deploy(process)

    def _note_stopped(self, process: SimulatedProcess) -> None:
        if process.stops and not (process.jobs or process.is_gone):
            process.is_gone = True
            process.of.processes.remove(process)
            self._follow_deploy(process)

    def _follow_deploy(self, process: SimulatedProcess) -> None:
        """Start the successor of a process that a deploy has stopped."""
        if process.restarts:
            self._at(self._now + self._model.scenario.autoscaling.start, partial(self._boot, process.of))

    def _boot(self, one: ProcessSet) -> None:
        """Start a process, and restart the next one of a deploy."""
        one.starting -= 1
        old = list(one.serving())
        self._fetch(one.add())
        if one.restarts_left and old:
            self._restart(old[0])

    # --- what is read again and again

    def _plan_periods(self) -> None:
        self._at(0.0, self._sample)
        if any(one.facts.processes.at_most is not None for one in self._sets.values()):
            self._at(_FIRST_READING_S, self._scale)

    def _sample(self) -> None:
        held = Counter[str]()
        for cls in self._parts:
            held[cls.shard.name] += len(cls.held)
        shards = self._shards.values()
        shares = {urgency: self._in_time[urgency] / count for urgency, count in self._started.items() if count}
        self._started.clear()
        self._in_time.clear()
        self._samples.append(
            FleetSample(
                self._now,
                {one.name: sum(queue.size for queue in one.queues.values()) for one in shards},
                {one.name: held[one.name] for one in shards},
                {one.name: one.waiting_bytes for one in shards},
                {name: len(one.processes) for name, one in self._sets.items()},
                {name: sum(len(each.jobs) for each in one.processes) for name, one in self._sets.items()},
                shares,
            )
        )
        self._at(self._now + self._step_s, self._sample)

    def _scale(self) -> None:
        """Let the autoscaler read each shard, and start or stop processes."""
        scaling = self._model.scenario.autoscaling
        for shard in self._shards.values():
            if not shard.is_away:
                needed = self._slots_needed(shard)
                for one in shard.sets:
                    self._follow(one, needed.get(one.facts.group, 0))
        self._at(self._now + scaling.period, self._scale)

    def _slots_needed(self, shard: SimulatedShard) -> Mapping[str, int]:
        classes = [cls for cls in self._parts if cls.shard is shard]
        busy, ended, seconds = Counter[str](), Counter[str](), defaultdict[str, float](float)
        for cls in classes:
            result = self._results[cls.facts.name]
            busy[cls.queue.name] += cls.running
            seconds[cls.queue.name] += result.seconds
            ended[cls.queue.name] += result.ended
        runs = {process.identity: dict(process.ended) for one in shard.sets for process in one.processes}
        mean = {name: seconds[name] / count for name, count in ended.items() if count}
        sizes = {name: queue.size for name, queue in shard.queues.items()}
        loads: Mapping[str, QueueLoad] = self._loads[shard.name].note(
            LoadSample(self._now, sizes, frozenset(), runs, busy, mean)
        )
        urgencies: dict[str, Urgency] = {cls.queue.name: cls.facts.urgency for cls in classes}
        limits = Counter[str]()
        unlimited = {cls.queue.name for cls in classes if cls.slots.limit is None}
        for cls in classes:
            limit = cls.slots.limit
            if limit is not None and cls.queue.name not in unlimited:
                limits[cls.queue.name] += limit
        here = {one.facts.group for one in shard.sets}
        groups = {name: queues for name, queues in self._model.groups.items() if name in here}
        return group_slots(loads, urgencies, groups, limits)

    def _follow(self, one: ProcessSet, slots: int) -> None:
        bounds, serving = one.facts.processes, list(one.serving())
        if bounds.at_most is None:
            return
        scaling = self._model.scenario.autoscaling
        wanted = min(bounds.at_most, max(bounds.at_least, ceil(slots / one.facts.slots)))
        has = len(serving) + one.starting
        if wanted >= has:
            one.too_many_since = None
        elif one.too_many_since is None:
            one.too_many_since = self._now
        for _ in range(wanted - has):
            one.starting += 1
            self._at(self._now + scaling.start, partial(self._boot, one))
        if one.too_many_since is not None and self._now - one.too_many_since >= scaling.calm:
            for process in serving[wanted:]:
                self._stop(process)
            one.too_many_since = None
