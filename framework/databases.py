"""The application's databases, for jobs that may read from a replica. Code that uses them need not know which it reads from.

    from framework import databases

    with databases.session("main") as session, session.begin():
        invoice = session.get(Invoice, invoice_id)      # from the replica chosen for this job
        invoice.state = "sent"                          # written to the primary; every read after it comes from there

``connection`` is the same for statements without models. What may be read from a replica is said by the job's class
(``data_consistency``); outside of jobs everything goes to the primary, but inside of ``with databases.replicas():``.
The names are those of the setting ``databases``. Takes the extra ``sql``.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from framework.declare import port
from framework.errors import ConfigurationError, PushError
from framework.policies.consistency import replica_context
from framework.policies.consistency.databases import Databases, missing_extra
from framework.wiring.client import ProcessClient

try:
    from sqlalchemy.orm import Session

    from framework.policies.consistency.routed_queries import RoutedConnection, RoutedSession
except ModuleNotFoundError as error:
    problem = missing_extra()
    if problem is None:
        raise
    raise ConfigurationError([problem]) from error

__all__ = ["connection", "mark_written", "primary", "reads_replica", "replicas", "session"]


def connection(database: str = "main") -> RoutedConnection:
    """Return a block's connection: ``with databases.connection() as connection: connection.execute(...)``.

    The block's end commits what it wrote, an error rolls it back. Raises ConfigurationError for an unknown database.
    """
    return RoutedConnection(_bound_databases()[database])


def session(database: str = "main", **options: Any) -> Session:
    """Return a Session, to be used as any other of SQLAlchemy, with its ``options``. Raises as ``connection``."""
    return RoutedSession(_bound_databases()[database], **options)


def reads_replica(database: str = "main") -> bool:
    """Whether reads go to a replica here and now: for code that has connections of its own, as Django's routers have."""
    return replica_context.replica_of(database) is not None


def mark_written(database: str = "main") -> None:
    """Code with connections of its own has written to the primary: from now on this job reads from there."""
    replica_context.mark_written(database)


@contextmanager
def replicas() -> Generator[None]:
    """Within the block reads go to a replica of each database that has one, wherever it stands: an admin page, a report.

    The first write inside goes to the primary, and so do all reads after it.
    """
    token = replica_context.use(_bound_databases().available_replicas())
    try:
        yield
    finally:
        replica_context.restore(token)


@contextmanager
def primary() -> Generator[None]:
    """Within the block every query goes to the primary, whatever the job's class says."""
    token = replica_context.use({})
    try:
        yield
    finally:
        replica_context.restore(token)


def _bound_databases() -> Databases:
    bound = port.current()
    if isinstance(bound, ProcessClient):
        return bound.databases
    raise PushError(
        f"pushes of this process go through {type(bound).__qualname__}, which has no databases; these are configured by the "
        "client that `import framework` or `framework.boot()` binds"
    )
