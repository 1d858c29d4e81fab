"""The code index's own database: its tables, on SQLite or PostgreSQL (``CODE_INDEX_DATABASE_URL``)."""

from typing import Final

from sqlalchemy import Engine
from sqlalchemy.engine import URL

from workers import database
from workers.code_index.tables import metadata

_FEATURE: Final = "code_index"


def database_url() -> URL:
    """Return the URL that this process uses."""
    return database.database_url(_FEATURE)


def process_engine() -> Engine:
    """Return the engine of this process, its tables made; the same one for every thread."""
    return database.process_engine(_FEATURE, metadata)


def open_engine(url: URL) -> Engine:
    """Return a new engine on ``url`` whose tables exist. Raises SQLAlchemy's ``OperationalError`` when no server answers."""
    return database.open_engine(url, metadata)
