"""Define injections, faults and the injector, which runs the faults of a round one after the other or two at a time.

A fault is a generator: it injects, yields until it is time to continue, and heals. Between two steps the round
continues, so no code here sleeps. A fault that is ended early (``close``) heals in its ``finally``.
"""

import random
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from tests.chaos.rounds.round_shard import RoundShard

PROCESS, REDIS, NETWORK = "process", "redis", "network"
Steps: TypeAlias = Generator[None, None, None]


@dataclass
class Injection:
    """One injection: kind, target (pid 0: Redis or its network), start and end of the fault (monotonic seconds)."""

    kind: str
    pid: int
    at: float
    until: float = 0.0
    family: str = REDIS
    forgets: tuple[float, float] | None = None
    """The period whose answers the server, or its successor, then forgot."""
    forgotten: frozenset[int] = frozenset()
    """The serials whose push was forgotten, by the servers' own files."""
    forgotten_ends: frozenset[int] = frozenset()
    """The serials whose end (acknowledgement) was forgotten, by the same files."""
    fewest: int | None = None
    """The fewest working processes meanwhile, at any reading; ``None``: no promise."""


class Fault(NamedTuple):
    """One kind of fault. ``family`` is its target: ``process``, ``redis`` or ``network``; no two faults at a time have
    the target Redis, or the network.
    """

    kind: str
    family: str
    act: Callable[[RoundShard, Injection], Steps]
    possible: Callable[[RoundShard], bool]
    to_the_end: bool
    """Whether it must run to its end when the round is over, rather than be ended early."""


def fault(
    kind: str, family: str, *, possible: Callable[[RoundShard], bool] = lambda _: True, to_the_end: bool = False
) -> Callable[[Callable[[RoundShard, Injection], Steps]], Fault]:
    """Make a fault of a generator function."""
    return lambda act: Fault(kind, family, act, possible, to_the_end)


def lasting(seconds: float) -> Steps:
    """Yield until so much time has passed."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        yield


class FaultInjector:
    """Injects faults into one shard when ``step`` is called, which is often; remembers every injection.

    ``pause_s`` (least, most) is from the start of a fault to that of the next, ``rest_s`` the least from an end to a
    start.
    """

    def __init__(
        self,
        round_shard: RoundShard,
        faults: Sequence[Fault],
        pause_s: tuple[float, float],
        rng: random.Random,
        *,
        at_once: int = 1,
        rest_s: float = 0.0,
    ) -> None:
        self.injections: list[Injection] = []
        self._round_shard, self._faults, self._rng = round_shard, faults, rng
        self._pause_s, self._at_once, self._rest_s = pause_s, at_once, rest_s
        self._undrawn: list[Fault] = []
        self._active: list[tuple[Fault, Injection, Steps]] = []
        self._next_at = 0.0

    @property
    def busy(self) -> bool:
        """Return whether a fault is under way."""
        return bool(self._active)

    def step(self, now: float, *, inject: bool = True) -> None:
        """Continue the faults under way; start another one if it is time."""
        for one in list(self._active):
            self._step(*one)
        if inject and now >= self._next_at and len(self._active) < self._at_once and (chosen := self._draw()):
            self._next_at = max(now, self._next_at + self._rng.uniform(*self._pause_s))
            self._begin(chosen)

    def finish(self) -> None:
        """End early the faults that need not run to their end; ``busy`` says whether one is left."""
        for chosen, injection, steps in list(self._active):
            if not chosen.to_the_end:
                self._over(chosen, injection, steps)

    def abandon(self) -> None:
        """End every fault now."""
        for one in list(self._active):
            self._over(*one)

    def _draw(self) -> Fault | None:
        """Draw each kind once, in random order, then all again; an impossible one waits for a later draw."""
        if not self._undrawn:
            self._undrawn = self._rng.sample(self._faults, len(self._faults))
        taken = {chosen.family for chosen, _, _ in self._active} - {PROCESS}
        for index, one in enumerate(self._undrawn):
            if one.family not in taken and one.possible(self._round_shard):
                return self._undrawn.pop(index)
        return None

    def _begin(self, chosen: Fault) -> None:
        injection = Injection(chosen.kind, 0, time.monotonic(), family=chosen.family)
        self.injections.append(injection)
        steps = chosen.act(self._round_shard, injection)
        self._active.append((chosen, injection, steps))
        self._step(chosen, injection, steps)

    def _step(self, chosen: Fault, injection: Injection, steps: Steps) -> None:
        try:
            next(steps)
        except StopIteration:
            self._over(chosen, injection, steps)

    def _over(self, chosen: Fault, injection: Injection, steps: Steps) -> None:
        steps.close()
        injection.until = injection.until or time.monotonic()
        self._active.remove((chosen, injection, steps))
        self._next_at = max(self._next_at, time.monotonic() + self._rest_s)
