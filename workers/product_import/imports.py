"""The import's questions and answers in SQL: stage a spreadsheet, import a batch, review a row, ask whether it was the last.

What a crash does: jobs run at least once, and a process can die between any two lines. The rows of the file are recorded in
one transaction before the first batch is pushed; from then on the file is not looked at again. A batch writes its products,
what became of its rows and that it is done in one transaction; a second run finds it done and only asks the questions again
whose answers the first may not have acted on: which rows to review, which prices to calculate, and whether a report is due. The
review of a row is one transaction too.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Engine, delete, func, insert, select, update
from sqlalchemy.dialects import sqlite

from framework import Discard
from workers.database import process_engine, reading, writing
from workers.product_import.corrections import corrected
from workers.product_import.product_row import ProductRow, read_product
from workers.product_import.spreadsheet import SURPLUS, Row, Spreadsheet
from workers.product_import.tables import batches, imports, metadata, products, rows

BATCH_ROWS: Final = 500


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows that one job imports, by their lines."""

    number: int
    first_line: int
    last_line: int


@dataclass(frozen=True, slots=True)
class Imported:
    """The outcome of a batch, and the jobs that it makes due."""

    counts: dict[str, int]
    categories: list[str]
    review: list[int]
    """The lines with a fault, which are reviewed one by one."""
    report_due: bool


@dataclass(frozen=True, slots=True)
class Reviewed:
    """The outcome of the review of one row, and the jobs that it makes due."""

    outcome: str
    reason: str | None
    corrections: list[str]
    category: str | None
    report_due: bool


@dataclass(frozen=True, slots=True)
class ImportState:
    """The progress of an import: ``counts`` are its rows by outcome, under ``None`` those that still wait."""

    state: str
    counts: dict[str | None, int]
    reason: str | None
    report: str | None


def create(path: Path, task_id: str | None = None) -> int:
    """Record a new import of the file at ``path``; return its id, with which the first job is pushed, in the task if any."""
    with writing(_engine()) as connection:
        values = {"path": str(path), "created_at": time.time(), "task_id": task_id}
        return int(connection.execute(insert(imports).returning(imports.c.id), values).scalar_one())


def path_to_stage(import_id: int) -> Path | None:
    """Return the file whose rows are not recorded yet, ``None`` when they are. Raises ``Discard`` for a cancelled import."""
    with reading(_engine()) as connection:
        found = _require_import(connection, import_id)
    return Path(found.path) if found.state == "new" else None


def stage(import_id: int, spreadsheet: Spreadsheet) -> None:
    """Record the rows and their batches, whole or not at all. Rows recorded before stay."""
    # Read before the transaction: a large file takes seconds, and the database has one write lock.
    taken = list(spreadsheet.rows)
    sliced = [{"import_id": import_id, "number": n, **lines} for n, lines in enumerate(_batch_ranges(taken), 1)]
    with writing(_engine()) as connection:
        if _require_import(connection, import_id).state != "new":
            return
        for some in _chunks(taken):
            connection.execute(insert(rows), [_staged_row(import_id, row) for row in some])
        if sliced:
            connection.execute(insert(batches), sliced)
        values = {"state": "staged", "columns": spreadsheet.columns}
        connection.execute(update(imports).where(imports.c.id == import_id).values(values))


def pending_batches(import_id: int) -> list[Batch]:
    """Return the batches that are not done yet."""
    wanted = select(batches.c.number, batches.c.first_line, batches.c.last_line)
    with reading(_engine()) as connection:
        found = connection.execute(wanted.where(batches.c.import_id == import_id, ~batches.c.done).order_by("number"))
        return [Batch(*row) for row in found]


def task_of(import_id: int) -> str | None:
    """Return the id of the import's task. Raises ``Discard`` for a cancelled import."""
    with reading(_engine()) as connection:
        found: str | None = _require_import(connection, import_id).task_id
    return found


def import_batch(import_id: int, number: int) -> Imported:
    """Write the rows of the batch as products; leave those with a fault for review. Raises ``Discard`` for a cancelled import."""
    read = _read_rows(import_id, number)
    accepted = [found for found in read.values() if isinstance(found, ProductRow)]
    with writing(_engine()) as connection:
        _require_import(connection, import_id)
        if not _is_done(connection, import_id, number):
            _write_outcomes(connection, import_id, read, _upsert(connection, import_id, accepted))
            connection.execute(update(batches).where(_is_batch(import_id, number)).values(done=True))
        counts = _counts(connection, rows.c.import_id == import_id, rows.c.line.in_(read))
        categories = sorted({product.category for product in accepted})
        due = _report_due(connection, import_id)
        return Imported(
            {str(key): count for key, count in counts.items()}, categories, _in_review(connection, import_id, read), due
        )


