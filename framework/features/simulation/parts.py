"""The things of a simulated fleet: jobs, queues, limits, processes, shards."""

import itertools
import math
from collections import Counter, deque
from collections.abc import Iterator

from framework.features.simulation.model import SimulatedClass, SimulatedSet
from framework.fetch.queues import QueueRotation


class SimulatedJob:
    """One job."""

    __slots__ = ("came", "cls", "duration", "failures", "processor", "tenant")

    def __init__(self, cls: "JobClass", came: float, duration: float, processor: float, tenant: int) -> None:
        self.cls = cls
        self.came = came
        """When it became due, in seconds of the simulation."""
        self.duration = duration
        self.processor = processor
        self.tenant = tenant
        self.failures = 0


class ClassSlots:
    """The slots of a class on all its shards, which use them in the order in which its jobs come."""

    __slots__ = ("is_off", "limit", "running")

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.is_off = False
        self.running = 0

    @property
    def free(self) -> float:
        """How many further jobs may start."""
        if self.is_off:
            return 0
        return math.inf if self.limit is None else max(0, self.limit - self.running)


class JobClass:
    """The part of a class on one shard: how many of its jobs run, and those that wait for a slot, or until the class is on again."""

    __slots__ = ("facts", "held", "queue", "rate", "running", "shard", "slots")

    def __init__(
        self, facts: SimulatedClass, shard: "SimulatedShard", queue: "SimulatedQueue", slots: ClassSlots
    ) -> None:
        self.facts = facts
        self.shard = shard
        self.queue = queue
        self.slots = slots
        self.rate = facts.load.rate / len(facts.shards)
        self.running = 0
        self.held = deque[SimulatedJob]()

    @property
    def may_release(self) -> bool:
        """Whether one of its held jobs may start."""
        return bool(self.held and self.slots.free and not self.shard.is_away)


class SimulatedQueue:
    """The waiting jobs of one queue, oldest first; the keys of fair classes take turns, with the plain jobs as one key."""

    _PLAIN = 0

    def __init__(self, name: str) -> None:
        self.name = name
        self.size = 0
        self.sets: list[ProcessSet] = []
        self._waiting: dict[int, deque[SimulatedJob]] = {}
        self._turns = deque[int]()

    def put(self, job: SimulatedJob, *, in_front: bool = False) -> None:
        key = job.tenant if job.cls.facts.is_fair else self._PLAIN
        waiting = self._waiting.get(key)
        if waiting is None:
            waiting = self._waiting[key] = deque()
            self._turns.append(key)
        if in_front:
            waiting.appendleft(job)
        else:
            waiting.append(job)
        self.size += 1

    def take(self) -> SimulatedJob:
        """Take the next job; there must be one."""
        key = self._turns[0]
        waiting = self._waiting[key]
        job = waiting.popleft()
        if not waiting:
            del self._waiting[key]
            self._turns.popleft()
        elif len(self._turns) > 1:
            self._turns.rotate(-1)
        self.size -= 1
        return job


class SimulatedProcess:
    """One process: its free slots, its running jobs, and its interpreter, which runs the code of one job at a time."""

    __slots__ = (
        "ended",
        "free",
        "identity",
        "interpreter_at",
        "is_gone",
        "is_idle",
        "jobs",
        "of",
        "restarts",
        "rotation",
        "stops",
    )

    def __init__(self, of: "ProcessSet", identity: str) -> None:
        self.of = of
        self.identity = identity
        self.free = of.facts.slots
        self.jobs = set[SimulatedJob]()
        self.ended = Counter[str]()
        """Ended runs by queue."""
        self.rotation = QueueRotation(of.facts.order)
        self.interpreter_at = 0.0
        """From when on the interpreter is free."""
        self.is_idle = False
        """Whether it waits in the list of its set for a job."""
        self.stops = False
        self.restarts = False
        """Whether it stops for a deploy, which starts a successor."""
        self.is_gone = False


class ProcessSet:
    """The processes of one set, those that wait for a job in the order in which they began to wait."""

    def __init__(self, facts: SimulatedSet, shard: "SimulatedShard") -> None:
        self.facts = facts
        self.shard = shard
        self.processes: list[SimulatedProcess] = []
        self.idle = deque[SimulatedProcess]()
        self.starting = 0
        self.restarts_left = 0
        """How many processes a deploy still has to restart."""
        self.too_many_since: float | None = None
        """Since when fewer processes are enough."""
        self._numbers = itertools.count()

    def add(self) -> SimulatedProcess:
        process = SimulatedProcess(self, f"{self.facts.name}-{next(self._numbers)}")
        self.processes.append(process)
        return process

    def serving(self) -> Iterator[SimulatedProcess]:
        """Yield the processes that fetch jobs."""
        return (one for one in self.processes if not one.stops)


class SimulatedShard:
    """One Redis: its queues, its load in each step of time, and the bytes of the waiting jobs."""

    def __init__(self, name: str, steps: int) -> None:
        self.name = name
        self.queues: dict[str, SimulatedQueue] = {}
        self.sets: list[ProcessSet] = []
        self.is_away = False
        self.kept = deque[SimulatedJob]()
        """Pushes that wait in files until the shard answers."""
        self.waiting_bytes = 0
        self.store_us = [0.0] * steps
        self.traffic = [0.0] * steps

    def queue(self, name: str) -> SimulatedQueue:
        return self.queues.setdefault(name, SimulatedQueue(name))
