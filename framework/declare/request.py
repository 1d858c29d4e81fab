"""What a call on a worker class becomes: a request, made of the frozen declaration and the arguments, never of the class."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, ParamSpec, Protocol

from framework.declare.declaration import Declaration
from framework.types import Json

P = ParamSpec("P")

NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})


class Performs(Protocol[P]):
    """A worker whose ``perform`` takes P; lets type checkers compare a push with the worker's own signature."""

    def perform(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Do the job."""


class Route(NamedTuple):
    """Where jobs go: the queue, the shard, and the rule that said so (None: no rule matched)."""

    queue: str
    shard: str
    rule: str | None


@dataclass(frozen=True, slots=True)
class JobRequest(Generic[P]):
    """One job of a bulk, its arguments bound to positions; made by ``Worker.arguments(...)``."""

    declaration: Declaration
    args: list[Any]


class PushRequest(NamedTuple):
    """One push: arguments bound but not yet checked, ``at`` in epoch seconds when it is to wait."""

    declaration: Declaration
    args: list[Any]
    at: float | None = None
    options: Mapping[str, Any] = NO_OPTIONS


class Pace(NamedTuple):
    """When the jobs of a spread bulk are due: ``size`` of them at ``first``, epoch seconds, as many every ``step_s`` (GitLab)."""

    first: float
    size: int
    step_s: float

    def due(self, index: int) -> float:
        """Epoch seconds at which job number ``index``, from 0, is due."""
        return self.first + index // self.size * self.step_s


class BulkRequest(NamedTuple):
    """Many pushes of one worker; ``at`` is one time for all, or the pace at which they are due, and ``contexts`` one per job.

    The arguments come as the caller gave them, unbound and unchecked: ``slices`` has what does both.
    """

    declaration: Declaration
    args: Iterable[Any]
    at: Pace | float | None = None
    options: Mapping[str, Any] = NO_OPTIONS
    contexts: Sequence[Mapping[str, Json]] | None = None

    def due(self, index: int) -> float | None:
        """When job number ``index`` is due: epoch seconds, or None for now."""
        return self.at.due(index) if isinstance(self.at, Pace) else self.at
