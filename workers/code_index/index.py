"""The code index's questions and answers in SQL: record a run, record a result, ask whether the run is complete.

What a crash does: jobs run at least once, and a process can die between any two lines, so nothing here counts up or
down. A result is a row that says what is true, written over itself by a second run; completeness is asked of the rows.
The file job commits its result and learns in the same transaction whether a report is due; it pushes the report job
only after the commit. Dying before the commit leaves nothing; dying between commit and push leaves a job that was not
acknowledged: it runs again, finds its result, asks again, gets the same answer and pushes. Pushing before the commit
would let the report start before the last row is there.
Two last files that finish together cannot both see the other as missing: each asks only after it holds the run's row
(SQLite: the one write lock, from BEGIN IMMEDIATE), so the second asks when the first has committed. Both may see the
run complete when jobs run twice; then two report jobs are pushed, and the second writes the same page again.
"""

import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, Final

from sqlalchemy import Connection, Engine, delete, func, insert, select, update

from framework.errors import BusinessError
from workers.code_index import statements
from workers.code_index.analysis import Finding
from workers.code_index.database import process_engine
from workers.code_index.source_files import SourceFile
from workers.code_index.tables import files, results, runs
from workers.database import reading, writing

_RUN_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_NOTHING_FOUND: Final[dict[str, Any]] = dict.fromkeys(column.name for column in results.c)


@dataclass(frozen=True, slots=True)
class RunProgress:
    """The progress of a run. ``files_total`` is ``None`` while its files are being listed."""

    files_total: int | None
    done: int
    refused: int
    finished: bool
    report: str | None


class CodeIndex:
    """The index in one database. Every method is one transaction; each may be called again with the same arguments."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._begin_run = statements.begin_run(engine.dialect.name)
        self._upsert_result = statements.upsert_result(engine.dialect.name)

    def begin(self, run_id: str, roots: Sequence[str]) -> bool:
        """Record the run; return whether its list of files is still to be recorded.

        Raises ``BusinessError`` when ``run_id`` cannot be part of a file name: it names the report.
        """
        if not _RUN_ID.fullmatch(run_id):
            raise BusinessError(
                f"run id {run_id!r} must be 1 to 64 letters, digits, '-' or '_', first a letter or digit"
            )
        values = {"id": run_id, "roots": list(roots), "created_at": time.time()}
        with writing(self._engine) as connection:
            connection.execute(self._begin_run, values)
            return connection.scalar(select(runs.c.files_total).where(runs.c.id == run_id)) is None

    def record_files(self, run_id: str, found: Sequence[SourceFile]) -> None:
        """Record the run's list of files, whole or not at all. A list that was recorded before stays."""
        rows = [{"run_id": run_id, "number": i, **asdict(file), "pending": True} for i, file in enumerate(found, 1)]
        with writing(self._engine) as connection:
            if _lock_run(connection, run_id).files_total is not None:
                return
            if rows:
                connection.execute(insert(files), rows)
            connection.execute(update(runs).where(runs.c.id == run_id).values(files_total=len(rows)))

    def pending(self, run_id: str) -> list[int]:
        """Return the numbers of the files without a result."""
        with reading(self._engine) as connection:
            return list(connection.scalars(statements.PENDING, {"run_id": run_id}))

    def key_path(self, run_id: str, number: int) -> bytes:
        """Return the path of a file of the run. Raises ``BusinessError`` when the run has no such file."""
        with reading(self._engine) as connection:
            path: bytes | None = connection.scalar(statements.PATH, {"run_id": run_id, "number": number})
        if path is None:
            raise BusinessError(
                f"run {run_id!r} has no file number {number}; it was removed, or the database is another"
            )
        return path

    def record_result(self, run_id: str, number: int, finding: Finding, *, cpu_s: float, duration_s: float) -> bool:
        """Record the file's result; return whether it was the last one, so that the report is due."""
        row = _NOTHING_FOUND | asdict(finding) | {"run_id": run_id, "number": number}
        row |= {"cpu_s": cpu_s, "duration_s": duration_s, "indexed_at": time.time()}
        with writing(self._engine) as connection:
            connection.execute(self._upsert_result, row)
            connection.execute(statements.FILE_DONE, {"of_run": run_id, "of_number": number})
            return _report_due(connection, run_id)

    def report_due(self, run_id: str) -> bool:
        """Return whether every file of the run has its result and no report was written yet."""
        with writing(self._engine) as connection:
            return _report_due(connection, run_id)

    def complete(self, run_id: str) -> bool:
        """Return whether every file of the run has its result. Raises ``BusinessError`` when there is no such run."""
        with writing(self._engine) as connection:
            return _lock_run(connection, run_id).files_total is not None and not _has_pending_files(connection, run_id)

    def state(self, run_id: str) -> RunProgress | None:
        """Return the progress of the run; ``None`` when there is no such run."""
        with reading(self._engine) as connection:
            run = connection.execute(select(runs).where(runs.c.id == run_id)).one_or_none()
            if run is None:
                return None
            counts = select(func.count(), func.count(results.c.kind)).where(results.c.run_id == run_id)
            done, refused = connection.execute(counts).one()
        return RunProgress(run.files_total, done, refused, run.finished_at is not None, run.report)

    def finish(self, run_id: str, report: str) -> None:
        """Record that the run is finished and its report lies at ``report``."""
        with writing(self._engine) as connection:
            connection.execute(update(runs).where(runs.c.id == run_id).values(finished_at=time.time(), report=report))

    def delete_run(self, run_id: str) -> None:
        """Delete everything about the run from the database."""
        with writing(self._engine) as connection:
            connection.execute(delete(runs).where(runs.c.id == run_id))


def this_process_index() -> CodeIndex:
    """Return the index in the database that this process is configured for."""
    return _index_on(process_engine())


@cache
def _index_on(engine: Engine) -> CodeIndex:
    return CodeIndex(engine)


def _report_due(connection: Connection, run_id: str) -> bool:
    run = _lock_run(connection, run_id)
    return run.files_total is not None and run.finished_at is None and not _has_pending_files(connection, run_id)


def _lock_run(connection: Connection, run_id: str) -> Any:
    run = connection.execute(statements.LOCK_RUN, {"run_id": run_id}).one_or_none()
    if run is None:
        raise BusinessError(f"there is no run {run_id!r}; it was removed, or the database is another")
    return run


def _has_pending_files(connection: Connection, run_id: str) -> bool:
    return bool(connection.scalar(statements.HAS_PENDING_FILES, {"run_id": run_id}))
