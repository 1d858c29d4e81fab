"""The statements that run once per job, built once: building one costs SQLAlchemy five times what running it costs."""

from typing import Any, Final

from sqlalchemy import BindParameter, Executable, bindparam, exists, select, update
from sqlalchemy.dialects import postgresql, sqlite

from workers.code_index.tables import files, results, runs

_RUN: Final[BindParameter[str]] = bindparam("run_id")
_NUMBER: Final[BindParameter[int]] = bindparam("number")

# FOR UPDATE is PostgreSQL's; on SQLite the transaction holds the database's write lock from its first statement.
LOCK_RUN: Final = select(runs.c.files_total, runs.c.finished_at).where(runs.c.id == _RUN).with_for_update()
HAS_PENDING_FILES: Final = select(exists().where(files.c.run_id == _RUN, files.c.pending))
PENDING: Final = select(files.c.number).where(files.c.run_id == _RUN, files.c.pending).order_by(files.c.number)
PATH: Final = select(files.c.path).where(files.c.run_id == _RUN, files.c.number == _NUMBER)
FILE_DONE: Final = (
    update(files)
    .where(files.c.run_id == bindparam("of_run"), files.c.number == bindparam("of_number"))
    .values(pending=False)
)


def begin_run(dialect: str) -> Executable:
    """Insert the run unless it is there."""
    return _insert(dialect, runs).on_conflict_do_nothing()


def upsert_result(dialect: str) -> Executable:
    """Write a file's result, over an earlier one if there is one."""
    statement = _insert(dialect, results)
    written = {column.name: statement.excluded[column.name] for column in results.c if not column.primary_key}
    return statement.on_conflict_do_update(index_elements=["run_id", "number"], set_=written)


def _insert(dialect: str, table: Any) -> sqlite.Insert | postgresql.Insert:
    return postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)
