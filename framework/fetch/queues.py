"""Choose the queues of each fetch, their order and quotas: Sidekiq's three modes, over any number of queues."""

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

QueueMode: TypeAlias = Literal["strict", "weighted", "random"]

HOT_QUEUES = 32
"""Up to so many queues, each fetch reads all. Of more, it reads the hot ones: those that had jobs lately."""

MAX_QUEUES_PER_FETCH = 1_000
"""Most queues of one fetch, about a quarter of a millisecond in Redis; of more, each fetch reads the next ones."""

COLD_SWEEP_S = 0.1
"""Period of the fetches from cold queues while hot ones have jobs."""


@dataclass(frozen=True)
class QueueOrder:
    """The queues of a process with their weights; weight 0 means that none is set.

    No weights: strict order. All weights 1: random order. Otherwise a queue comes first with probability weight / sum.
    """

    weights: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, weights: Sequence[tuple[str, int]]) -> "QueueOrder":
        """Return the order of ``weights``; a repeated name counts once, with the sum of its weights."""
        merged: dict[str, int] = {}
        for name, weight in weights:
            merged[name] = merged.get(name, 0) + weight
        return cls(tuple(merged.items()))

    @property
    def names(self) -> list[str]:
        """Every queue, in declared order."""
        return [name for name, _ in self.weights]

    @property
    def mode(self) -> QueueMode:
        """Sidekiq's mode that the weights mean."""
        if all(weight == 0 for _, weight in self.weights):
            return "strict"
        return "random" if all(weight == 1 for _, weight in self.weights) else "weighted"

    def draw(self, among: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
        """Draw the order of these queues for one fetch; return each with its weight."""
        # Efraimidis and Spirakis: sorting by u**(1/w) draws without replacement in proportion to the weights.
        keyed = [(random.random() ** (1 / max(weight, 1)), name, weight) for name, weight in among]
        return [(name, weight) for _, name, weight in sorted(keyed, reverse=True)]


class QueueRotation:
    """Choose the queues of the next fetch by the queues in which the last fetches found jobs. For one thread at a time."""

    def __init__(self, order: QueueOrder) -> None:
        self._order = order
        self._strict = order.mode == "strict"
        self._paused: frozenset[str] = frozenset()
        self._served = order.weights
        self._weights = dict(order.weights)
        self._hot: dict[str, int] = {}
        self._sweep_at = 0.0
        self._hot_only = False
        self._remaining: list[tuple[str, int]] = []
        self._none_found = True
        self.all_checked = True
        """Whether the last fetch, or the last round of fetches, covered every queue and found no job."""

    @property
    def served(self) -> tuple[tuple[str, int], ...]:
        """The queues that are not paused."""
        return self._served

    def pause(self, names: Collection[str]) -> bool:
        """Skip exactly these queues from now on; return whether that is a change."""
        paused = frozenset(names)
        if paused == self._paused:
            return False
        self._paused = paused
        self._served = tuple(entry for entry in self._order.weights if entry[0] not in paused)
        self._weights = dict(self._served)
        self._remaining.clear()
        self._hot.clear()
        self._sweep_at = 0.0
        return True

    def next(self, wanted: int, now: float) -> list[tuple[str, int]]:
        """Return the queues for a fetch of ``wanted`` jobs at ``now``, each with its quota."""
        among = self._candidates(now)
        if len(among) == 1:
            return [(among[0][0], wanted)]
        if self._strict:
            return [(name, wanted) for name, _ in among]
        total = sum(max(weight, 1) for _, weight in among)
        # Rounded up: the quota of a queue with a small weight is one job, not none.
        return [(name, -(-wanted * max(weight, 1) // total)) for name, weight in self._order.draw(among)]

    def record_found(self, source_queues: Collection[str], *, enough: bool) -> None:
        """Record the queues that had jobs; ``enough``: the fetch found as many jobs as were wanted."""
        if len(self._served) <= HOT_QUEUES:
            return
        weights = self._hot if self._hot_only else self._weights
        self._hot = {name: weights[name] for name in source_queues if name in weights}
        if self._hot_only:
            if not enough:
                # The hot queues had too few jobs: read the cold ones next.
                self._sweep_at = 0.0
            return
        self._none_found = self._none_found and not source_queues
        if source_queues and self._strict:
            # Strict order: the next round starts with the most important queue again.
            self._remaining.clear()
        self.all_checked = self._none_found and not self._remaining

    def _candidates(self, now: float) -> Sequence[tuple[str, int]]:
        if len(self._served) <= HOT_QUEUES:
            return self._served
        self._hot_only = bool(self._hot) and now < self._sweep_at
        if self._hot_only:
            self.all_checked = False
            return list(self._hot.items())
        return self._next_cold_queues(now)

    def _next_cold_queues(self, now: float) -> Sequence[tuple[str, int]]:
        """Return the queues of a cold fetch: all, or the next part of very many."""
        if not self._remaining:
            self._none_found = True
            # `next` draws the order of weighted queues.
            in_order = self._strict or len(self._served) <= MAX_QUEUES_PER_FETCH
            self._remaining = list(self._served) if in_order else self._order.draw(self._served)
        part, self._remaining = self._remaining[:MAX_QUEUES_PER_FETCH], self._remaining[MAX_QUEUES_PER_FETCH:]
        self.all_checked = not self._remaining
        self._sweep_at = now + COLD_SWEEP_S
        return part
