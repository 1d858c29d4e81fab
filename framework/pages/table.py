"""A page that is one table of things of the shards, such as locks: its rows, its columns, and the actions on rows."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeAlias, TypeVar

from framework.pages.page import Page
from framework.pages.view import Facts, View
from framework.shard.shard import Shard

T = TypeVar("T")

ColumnKind: TypeAlias = Literal[
    "text",
    "code",
    "count",
    "bytes",
    "time",
    "duration",
    "class",
    "queue",
    "job",
    "batch",
    "workflow",
    "tag",
    "progress",
]
"""How a value is shown. ``class``, ``queue``, ``job``, ``batch`` and ``workflow`` link to their pages; ``tag`` is a word of a fixed
set; ``progress`` is a pair of what has ended, and of all."""


class Column(NamedTuple):
    """One column of a table."""

    label: str
    field: str
    """The name of its value in the facts of a row."""
    kind: ColumnKind = "text"


class Rows(ABC, Generic[T]):
    """The things of one kind on the shards: what a table shows, and on what its actions act."""

    noun: ClassVar[str]
    """What one of them is called: ``lock``."""

    @abstractmethod
    def read(self, view: View, shard: Shard) -> Iterable[T]:
        """Return the things of one shard. Raises redis errors."""

    @abstractmethod
    def name_of(self, one: T) -> str:
        """Return the name of a thing, unique on its shard."""

    @abstractmethod
    def facts(self, one: T) -> Facts:
        """Return the values of its row, beside its name and its shard."""

    def worker_of(self, one: T) -> str | None:  # noqa: ARG002 - for subclasses
        """Return the class whose feature category decides who may see and change it; ``None`` if only the shard decides."""
        return None


class TablePage(Page, Generic[T]):
    """A page that is one table."""

    rows: Rows[T]
    columns: ClassVar[Sequence[Column]]
    heading: ClassVar[str]
    """The heading of the column with the name."""
    name_kind: ClassVar[ColumnKind] = "text"
    about: ClassVar[str] = ""
    """A sentence above the table."""
    empty: ClassVar[str]
    """What is said if there is no row."""
    most: ClassVar[int] = 80
    """The rows that are shown."""

    async def read(self, view: View) -> Facts:
        """Read the things of each shard that the caller may see."""
        return self.facts_of(view, await view.each(lambda shard: list(self.rows.read(view, view.shards[shard]))))

    def facts_of(self, view: View, found: Mapping[str, Sequence[T]]) -> Facts:
        """Return what the page shows of the things of each shard: those that the caller may see."""
        facts = [
            {"name": self.rows.name_of(one), "shard": shard, **self.rows.facts(one)}
            for shard, things in found.items()
            for one in things
            if view.may("read", shard, self.rows.worker_of(one))
        ]
        return {"total": len(facts), self.name: sorted(facts, key=self.order)[: self.most]}

    def order(self, row: Facts) -> Any:
        """Return by what rows are sorted: their names."""
        return row["name"], row["shard"]

    @property
    def template_path(self) -> Path:
        """The file of its template: that of all tables."""
        return Path(__file__).parent / "templates" / "table.html"
