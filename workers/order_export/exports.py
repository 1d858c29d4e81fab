"""The exports in SQL and in files: plan the parts, write one, join them.

What a crash does: jobs run at least once, and a process can die between any two lines. A part is a temporary file that is renamed
when it is whole; then its row says so. A second run writes the same file again, or finds the row and does nothing. The joined
file is made the same way, then its path is recorded, and only then the parts are removed: a second run removes what is left.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Engine, func, insert, select, update

from framework import Discard
from workers.atomic_write import atomic_file
from workers.database import process_engine, reading, var_dir, writing
from workers.order_export.formats import FORMATS, MAX_SHEET_ROWS, join_parts, write_part
from workers.order_export.tables import exports, metadata, orders, parts

PART_ROWS: Final = 10_000
COLUMNS: Final = ("id", "placed_at", "customer", "country", "items", "total", "note")
_FETCHED_ROWS: Final = 2_000


@dataclass(frozen=True, slots=True)
class Written:
    """The number of orders in a part, and whether it was the last one that was missing."""

    rows: int
    join_due: bool
    task_id: str | None


def create(kind: str, *, part_rows: int = PART_ROWS, task_id: str | None = None) -> tuple[int, list[int]]:
    """Record an export of all orders of this moment; return its id and the numbers of its parts.

    Raises:
        ValueError: the format is unknown, or a sheet cannot have so many rows.
    """
    if kind not in FORMATS:
        raise ValueError(f"the format is one of {', '.join(FORMATS)}, not {kind!r}")
    with writing(_engine()) as connection:
        total = connection.execute(select(func.count()).select_from(orders)).scalar_one()
        if kind == "xlsx" and total >= MAX_SHEET_ROWS:
            raise ValueError(f"{total:,} orders do not fit into a sheet of {MAX_SHEET_ROWS:,} rows: export them as csv")
        values = {"format": kind, "task_id": task_id}
        export_id = int(connection.execute(insert(exports).returning(exports.c.id), values).scalar_one())
        ranges = list(_ranges(connection, part_rows))
        planned = [
            {"export_id": export_id, "number": number, "first_id": first, "last_id": last}
            for number, (first, last) in enumerate(ranges, 1)
        ]
        connection.execute(insert(parts), planned)
        return export_id, [part["number"] for part in planned]


def write_orders(export_id: int, number: int) -> Written:
    """Write the file of one part, unless it is there. Raises ``Discard`` for an export that was removed."""
    this = (parts.c.export_id == export_id) & (parts.c.number == number)
    with reading(_engine()) as connection:
        export = _require(connection, export_id)
        part = connection.execute(select(parts).where(this)).one()
    rows = part.rows
    if rows is None:
        with atomic_file(_part_path(export_id, number)) as file, reading(_engine()) as connection:
            rows = write_part(file, export.format, _orders(connection, part.first_id, part.last_id))
    with writing(_engine()) as connection:
        # One part after the other: of two that end at once, the later one finds none missing.
        connection.execute(select(exports.c.id).where(exports.c.id == export_id).with_for_update())
        connection.execute(update(parts).where(this).values(rows=rows))
        missing = select(parts.c.number).where(parts.c.export_id == export_id, parts.c.rows.is_(None)).limit(1)
        join_due = export.path is None and connection.execute(missing).first() is None
    return Written(rows, join_due, export.task_id)


def join(export_id: int) -> tuple[Path, int]:
    """Join the parts, unless that is done; return the file and its number of orders."""
    with reading(_engine()) as connection:
        export = _require(connection, export_id)
        found = connection.execute(select(parts.c.number, parts.c.rows).where(parts.c.export_id == export_id)).all()
    path = Path(export.path) if export.path else var_dir() / "exports" / f"orders-{export_id}.{export.format}"
    if export.path is None:
        numbers = sorted(part.number for part in found)
        with atomic_file(path) as file:
            join_parts(file, export.format, COLUMNS, [_part_path(export_id, number) for number in numbers])
        with writing(_engine()) as connection:
            connection.execute(update(exports).where(exports.c.id == export_id).values(path=str(path)))
    shutil.rmtree(_part_path(export_id, 1).parent, ignore_errors=True)
    return path, sum(part.rows or 0 for part in found)


def file_of(export_id: int) -> Path | None:
    """Return the file of an export, ``None`` before it is there. Raises ``Discard`` for an export that was removed."""
    with reading(_engine()) as connection:
        found = _require(connection, export_id).path
    return None if found is None else Path(found)


def _engine() -> Engine:
    return process_engine("order_export", metadata)


def _require(connection: Connection, export_id: int) -> Any:
    found = connection.execute(select(exports).where(exports.c.id == export_id)).one_or_none()
    if found is None:
        raise Discard(f"export {export_id} was removed")
    return found


def _part_path(export_id: int, number: int) -> Path:
    return var_dir() / "exports" / f"orders-{export_id}.parts" / f"{number:06}"


def _ranges(connection: Connection, part_rows: int) -> Iterator[tuple[int, int]]:
    """Yield the first and the last id of each part. One without orders has one empty part: its file has the header alone."""
    place = func.row_number().over(order_by=orders.c.id).label("place")
    numbered = select(orders.c.id, place).subquery()
    starts = list(
        connection.execute(
            select(numbered.c.id).where((numbered.c.place - 1) % part_rows == 0).order_by(numbered.c.id)
        ).scalars()
    )
    last = connection.execute(select(func.max(orders.c.id))).scalar() or 0
    for first, following in pairwise([*(starts or [1]), last + 1]):
        yield first, following - 1


def _orders(connection: Connection, first: int, last: int) -> Iterator[tuple[Any, ...]]:
    wanted = select(orders).where(orders.c.id.between(first, last)).order_by(orders.c.id)
    streamed = connection.execution_options(yield_per=_FETCHED_ROWS)
    for order_id, placed_at, customer, country, items, cents, note in streamed.execute(wanted):
        yield order_id, placed_at, customer, country, items, cents / 100, note
