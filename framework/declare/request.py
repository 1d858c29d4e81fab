"""Represent requests to push: the declaration of the class and the arguments of a call."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import random
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, ParamSpec, Protocol

from framework.declare.declaration import Declaration
from framework.types import Json

P = ParamSpec("P")

NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})


class Performs(Protocol[P]):
    """Represent a worker whose ``perform`` takes P. Type checkers compare pushes with it."""

    def perform(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Run the job."""


class Route(NamedTuple):
    """Name the queue and the shard of a class's jobs, and the rule that matched (None: no rule)."""

    queue: str
    shard: str
    rule: str | None


@dataclass(frozen=True, slots=True)
class JobRequest(Generic[P]):
    """Represent one job of a bulk push, as ``Worker.arguments(...)`` returns it: its arguments bound to positions."""

    declaration: Declaration
    args: list[Any]


class DueTime(NamedTuple):
    """Represent the time of a job: ``at`` in epoch seconds, or ``delay_s`` seconds after Redis receives it.

    With a ``delay_s`` Redis's clock counts; ``at`` is then an estimate by the clock of this host.
    """

    at: float
    delay_s: float | None = None


class PushRequest(NamedTuple):
    """Represent one push: bound but unchecked arguments, and the time ``due`` (None: now)."""

    declaration: Declaration
    args: list[Any]
    due: DueTime | None = None
    options: Mapping[str, Any] = NO_OPTIONS


class BulkPacing(NamedTuple):
    """Spread the jobs of a bulk push: ``batch_size`` jobs first, then as many every ``batch_delay_s`` seconds (GitLab)."""

    batch_size: int
    batch_delay_s: float

    def delays_s(self, start: int, count: int) -> list[float]:
        """Return the seconds between the first job of the bulk and each of ``count`` jobs from index ``start`` on."""
        return [index // self.batch_size * self.batch_delay_s for index in range(start, start + count)]


class RandomSpread(NamedTuple):
    """Spread the jobs of a bulk push at random over ``interval_s`` seconds (Sidekiq's ``spread_interval``)."""

    interval_s: float

    def delays_s(self, start: int, count: int) -> list[float]:
        del start
        return [random() * self.interval_s for _ in range(count)]


class JobTimes(NamedTuple):
    """Hold the time of each job of a bulk push, in seconds after the time of the bulk."""

    seconds: Sequence[float]

    def delays_s(self, start: int, count: int) -> Sequence[float]:
        return self.seconds[start : start + count]


class BulkRequest(NamedTuple):
    """Represent a bulk push. ``due`` is the time of the first job, ``pacing`` spreads the others, ``contexts`` has one per job.

    The arguments are those of the caller. ``declare.bulk`` binds and checks them. ``start`` is the index of the first job, for
    messages: above 0 in a later chunk of a stream.
    """

    declaration: Declaration
    args: Iterable[Any]
    due: DueTime | None = None
    options: Mapping[str, Any] = NO_OPTIONS
    contexts: Sequence[Mapping[str, Json]] | None = None
    pacing: BulkPacing | RandomSpread | JobTimes | None = None
    start: int = 0

    def delays_s(self, start: int, count: int) -> Sequence[float]:
        """Return the seconds between the first job of the bulk and each of ``count`` jobs from index ``start`` on."""
        return [0.0] * count if self.pacing is None else self.pacing.delays_s(start, count)
