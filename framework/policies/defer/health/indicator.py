"""Define health indicators and their signals, and register those of the application."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from framework.declare.validators import InvalidValue, identifier
from framework.settings.health_indicators import POSTGRES_INDICATORS
from framework.typeguards import short_repr

Rows: TypeAlias = list[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Signal:
    """The result of an indicator, with the reason in one sentence for the log. The name of the class is logged."""

    reason: str

    @property
    def name(self) -> str:
        """The name that is logged: Stop, Normal, Unknown or NotAvailable (GitLab's)."""
        return type(self).__name__


class Stop(Signal):
    """Jobs must wait."""

    __slots__ = ()


class Normal(Signal):
    """Jobs may run."""

    __slots__ = ()


class Unknown(Signal):
    """The state could not be determined; jobs may run."""

    __slots__ = ()


class NotAvailable(Signal):
    """The indicator does not apply here, for example because archiving is off; jobs may run."""

    __slots__ = ()


class HealthQuery(Protocol):
    """``query("SELECT ... WHERE name = %(name)s", {"name": ...})``, with psycopg's placeholders."""

    def __call__(self, statement: str, parameters: Mapping[str, Any] | None = None) -> Rows:
        """Return the rows of a read-only statement. Raises the database's error, or TimeoutError."""
        ...


@dataclass(frozen=True, slots=True)
class Question:
    """A health check of ``database`` and some of its ``tables``. A signal after ``timeout_s`` is late."""

    database: str
    tables: tuple[str, ...]
    timeout_s: float
    query: HealthQuery
    """Queries that database's primary over the one connection for health checks, with a deadline of ``timeout_s``."""


class HealthIndicator(Protocol):
    """Judge the health of a database."""

    def evaluate(self, question: Question) -> Signal:
        """Return a signal. Called in a thread of its own, one call at a time per database; an error becomes Unknown."""
        ...


registered: dict[str, HealthIndicator] = {}
"""The application's indicators by name."""


def register(name: str, indicator: HealthIndicator) -> None:
    """Register ``indicator`` for workers that name it, and for workers that use all indicators.

    Call it where workers are declared, so that every worker process knows the indicator. A second registration of a
    name replaces the first. Raises ValueError for a name that is no word or is PostgreSQL's, TypeError for an object
    without ``evaluate``.
    """
    try:
        identifier(name)
    except InvalidValue as error:
        raise ValueError(f"the name of an indicator must be {error}, not {short_repr(name)}") from None
    if name in POSTGRES_INDICATORS:
        raise ValueError(f"the indicator {name!r} is built in: choose another name")
    if not callable(getattr(indicator, "evaluate", None)) or isinstance(indicator, type):
        raise TypeError(f"{short_repr(indicator)} is no indicator: pass an object with evaluate(question)")
    registered[name] = indicator