def review_row(import_id: int, line: int) -> Reviewed:
    """Correct what one row means beyond doubt, and write its product, or reject it. Raises ``Discard`` for a cancelled import."""
    row, first_line = _staged(import_id, line)
    cells, corrections = corrected(row.cells)
    found = _validate_row(line, first_line, cells)
    with writing(_engine()) as connection:
        _require_import(connection, import_id)
        this = (rows.c.import_id == import_id) & (rows.c.line == line)
        before = connection.execute(select(rows.c.outcome, rows.c.reason).where(this)).one()
        if before.outcome == "review":
            accepted = [found] if isinstance(found, ProductRow) else []
            _write_outcomes(
                connection, import_id, {line: found}, _upsert(connection, import_id, accepted), faulty="rejected"
            )
            before = connection.execute(select(rows.c.outcome, rows.c.reason).where(this)).one()
        category = found.category if isinstance(found, ProductRow) else None
        return Reviewed(before.outcome, before.reason, corrections, category, _report_due(connection, import_id))


def report_due(import_id: int) -> bool:
    """Return whether every batch is done and no report was written yet."""
    with reading(_engine()) as connection:
        return _report_due(connection, import_id)


def rejected(import_id: int) -> tuple[list[str], Iterator[tuple[int, str, dict[str, str]]]]:
    """Return the columns of the file, and line, reason and cells of each rejected row."""
    wanted = select(rows.c.line, rows.c.reason, rows.c.cells)
    with reading(_engine()) as connection:
        columns = _require_import(connection, import_id).columns
        mine = wanted.where(rows.c.import_id == import_id, rows.c.outcome == "rejected").order_by(rows.c.line)
        return columns, iter([(row.line, row.reason, row.cells) for row in connection.execute(mine)])


def finish(import_id: int, report: Path) -> None:
    """Record that the import is finished and its report lies at ``report``."""
    _set(import_id, state="finished", report=str(report))


def fail(import_id: int, reason: str) -> None:
    """Record that the import has ended without a result, and why."""
    _set(import_id, state="failed", reason=reason)


def cancel(import_id: int) -> None:
    """Cancel the import: its later jobs do nothing. Imported products stay."""
    _set(import_id, state="cancelled")


def remove(import_id: int) -> None:
    """Delete everything about the import but the products."""
    with writing(_engine()) as connection:
        connection.execute(delete(imports).where(imports.c.id == import_id))


def state(import_id: int) -> ImportState | None:
    """Return the progress of the import; ``None`` when there is none."""
    with reading(_engine()) as connection:
        found = connection.execute(select(imports).where(imports.c.id == import_id)).one_or_none()
        if found is None:
            return None
        return ImportState(found.state, _counts(connection, rows.c.import_id == import_id), found.reason, found.report)


# --- the parts ------------------------------------------------------------------------------------------------------


def _engine() -> Engine:
    return process_engine("product_import", metadata)


def _require_import(connection: Connection, import_id: int) -> Any:
    found = connection.execute(select(imports).where(imports.c.id == import_id)).one_or_none()
    if found is None:
        raise Discard(f"import {import_id} was removed")
    if found.state == "cancelled":
        raise Discard(f"import {import_id} was cancelled")
    return found


def _set(import_id: int, **values: str) -> None:
    with writing(_engine()) as connection:
        connection.execute(update(imports).where(imports.c.id == import_id).values(values))


def _staged_row(import_id: int, row: Row) -> dict[str, Any]:
    return {"import_id": import_id, "line": row.line, "sku": row.cells.get("sku", "").strip(), "cells": row.cells}


def _chunks(taken: Iterable[Row]) -> Iterator[list[Row]]:
    source = iter(taken)
    while chunk := list(islice(source, BATCH_ROWS)):
        yield chunk


def _batch_ranges(taken: Iterable[Row]) -> Iterator[dict[str, int]]:
    for chunk in _chunks(taken):
        yield {"first_line": chunk[0].line, "last_line": chunk[-1].line}


def _is_batch(import_id: int, number: int) -> Any:
    return (batches.c.import_id == import_id) & (batches.c.number == number)


def _is_done(connection: Connection, import_id: int, number: int) -> bool:
    return bool(connection.scalar(select(batches.c.done).where(_is_batch(import_id, number))))


