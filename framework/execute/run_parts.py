"""Define what features may do in the runs of jobs: around a run, before it, or in its place."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, TypeAlias

from framework.fetch.unit_of_work import UnitOfWork
from framework.types import Payload

RunCall: TypeAlias = Callable[[], Coroutine[Any, Any, Any] | None]
"""Calls ``perform``; returns the coroutine of an async method, which has not started."""


class AroundRun(ABC):
    """Runs jobs with a payload field within something. Safe from any thread."""

    field: ClassVar[str]
    """The payload field of these jobs, whose value is true. Other jobs pay nothing."""

    @abstractmethod
    def run(self, instance: Any, call: RunCall) -> Coroutine[Any, Any, Any] | None:
        """Make the call, or return a coroutine that awaits the one of the call. Raises what the job raises."""


class CursorStore(ABC):
    """Stores how far the iterable jobs of one capsule are. Safe from any thread."""

    @abstractmethod
    def prepare(self, instance: Any, unit: UnitOfWork, payload: Payload) -> None:
        """Let the instance of an iterable job store its cursor. Sends nothing."""


class DetachedRuns(ABC):
    """Runs the jobs of a worker process that run neither in its threads nor on its event loop. Safe from any thread."""

    @abstractmethod
    def prepare(self) -> None:
        """Do what the first run needs, before the turn of a suspect. Raises nothing."""

    @abstractmethod
    def run(self, payload: Payload, queue: str, instance: Any, capsule: str) -> bool:
        """Run ``perform``; return whether every server middleware, of the capsule if it has one, yielded.

        Raises what the job raises. The processor time of the run is in ``instance._aw_extra``.
        """

    @abstractmethod
    def kill_all(self, timeout_s: float) -> None:
        """End every run, and wait at most ``timeout_s`` for their ends. No run begins from now on."""

    @abstractmethod
    def close(self) -> None:
        """Free what the runs have used, after the last one."""

    @abstractmethod
    def after_fork_in_child(self) -> None:
        """Leave the runs to their process, in a child that a job has forked."""
