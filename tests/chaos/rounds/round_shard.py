"""Bundle one shard of a round: its Redis, its workers, its load, and the records of its jobs."""

import random
import time
from dataclasses import dataclass, field

from tests.chaos.rounds.effects import ASIDE, ENDED, Effect, Effects
from tests.chaos.rounds.producer import Producer
from tests.chaos.rounds.stores import Store
from tests.chaos.rounds.worker_processes import WorkerProcesses


@dataclass
class RoundShard:
    """One shard of a round: its Redis, its workers, its load, and the records of its jobs so far."""

    store: Store
    workers: WorkerProcesses
    producer: Producer
    effects: Effects
    rng: random.Random
    seen: list[Effect] = field(default_factory=list[Effect])
    aside: list[Effect] = field(default_factory=list[Effect])
    """The records of jobs that are not the producer's."""
    done: set[int] = field(default_factory=set[int])
    changed: float = 0.0
    """When a job last ended for the first time (monotonic seconds)."""

    def read(self) -> None:
        """Read the new records of the jobs."""
        received = list(self.effects.fresh())
        fresh = [effect for effect in received if effect.serial < ASIDE]
        self.aside += [effect for effect in received if effect.serial >= ASIDE]
        before = len(self.done)
        self.seen += fresh
        self.done.update(effect.serial for effect in fresh if effect.kind == ENDED)
        if len(self.done) != before:
            self.changed = time.monotonic()

    def stop(self) -> None:
        """End the load and the processes."""
        self.producer.stop()
        self.workers.stop()
        self.read()
