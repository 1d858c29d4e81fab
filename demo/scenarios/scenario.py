"""Define what a scenario consists of."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

from framework import ApplicationWorker
from framework.tasks import Task


class Figure(NamedTuple):
    """A line of the summary."""

    name: str
    value: str
    note: str = ""


class Scenario(ABC):
    """One scenario. ``size`` is the number of its rows."""

    title: ClassVar[str]
    default_size: ClassVar[int]
    workers: ClassVar[Sequence[type[ApplicationWorker]]]
    formats: ClassVar[Sequence[str]]

    def __init__(self, folder: Path, size: int, kind: str) -> None:
        self.folder = folder
        self.size = size
        self.kind = kind

    @abstractmethod
    def prepare(self, stopped: Callable[[], bool]) -> str:
        """Make the input, and return one line about it. It ends early when ``stopped`` returns true."""

    @abstractmethod
    def begin(self) -> Task:
        """Make the task, and push its first jobs."""

    def is_settled(self) -> bool:
        """Return whether jobs outside of the task, which it pushed, have ended too. Called when the task is complete."""
        return True

    @abstractmethod
    def figures(self) -> Iterator[Figure]:
        """Yield the figures of the result."""

    @abstractmethod
    def files(self) -> Iterator[tuple[str, Path]]:
        """Yield the files of the result, and what each is."""
