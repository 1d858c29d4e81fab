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


class DueTime(NamedTuple):
    """When a job is due: at the moment ``at``, epoch seconds, or ``delay_s`` after the moment at which Redis takes it.

    With a ``delay_s`` Redis's clock decides, and ``at`` is only what this host's clock makes of it.
    """

    at: float
    delay_s: float | None = None


class PushRequest(NamedTuple):
    """One push: arguments bound but not yet checked, and when it is ``due``; ``None`` for now."""

    declaration: Declaration
    args: list[Any]
    due: DueTime | None = None
    options: Mapping[str, Any] = NO_OPTIONS


class BulkPacing(NamedTuple):
    """How the jobs of a bulk are spread: ``size`` of them when the first is due, as many every ``batch_delay_s`` (GitLab)."""

    batch_size: int
    batch_delay_s: float

    def delay_s_of(self, index: int) -> float:
        """Return how many seconds after the first job number ``index``, from 0, is due."""
        return index // self.batch_size * self.batch_delay_s


class BulkRequest(NamedTuple):
    """Many pushes of one worker; ``due`` is when the first is, with a ``pace`` the others later, and ``contexts`` one per job.

    The arguments come as the caller gave them, unbound and unchecked: ``slices`` has what does both.
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
