"""Define health indicators and their signals, and register those of the application."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from framework.extensions import NamedExtensions
from framework.features.health.settings import POSTGRES_INDICATORS

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


registered: NamedExtensions[HealthIndicator] = NamedExtensions("health indicator", "evaluate", POSTGRES_INDICATORS)
"""The application's indicators by name."""


def register(name: str, indicator: HealthIndicator | type[HealthIndicator]) -> None:
    """Register ``indicator`` for workers that name it, and for workers that use all indicators. A class is
    instantiated without arguments, immediately.

    Call it where workers are declared, so that every worker process knows the indicator. A second registration of a
    name replaces the first. Raises ValueError for a name that is no word or is PostgreSQL's, TypeError for an object
    without ``evaluate``.
    """
    registered.register(name, indicator)
