"""Export orders to one file: parallel parts, and a job that joins them."""

import csv
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar
from zipfile import ZipFile

from sqlalchemy import insert

from demo.scenarios.scenario import Figure, Scenario
from framework import ApplicationWorker
from framework.tasks import Task
from workers.database import process_engine, writing
from workers.order_export import exports
from workers.order_export.export_part_worker import ExportPartWorker
from workers.order_export.formats import FORMATS
from workers.order_export.join_parts_worker import JoinPartsWorker
from workers.order_export.tables import metadata, orders

COUNTRIES = ("DE", "FR", "PL", "IT", "SE", "GR")
NOTES = ("", "", "", "leave it at the neighbour's", "ring twice", "Tür links, 2. Stock", "=SUM(A1:A9)", "gift, no bill")
FIRST_ORDER = datetime(2026, 1, 1, 6, 0, tzinfo=UTC)
MOST_PARTS = 50
_CHUNK = 5_000


class Export(Scenario):
    title = "Export orders to one file, by parallel parts"
    default_size = 500_000
    workers: ClassVar[list[type[ApplicationWorker]]] = [ExportPartWorker, JoinPartsWorker]
    formats = FORMATS

    def prepare(self, stopped: Callable[[], bool]) -> str:
        chance = random.Random(20)
        for first in range(1, self.size + 1, _CHUNK):
            if stopped():
                break
            numbers = range(first, min(first + _CHUNK, self.size + 1))
            with writing(process_engine("order_export", metadata)) as connection:
                connection.execute(insert(orders), [_order(number, chance) for number in numbers])
        return f"{self.size:,} orders"

    def begin(self) -> Task:
        part_rows = min(exports.PART_ROWS, max(1, -(-self.size // MOST_PARTS)))
        with Task.create(ExportPartWorker, title=f"orders.{self.kind}", owner="back-office") as task:
            self._export_id, numbers = exports.create(self.kind, part_rows=part_rows, task_id=task.id)
            jobs = [(self._export_id, number) for number in numbers]
            task.perform_bulk(ExportPartWorker, jobs, context={"export_id": self._export_id})
        return task

    def figures(self) -> Iterator[Figure]:
        path = exports.file_of(self._export_id)
        if path is not None:
            yield Figure("rows", f"{_count_rows(path):,}", "in the file, behind its header")
            yield Figure("size", f"{path.stat().st_size / 1e6:,.1f} MB")

    def files(self) -> Iterator[tuple[str, Path]]:
        path = exports.file_of(self._export_id)
        if path is not None:
            yield "Export", path


def _order(number: int, chance: random.Random) -> dict[str, Any]:
    items = chance.randint(1, 9)
    return {
        "id": number,
        "placed_at": f"{FIRST_ORDER + timedelta(seconds=37 * number):%Y-%m-%d %H:%M:%S}",
        "customer": f"Customer {chance.randint(1, 90_000)}",
        "country": chance.choice(COUNTRIES),
        "items": items,
        "total_cents": items * chance.randint(99, 25_000),
        "note": chance.choice(NOTES),
    }


def _count_rows(path: Path) -> int:
    """Count the rows of the finished file, as a reader of the format finds them."""
    if path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8-sig") as file:
            return sum(1 for _ in csv.reader(file)) - 1
    count, tail = -1, b""
    with ZipFile(path) as archive, archive.open("xl/worksheets/sheet1.xml") as sheet:
        while chunk := sheet.read(1 << 20):
            text = tail + chunk
            count += text.count(b"<row>")
            tail = text[-len(b"<row") :]
    return count
