"""Add jobs of further kinds to a round: fair turns, priorities, time-outs, joined arguments, and a chain of runs under a lease."""

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from tests.chaos.rounds.account import Account, account, runs_of
from tests.chaos.rounds.effects import ENDED, Effect
from tests.chaos.rounds.faults import Injection
from tests.chaos.rounds.jobs import CHAIN, OTHERS, BoundedWorker, ChainWorker, FairWorker, JoinedWorker, RankedWorker
from tests.chaos.rounds.producer import AcceptedPushes

_PERIOD_S = 0.5
_HANGS_EACH = 8
_HANG_S = 0.5
_MOST_OF_A_KIND = 10_000_000
_PRIORITIES = ("critical", "high", "normal", "low")

Push: TypeAlias = Callable[[int, float, random.Random], object]


class Other(NamedTuple):
    """The results of the jobs of one kind."""

    kind: str
    account: Account


class Others(NamedTuple):
    """The results of all kinds."""

    kinds: list[Other]
    chain_runs: int
    chain_ended: bool
    """Whether the chain of runs reached the end of the round."""


@dataclass
class ClassLoad:
    """``step`` is called often during the round. ``accepted`` gets the serials of all accepted jobs."""

    seconds: float
    rng: random.Random
    accepted: list[int]
    _times: dict[str, AcceptedPushes] = field(default_factory=dict[str, AcceptedPushes])
    _started: float = 0.0
    _pushed_at: float = 0.0

    def __post_init__(self) -> None:
        self._times = {kind: AcceptedPushes([], []) for kind in _PUSHES}

    def begin(self, now: float) -> None:
        """Start with the round."""
        self._started = now

    def step(self, now: float) -> None:
        """Push one job of each kind, if it is time, and at first the first run of the chain."""
        if not self._pushed_at:
            ChainWorker.perform_async(CHAIN, self._started + self.seconds)
            self.accepted.append(CHAIN)
        if now - self._started > self.seconds or now - self._pushed_at < _PERIOD_S:
            return
        self._pushed_at = now
        for kind, push in _PUSHES.items():
            begun = time.monotonic()
            times: Any = self._times[kind]
            serial = OTHERS[kind] + len(times.begun_at)
            push(serial, round(self.rng.uniform(20, 60), 1), self.rng)
            times.begun_at.append(begun)
            times.answered_at.append(time.monotonic())
            self.accepted.append(serial)

    def found(self, aside: Sequence[Effect], injections: Sequence[Injection]) -> Others:
        """Check the records, given the injections at processes."""
        kinds: list[Other] = []
        for kind, times in self._times.items():
            base = OTHERS[kind]
            own = [one._replace(serial=one.serial - base) for one in aside if 0 <= one.serial - base < _MOST_OF_A_KIND]
            kinds.append(Other(kind, account(times, own, injections, Counter())))
        chain = [effect for effect in aside if effect.serial == CHAIN]
        runs = len(runs_of(chain).get(CHAIN, ()))
        return Others(kinds, runs, any(effect.kind == ENDED for effect in chain))


def _push_bounded(serial: int, milliseconds: float, _: random.Random) -> object:
    hangs = serial % _HANGS_EACH == 0
    return (BoundedWorker.set(timeout=_HANG_S) if hangs else BoundedWorker).perform_async(serial, milliseconds)


_PUSHES: Mapping[str, Push] = {
    "fair": lambda serial, milliseconds, _: FairWorker.perform_async(serial, milliseconds),
    "ranked": lambda serial, milliseconds, rng: RankedWorker.set(priority=rng.choice(_PRIORITIES)).perform_async(
        serial, milliseconds
    ),
    "bounded": _push_bounded,
    "joined": lambda serial, _, __: JoinedWorker.perform_async(OTHERS["joined"] + serial % 3, [serial]),
}
