"""What an indicator is: asked about a database and some tables, it gives a signal. And the application's own ones."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from framework.declare.validators import InvalidValue, identifier
from framework.settings.health_indicators import POSTGRES_INDICATORS
from framework.typeguards import short_repr

Rows: TypeAlias = list[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Signal:
    """What an indicator says, and why in one sentence, for the log. The class's name is the word that is logged."""

    reason: str

    @property
    def name(self) -> str:
        """The word: Stop, Normal, Unknown or NotAvailable (GitLab's)."""
        return type(self).__name__


class Stop(Signal):
    """Jobs are to wait."""

    __slots__ = ()


class Normal(Signal):
    """Jobs may run."""

    __slots__ = ()


class Unknown(Signal):
    """It could not be found out; stops nothing."""

    __slots__ = ()


class NotAvailable(Signal):
    """There is nothing to find out here, as with archiving that is switched off; stops nothing."""

    __slots__ = ()


class HealthQuery(Protocol):
    """``query("SELECT ... WHERE name = %(name)s", {"name": ...})``, with psycopg's placeholders."""

    def __call__(self, statement: str, parameters: Mapping[str, Any] | None = None) -> Rows:
        """Return the rows of a statement that only reads; raises what the database says, or TimeoutError."""
        ...


@dataclass(frozen=True, slots=True)
class Question:
    """Asked of an indicator: how is this ``database``, and these ``tables`` of it? An answer after ``timeout_s`` is late."""

    database: str
    tables: tuple[str, ...]
    timeout_s: float
    query: HealthQuery
    """Asks that database's primary, with a deadline of ``timeout_s`` of its own, over the one connection for such questions."""


class HealthIndicator(Protocol):
    """Something that knows how a database is."""

    def evaluate(self, question: Question) -> Signal:
        """Return a signal. It is called in a thread of its own, one call at a time per database; what it raises is Unknown."""
        ...


registered: dict[str, HealthIndicator] = {}
"""The application's own, by name."""


def register(name: str, indicator: HealthIndicator) -> None:
    """From now on ``indicator`` is asked under this name: by workers that name it, and by those that ask all.

    To be called where workers are declared, so that every worker process knows it; a second one of a name replaces the first.
    Raises ValueError for a name that is no word or PostgreSQL's, TypeError for an object without ``evaluate``.
    """
    try:
        identifier(name)
    except InvalidValue as error:
        raise ValueError(f"the name of an indicator must be {error}, not {short_repr(name)}") from None
    if name in POSTGRES_INDICATORS:
        raise ValueError(f"there is an indicator called {name!r} already: choose another name")
    if not callable(getattr(indicator, "evaluate", None)) or isinstance(indicator, type):
        raise TypeError(f"{short_repr(indicator)} is no indicator: pass an object with evaluate(question)")
    registered[name] = indicator
