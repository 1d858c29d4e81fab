"""Requests to push: made of the frozen declaration and the arguments of a call, never of the class."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, ParamSpec, Protocol

from framework.declare.declaration import Declaration
from framework.types import Json

P = ParamSpec("P")

NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})


class Performs(Protocol[P]):
    """A worker whose ``perform`` takes P; type checkers compare a push with the worker's own signature by it."""

    def perform(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Do the job."""


class Route(NamedTuple):
    """Where jobs go: the queue, the shard, and the rule that decided (None: no rule matched)."""

    queue: str
    shard: str
    rule: str | None


@dataclass(frozen=True, slots=True)
class JobRequest(Generic[P]):
    """One job of a bulk push, its arguments bound to positions; made by ``Worker.arguments(...)``."""

    declaration: Declaration
    args: list[Any]


class DueTime(NamedTuple):
    """When a job is due: at the moment ``at``, epoch seconds, or ``delay_s`` after Redis receives it.

    With a ``delay_s`` Redis's clock decides; ``at`` is an estimate by this host's clock.
    """

    at: float
    delay_s: float | None = None


class PushRequest(NamedTuple):
    """One push: arguments that are bound and not yet checked, and when it is ``due``; ``None`` means now."""

    declaration: Declaration
    args: list[Any]
    due: DueTime | None = None
    options: Mapping[str, Any] = NO_OPTIONS


class BulkPacing(NamedTuple):
    """How the jobs of a bulk push are spread: ``batch_size`` at first, then as many every ``batch_delay_s`` (GitLab)."""

    batch_size: int
    batch_delay_s: float

    def delay_s_of(self, index: int) -> float:
        """Return how many seconds after the first job number ``index``, from 0, is due."""
        return index // self.batch_size * self.batch_delay_s


class BulkRequest(NamedTuple):
    """Many pushes of one worker. ``due`` is when the first is, ``pacing`` spreads the others, ``contexts`` has one per job.

    The arguments are as the caller gave them. ``declare.bulk`` binds and checks them.
    """

    declaration: Declaration
    args: Iterable[Any]
    due: DueTime | None = None
    options: Mapping[str, Any] = NO_OPTIONS
    contexts: Sequence[Mapping[str, Json]] | None = None
    pacing: BulkPacing | None = None

    def delay_s_of(self, index: int) -> float:
        """Return how many seconds after the first job number ``index`` is due."""
        return 0.0 if self.pacing is None else self.pacing.delay_s_of(index)
