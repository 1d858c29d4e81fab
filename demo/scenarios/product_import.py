"""Import an .xlsx file with rows as people write them: one job per batch, and one for each row with a fault."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from openpyxl import Workbook
from sqlalchemy import select

from demo.scenarios.scenario import Figure, Scenario
from framework import ApplicationWorker
from framework.tasks import Task
from workers.database import process_engine, reading
from workers.product_import import imports
from workers.product_import.build_import_report_worker import BuildImportReportWorker
from workers.product_import.import_products_worker import ImportProductsWorker
from workers.product_import.recalculate_prices_worker import RecalculatePricesWorker
from workers.product_import.review_row_worker import ReviewRowWorker
from workers.product_import.split_spreadsheet_worker import SplitSpreadsheetWorker
from workers.product_import.tables import metadata, products

CATEGORIES = ("tools", "garden", "books", "food")
COLUMNS = ("sku", "name", "category", "price", "remark")
DIRTY_SHARE = 0.05


Row: TypeAlias = dict[str, Any]


def _always(**cells: object) -> Callable[[Row], Row]:
    return lambda _row: cells


_DIRT: tuple[Callable[[Row], Row], ...] = (
    # Beyond doubt, so the review corrects them.
    lambda row: {"price": f"{row['price']:.2f} €".replace(".", ",")},
    lambda row: {"price": f"EUR {row['price']:.2f}"},
    lambda row: {"price": f"1.{row['number'] % 900 + 100},50"},
    _always(category="Hardware"),
    # To reject.
    _always(name=None),
    _always(name=" "),
    _always(price="on request"),
    _always(price=None),
    lambda row: {"price": -row["price"]},
    _always(price=12.345),
    _always(price="1,299"),
    _always(category="toys"),
    _always(category=None),
    lambda row: {"sku": f"P {row['number']} #"},
    _always(sku="P-00001"),
    _always(name="x" * 250),
    _always(surplus="see the other sheet"),
)
_CLEAN: tuple[Callable[[Row], Row], ...] = (
    # Harmless: spaces, capitals, numbers as text.
    lambda row: {"name": f"  {row['name']}\u00a0"},
    lambda row: {"category": row["category"].upper()},
    lambda row: {"price": f"{row['price']:.2f}"},
    _always(remark="new in spring"),
)


class ProductImport(Scenario):
    title = "Import a spreadsheet with dirty rows, and tell which were rejected and why"
    default_size = 10_000
    workers: ClassVar[list[type[ApplicationWorker]]] = [
        SplitSpreadsheetWorker,
        ImportProductsWorker,
        ReviewRowWorker,
        RecalculatePricesWorker,
        BuildImportReportWorker,
    ]
    formats = ("xlsx",)

    @property
    def sheet(self) -> Path:
        """Return the uploaded file."""
        return self.folder / "uploads" / "products.xlsx"

    def prepare(self, stopped: Callable[[], bool]) -> str:
        chance = random.Random(20)
        book = Workbook(write_only=True)
        page = book.create_sheet("products")
        page.append(COLUMNS)
        for number in range(1, self.size + 1):
            page.append(_row(number, chance))
            if number % 500 == 0:
                page.append([None] * len(COLUMNS))  # people leave empty rows
                if stopped():
                    break
        self.sheet.parent.mkdir(parents=True)
        book.save(self.sheet)
        return f"{self.size:,} rows"

    def begin(self) -> Task:
        with Task.create(SplitSpreadsheetWorker, title=self.sheet.name, owner="shop-7") as task:
            self._import_id = imports.create(self.sheet, task.id)
            task.perform_bulk(SplitSpreadsheetWorker, [(self._import_id,)], context={"import_id": self._import_id})
        return task

    def is_settled(self) -> bool:
        unpriced = select(products.c.sku).where(products.c.gross_cents.is_(None)).limit(1)
        with reading(process_engine("product_import", metadata)) as connection:
            return connection.execute(unpriced).first() is None

    def figures(self) -> Iterator[Figure]:
        state = imports.state(self._import_id)
        counts = {} if state is None else state.counts
        for outcome, note in (
            ("created", "products, each with its price"),
            ("rejected", "rows, to correct in the report"),
        ):
            yield Figure(outcome, f"{counts.get(outcome, 0):,}", note)

    def files(self) -> Iterator[tuple[str, Path]]:
        yield "Upload", self.sheet
        state = imports.state(self._import_id)
        if state is not None and state.report is not None:
            yield "Report", Path(state.report)


def _row(number: int, chance: random.Random) -> list[Any]:
    row: Row = {
        "number": number,
        "sku": f"P-{number:05}",
        "name": f"Product {number}",
        "category": CATEGORIES[number % len(CATEGORIES)],
        "price": chance.randint(50, 90_000) / 100,
        "remark": None,
        "surplus": None,
    }
    if number > 1 and chance.random() < DIRTY_SHARE:
        row |= chance.choice(_DIRT)(row)
    elif chance.random() < DIRTY_SHARE:
        row |= chance.choice(_CLEAN)(row)
    cells = [row[name] for name in COLUMNS]
    return [*cells, row["surplus"]] if row["surplus"] else cells
