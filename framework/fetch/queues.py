"""In which order queues are looked at: strict, weighted or random (Sidekiq's three modes)."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Mode: TypeAlias = Literal["strict", "weighted", "random"]


@dataclass(frozen=True)
class QueueOrder:
    """The queues that a process serves, with weights; weight 0 means that none was given.

    No weights: strict order. All weights 1: random. Otherwise a queue is looked at first with probability weight / sum.
    """

    weights: tuple[tuple[str, int], ...]
    random: Callable[[], float] = field(default=random.random, repr=False)

    @classmethod
    def of(cls, weights: Sequence[tuple[str, int]]) -> "QueueOrder":
        """Return the order of ``weights``; a name that comes twice counts once, with the sum of its weights."""
        merged: dict[str, int] = {}
        for name, weight in weights:
            merged[name] = merged.get(name, 0) + weight
        return cls(tuple(merged.items()))

    @property
    def names(self) -> list[str]:
        """Every queue, in declared order."""
        return [name for name, _ in self.weights]

    @property
    def mode(self) -> Mode:
        """Which of Sidekiq's modes the weights stand for."""
        if all(weight == 0 for _, weight in self.weights):
            return "strict"
        return "random" if all(weight == 1 for _, weight in self.weights) else "weighted"

    def draw(self) -> list[str]:
        """Return all queues in the order for one fetch."""
        if len(self.weights) == 1 or self.mode == "strict":
            return self.names
        # Efraimidis and Spirakis: sorting by u**(1/w) draws without replacement in proportion to the weights.
        keyed = [(self.random() ** (1 / max(weight, 1)), name) for name, weight in self.weights]
        return [name for _, name in sorted(keyed, reverse=True)]
