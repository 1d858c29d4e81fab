"""Export orders by parts: the joined file is whole, whatever runs twice or dies in between."""

import csv
from pathlib import Path

import openpyxl
import pytest
from sqlalchemy import delete, insert, update

from framework import Discard, testing
from framework.tasks import Task
from tests.tables import each_row
from tests.workers.conftest import Installation
from workers.database import process_engine, writing
from workers.order_export import exports
from workers.order_export.export_part_worker import ExportPartWorker
from workers.order_export.join_parts_worker import JoinPartsWorker
from workers.order_export.tables import metadata, orders

NOTES = ("", "=1+1", "two\nlines", 'a "quote", <b>&', "\x01 Zoë", " spaces ", "-5")


def place_orders(count: int) -> None:
    rows = [
        {
            "id": 3 * number,  # orders were deleted
            "placed_at": f"2026-11-25T10:00:{number % 60:02}",
            "customer": f"C-{number}",
            "country": "DE",
            "items": number,
            "total_cents": 1_250 * number,
            "note": NOTES[number % len(NOTES)],
        }
        for number in range(1, count + 1)
    ]
    with writing(process_engine("order_export", metadata)) as connection:
        connection.execute(delete(orders))
        if rows:
            connection.execute(insert(orders), rows)


def export(kind: str, part_rows: int) -> tuple[Task, int, list[int]]:
    task = Task.create(ExportPartWorker, title="orders")
    export_id, numbers = exports.create(kind, part_rows=part_rows, task_id=task.id)
    task.perform_bulk(ExportPartWorker, [(export_id, number) for number in numbers])
    task.close()
    return task, export_id, numbers


def read(path: Path) -> list[list[str]]:
    if path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8-sig") as file:
            return list(csv.reader(file))
    book = openpyxl.load_workbook(path, read_only=True)
    found = [["" if cell is None else str(cell) for cell in row] for row in book.active.iter_rows(values_only=True)]
    book.close()
    return found


@each_row(
    ("kind", "count", "files"),
    [("csv", 25, 3), ("xlsx", 25, 3), ("csv", 20, 2), ("xlsx", 0, 1), ("csv", 0, 1)],
)
def test_export_joins_all_parts_in_their_order(kind, count, files, installation):
    place_orders(count)
    task, export_id, numbers = export(kind, 10)
    assert len(numbers) == files
    testing.drain()
    assert task.progress().counts["finish"] == files + 1
    path, rows = exports.join(export_id)
    header, *found = read(path)
    assert (header, rows, len(found)) == (list(exports.COLUMNS), count, count)
    if count:
        first, last = found[0], found[-1]
        formula = "'=1+1" if kind == "csv" else "=1+1"
        assert first == ["3", "2026-11-25T10:00:01", "C-1", "DE", "1", "12.5", formula]
        assert [row[0] for row in found] == [str(3 * number) for number in range(1, count + 1)]
        assert (
            last[5] == str(12.5 * count) if (12.5 * count) % 1 else last[5] in (str(12.5 * count), f"{12.5 * count:g}")
        )
        notes = ["", "=1+1", "two\nlines", 'a "quote", <b>&', "\ufffd Zoë", " spaces ", "-5"]
        if kind == "xlsx":
            assert [row[6] for row in found[:7]] == [*notes[1:], notes[0]]
    assert not list(path.parent.glob("*.parts"))
    assert not list(path.parent.glob(".*"))


def test_export_run_twice_or_cut_off_is_the_same_file(installation: Installation, monkeypatch) -> None:
    place_orders(25)
    _, export_id, _ = export("csv", 10)

    def broken(*_, **__):
        raise OSError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr("workers.order_export.exports.write_part", broken)
        with pytest.raises(OSError, match="no space"):
            ExportPartWorker.perform_inline(export_id, 1)
    parts = installation.var / "exports" / f"orders-{export_id}.parts"
    assert list(parts.iterdir()) == []
    for number in (3, 1, 1, 2):
        ExportPartWorker.perform_inline(export_id, number)
    last = installation.jobs.enqueued()[-1]
    assert (last.worker, last.args) == ("OrderExport::JoinPartsWorker", [export_id])
    # A part that is written stays as it is: the export shows the orders of one moment.
    with writing(process_engine("order_export", metadata)) as connection:
        connection.execute(update(orders).values(customer="changed"))
    ExportPartWorker.perform_inline(export_id, 2)
    with monkeypatch.context() as patched:
        patched.setattr("workers.order_export.exports.shutil.rmtree", broken)
        with pytest.raises(OSError, match="no space"):
            JoinPartsWorker.perform_inline(export_id)
    path = installation.var / "exports" / f"orders-{export_id}.csv"
    before = path.read_bytes()
    JoinPartsWorker.perform_inline(export_id)
    assert path.read_bytes() == before
    assert b"changed" not in before
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    for worker, arguments in ((ExportPartWorker, (99, 1)), (JoinPartsWorker, (99,))):
        with pytest.raises(Discard, match="export 99 was removed"):
            worker.perform_inline(*arguments)
    for kind, message in (("pdf", "the format is one of csv, xlsx"), ("xlsx", "25 orders do not fit")):
        monkeypatch.setattr(exports, "MAX_SHEET_ROWS", 25)
        with pytest.raises(ValueError, match=message):
            exports.create(kind)
