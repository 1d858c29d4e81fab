"""What a call on a worker class becomes: a request, made of the frozen declaration and the arguments, never of the class."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, ParamSpec, Protocol

from framework.declare.declaration import Declaration
from framework.types import Json

P = ParamSpec("P")


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


@dataclass(frozen=True, slots=True)
class PushRequest:
    """One push: arguments bound but not yet checked, ``at`` in epoch seconds when it is to wait."""

    declaration: Declaration
    args: list[Any]
    at: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class BulkRequest:
    """Many pushes of one worker; ``at`` is one time for all, or one per job, and ``contexts`` one per job."""

    declaration: Declaration
    args: list[list[Any]]
    at: list[float] | float | None = None
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    contexts: list[Mapping[str, Json]] | None = None