def _read_rows(import_id: int, number: int) -> dict[int, ProductRow | str]:
    """Return each line of the batch with its product, or its fault. Staged rows never change, so this needs no lock."""
    first = select(rows.c.sku, func.min(rows.c.line).label("line")).where(rows.c.import_id == import_id)
    with reading(_engine()) as connection:
        batch = connection.execute(select(batches).where(_is_batch(import_id, number))).one_or_none()
        if batch is None:
            return {}
        mine = (rows.c.import_id == import_id) & rows.c.line.between(batch.first_line, batch.last_line)
        found = connection.execute(
            select(rows.c.line, rows.c.sku, rows.c.cells).where(mine).order_by(rows.c.line)
        ).all()
        of_batch = first.where(rows.c.sku.in_({row.sku for row in found})).group_by(rows.c.sku)
        first_lines = {row.sku: row.line for row in connection.execute(of_batch)}
    return {row.line: _validate_row(row.line, first_lines[row.sku], row.cells) for row in found}


def _validate_row(line: int, first_line: int, cells: dict[str, str]) -> ProductRow | str:
    if SURPLUS in cells:
        return f"more cells than the first row has columns: {cells[SURPLUS]}"
    product = read_product(cells)
    if isinstance(product, ProductRow) and line != first_line:
        # Batches run side by side, so "the last row wins" would depend on their order.
        return f"sku: {product.sku} is already in line {first_line}"
    return product


def _upsert(connection: Connection, import_id: int, accepted: list[ProductRow]) -> dict[str, str]:
    """Write the products as in the rows, unless a later import has written them; return the outcome of each, by SKU."""
    skus = [product.sku for product in accepted]
    before = {row.sku: row for row in connection.execute(select(products).where(products.c.sku.in_(skus)))}
    outcomes = {product.sku: _outcome(before.get(product.sku), product, import_id) for product in accepted}
    values = [
        {
            **product.model_dump(include={"sku", "name", "category"}),
            "net_cents": product.net_cents,
            "import_id": import_id,
        }
        for product in accepted
        if outcomes[product.sku] != "outdated"
    ]
    if values:
        statement = sqlite.insert(products)
        written = {name: statement.excluded[name] for name in values[0] if name != "sku"}
        connection.execute(statement.on_conflict_do_update(index_elements=["sku"], set_=written), values)
    return outcomes


def _outcome(before: Any | None, product: ProductRow, import_id: int) -> str:
    if before is None:
        return "created"
    if before.import_id > import_id:
        return "outdated"
    same = (before.name, before.category, before.net_cents) == (product.name, product.category, product.net_cents)
    return "unchanged" if same else "updated"


def _write_outcomes(
    connection: Connection,
    import_id: int,
    read: dict[int, ProductRow | str],
    outcomes: dict[str, str],
    *,
    faulty: str = "review",
) -> None:
    for line, found in read.items():
        reason = None if isinstance(found, ProductRow) else found
        outcome = outcomes[found.sku] if isinstance(found, ProductRow) else faulty
        mine = (rows.c.import_id == import_id) & (rows.c.line == line)
        connection.execute(update(rows).where(mine).values(outcome=outcome, reason=reason))


def _counts(connection: Connection, *where: Any) -> dict[str | None, int]:
    counted = select(rows.c.outcome, func.count()).where(*where).group_by(rows.c.outcome)
    return {row[0]: row[1] for row in connection.execute(counted)}


def _report_due(connection: Connection, import_id: int) -> bool:
    if _require_import(connection, import_id).state != "staged":
        return False
    undone = select(batches.c.number).where(batches.c.import_id == import_id, ~batches.c.done)
    in_review = select(rows.c.line).where(rows.c.import_id == import_id, rows.c.outcome == "review")
    return all(connection.execute(left.limit(1)).first() is None for left in (undone, in_review))


def _staged(import_id: int, line: int) -> tuple[Any, int]:
    """Return a row as it was read, and the first line with its SKU. Staged rows never change, so this needs no lock."""
    with reading(_engine()) as connection:
        _require_import(connection, import_id)
        row = connection.execute(select(rows).where(rows.c.import_id == import_id, rows.c.line == line)).one()
        same = select(func.min(rows.c.line)).where(rows.c.import_id == import_id, rows.c.sku == row.sku)
        return row, connection.execute(same).scalar_one()


def _in_review(connection: Connection, import_id: int, lines: Iterable[int]) -> list[int]:
    wanted = select(rows.c.line).where(
        rows.c.import_id == import_id, rows.c.line.in_(list(lines)), rows.c.outcome == "review"
    )
    return list(connection.execute(wanted.order_by(rows.c.line)).scalars())
