"""Connect to the application's databases. Jobs that may read from a replica do so without a change of code.

    from framework import databases

    with databases.session("main") as session, session.begin():
        invoice = session.get(Invoice, invoice_id)      # from the job's replica
        invoice.state = "sent"                          # written to the primary; all later reads use it too

``connection`` is for statements without models. The attribute ``data_consistency`` of a job's class allows reads from a replica.
Outside of jobs all queries use the primary, except within ``with databases.replicas():``. The names of databases are those of the
setting ``databases``. Needs the extra ``sql``.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from framework.errors import ConfigurationError
from framework.features.consistency import replica_context
from framework.features.consistency.databases import DATABASES, missing_extra
from framework.wiring.client import process_client

try:
    from sqlalchemy.orm import Session

    from framework.features.consistency.routed_queries import RoutedConnection, RoutedSession
except ModuleNotFoundError as error:
    problem = missing_extra()
    if problem is None:
        raise
    raise ConfigurationError([problem]) from error

__all__ = ["connection", "mark_written", "primary", "reads_replica", "replicas", "session"]


def connection(database: str = "main") -> RoutedConnection:
    """Return a connection for a block: ``with databases.connection() as connection: connection.execute(...)``.

    The end of the block commits, an error rolls back.

    Raises:
        ConfigurationError: the database is unknown.
    """
    return RoutedConnection(process_client.current().service(DATABASES)[database])


def session(database: str = "main", **options: Any) -> Session:
    """Return a SQLAlchemy Session with ``options``. The errors are those of ``connection``."""
    return RoutedSession(process_client.current().service(DATABASES)[database], **options)


def reads_replica(database: str = "main") -> bool:
    """Return whether this job reads from a replica now: for code with its own connections, such as Django's routers."""
    return replica_context.replica_of(database) is not None


def mark_written(database: str = "main") -> None:
    """Record a write of code with its own connections: from now on this job reads from the primary."""
    replica_context.mark_written(database)


@contextmanager
def replicas() -> Generator[None]:
    """Read from a replica of each database within the block, at any lag: for an admin page or a report.

    The first write in the block, and all later reads, use the primary.
    """
    token = replica_context.use(process_client.current().service(DATABASES).available_replicas())
    try:
        yield
    finally:
        replica_context.restore(token)


@contextmanager
def primary() -> Generator[None]:
    """Send every query of the block to the primary, for every class of job."""
    token = replica_context.use({})
    try:
        yield
    finally:
        replica_context.restore(token)
