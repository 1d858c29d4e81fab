"""Run the five jobs on a real queue; kill them and run them again."""

import csv
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import select

from framework import BusinessError, Discard
from framework.errors import PushError
from tests.workers.conftest import Installation
from tests.workers.sheets import csv_file, inline_rows, xlsx_file
from workers.database import process_engine, reading
from workers.product_import import imports
from workers.product_import.build_import_report_worker import BuildImportReportWorker
from workers.product_import.import_products_worker import ImportProductsWorker
from workers.product_import.recalculate_prices_worker import RecalculatePricesWorker
from workers.product_import.review_row_worker import ReviewRowWorker
from workers.product_import.split_spreadsheet_worker import SplitSpreadsheetWorker
from workers.product_import.spreadsheet import read_spreadsheet
from workers.product_import.tables import metadata, products

BATCH = 2
REASONS = (
    "sku: string should match pattern '^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$'; name: string should have at least 1 character; "
    "category: should be one of books, food, garden, tools; price: input should be a valid decimal"
)


@pytest.fixture(autouse=True)
def small_batches(installation: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imports, "BATCH_ROWS", BATCH)


def shop() -> dict[str, tuple[str, str, int, int | None]]:
    wanted = select(products.c.sku, products.c.name, products.c.category, products.c.net_cents, products.c.gross_cents)
    with reading(process_engine("product_import", metadata)) as connection:
        return {row.sku: tuple(row[1:]) for row in connection.execute(wanted)}


def split(path: Path, *lines: str) -> int:
    import_id = imports.create(csv_file(path, *lines))
    SplitSpreadsheetWorker.perform_inline(import_id)
    return import_id


def review(import_id: int, line: int) -> None:
    with suppress(BusinessError):
        ReviewRowWorker.perform_inline(import_id, line)


def run(installation: Installation, import_id: int) -> dict[str | None, int]:
    """Run all jobs of the import in order; return the number of rows by outcome."""
    for name, *arguments in installation.take():
        {
            "ImportProductsWorker": ImportProductsWorker.perform_inline,
            "RecalculatePricesWorker": RecalculatePricesWorker.perform_inline,
            "ReviewRowWorker": review,
            "BuildImportReportWorker": BuildImportReportWorker.perform_inline,
        }[name](*arguments)
        run(installation, import_id)
    found = imports.state(import_id)
    assert found
    return found.counts


def test_import_makes_products_and_a_report(installation: Installation, tmp_path: Path) -> None:
    import_id = split(
        tmp_path / "a.csv",
        "H-1,Hammer,tools,12.50",
        "B-1,Bread,food,-1",
        "C-1, Cookbook ,Books,20.05",
        "H-1,Hammer again,tools,1",
        ",,toys,a lot",
    )
    batches = [("ImportProductsWorker", import_id, number) for number in (1, 2, 3)]
    assert [job["meta.lines"] for job in installation.jobs.enqueued()] == ["2-3", "4-5", "6-6"]
    assert installation.take() == batches
    ImportProductsWorker.perform_inline(import_id, 2)
    assert installation.take() == [("RecalculatePricesWorker", "books"), ("ReviewRowWorker", import_id, 5)]
    ImportProductsWorker.perform_inline(import_id, 1)
    assert installation.take() == [("RecalculatePricesWorker", "tools"), ("ReviewRowWorker", import_id, 3)]
    ImportProductsWorker.perform_inline(import_id, 3)
    assert installation.take() == [("ReviewRowWorker", import_id, 6)]
    for line in (3, 5, 6):
        assert installation.take() == []
        review(import_id, line)
    assert installation.take() == [("BuildImportReportWorker", import_id)]
    BuildImportReportWorker.perform_inline(import_id)
    RecalculatePricesWorker.perform_inline("tools")
    assert shop() == {"H-1": ("Hammer", "tools", 1250, 1488), "C-1": ("Cookbook", "books", 2005, None)}
    done = imports.state(import_id)
    report = installation.var / f"reports/product-import-{import_id}.csv"
    assert done == imports.ImportState("finished", {"created": 2, "rejected": 3}, None, str(report))
    assert list(csv.reader(report.read_text().splitlines())) == [
        ["line", "reason", "sku", "name", "category", "price"],
        ["3", "price: input should be greater than or equal to 0", "B-1", "Bread", "food", "-1"],
        ["5", "sku: H-1 is already in line 2", "H-1", "Hammer again", "tools", "1"],
        [
            "6",
            REASONS,
            "", "", "toys", "a lot",
        ],
    ]  # fmt: skip


def test_import_rejects_a_decimal_comma_without_quotes(installation: Installation, tmp_path: Path) -> None:
    """Without quotes it is one cell more: 5 and 99, not 5.99."""
    assert run(installation, split(tmp_path / "a.csv", "H-1,Hammer,tools,5,99")) == {"rejected": 1}
    assert shop() == {}


def test_review_corrects_what_is_beyond_doubt(installation: Installation, tmp_path: Path) -> None:
    import_id = split(
        tmp_path / "a.csv",
        'H-1,Hammer,Hardware,"12,50 €"',
        'H-2,Axe,tool,"EUR 1.299,00"',
        'H-3,Saw,tools,"$1,299.5"',
        'H-4,File,tools,"1,299"',
        'H-1,Again,tools,"1,5"',
    )
    assert run(installation, import_id) == {"created": 3, "rejected": 2}
    assert {sku: found[2:] for sku, found in shop().items()} == {
        "H-1": (1250, 1488),
        "H-2": (129900, 154581),
        "H-3": (129950, 154641),
    }
    for _ in range(2):
        assert imports.review_row(import_id, 2) == imports.Reviewed(
            "created",
            None,
            ["price: '12,50 €' is read as 12.50", "category: 'Hardware' is read as tools"],
            "tools",
            report_due=False,
        )
        with pytest.raises(BusinessError, match="line 5: price: input should be a valid decimal"):
            ReviewRowWorker.perform_inline(import_id, 5)


def test_split_run_twice_at_once_stages_once(installation: Installation, tmp_path: Path) -> None:
    """Both runs found the import new and read the file."""
    sheet = csv_file(tmp_path / "a.csv", "H-1,Hammer,tools,10")
    import_id = imports.create(sheet)
    read = [read_spreadsheet(sheet) for _ in range(2)]
    for one in read:
        imports.stage(import_id, one)
    assert imports.pending_batches(import_id) == [imports.Batch(1, 2, 2)]


def test_import_report_can_be_corrected_and_uploaded(installation: Installation, tmp_path: Path) -> None:
    first = split(tmp_path / "a.csv", "B-1,Bread,food,-1", "B-2,Roll, food,a third")
    assert run(installation, first) == {"rejected": 2}
    state = imports.state(first)
    assert state
    mended = tmp_path / "mended.csv"
    mended.write_text(Path(str(state.report)).read_text().replace(",-1", ",1"))
    second = imports.create(mended)
    SplitSpreadsheetWorker.perform_inline(second)
    assert run(installation, second) == {"created": 1, "rejected": 1}
    state = imports.state(second)
    assert state
    report = Path(str(state.report)).read_text()
    assert report.splitlines()[0] == "line,reason,sku,name,category,price"
    mended.write_text(report.replace("a third", "0.30"))
    third = imports.create(mended)
    SplitSpreadsheetWorker.perform_inline(third)
    assert run(installation, third) == {"created": 1}
    assert shop() == {"B-1": ("Bread", "food", 100, 107), "B-2": ("Roll", "food", 30, 32)}


def test_import_reads_xlsx(installation: Installation, tmp_path: Path) -> None:
    rows = [
        ["sku", "name", "category", "price"],
        ["H-1", "Hammer", "tools", "12.5"],
        ["H-2", "Axe & <edge>", "tools", "30"],
    ]
    import_id = imports.create(xlsx_file(tmp_path / "a.xlsx", inline_rows(rows)))
    SplitSpreadsheetWorker.perform_inline(import_id)
    assert run(installation, import_id) == {"created": 2}
    assert shop()["H-2"] == ("Axe & <edge>", "tools", 3000, 3570)


def test_import_of_earlier_file_yields_to_a_later_one(installation: Installation, tmp_path: Path) -> None:
    early = split(tmp_path / "a.csv", "H-1,Hammer,tools,10", "H-2,Axe,tools,10", "H-3,Saw,tools,10")
    (_, *batch), *_ = [job for job in installation.take() if job[2] == 1]
    late = split(tmp_path / "b.csv", "H-1,Hammer,tools,11", "H-3,Saw,tools,10")
    assert run(installation, late) == {"created": 2}
    ImportProductsWorker.perform_inline(*batch)
    ImportProductsWorker.perform_inline(early, 2)
    assert run(installation, early) == {"outdated": 2, "created": 1}
    assert {sku: found[2] for sku, found in shop().items()} == {"H-1": 1100, "H-2": 1000, "H-3": 1000}
    again = split(tmp_path / "c.csv", "H-1,Hammer,tools,12", "H-2,Axe,tools,10")
    assert run(installation, again) == {"updated": 1, "unchanged": 1}


def test_batch_run_twice_counts_once_and_asks_again(installation: Installation, tmp_path: Path) -> None:
    import_id = split(tmp_path / "a.csv", "H-1,Hammer,tools,10")
    installation.take()
    for _ in range(2):
        ImportProductsWorker.perform_inline(import_id, 1)
        # Dying after the commit, the first may not have pushed.
        assert installation.take() == [("RecalculatePricesWorker", "tools"), ("BuildImportReportWorker", import_id)]
    for _ in range(2):
        BuildImportReportWorker.perform_inline(import_id)
    ImportProductsWorker.perform_inline(import_id, 1)
    assert installation.take() == [("RecalculatePricesWorker", "tools")]
    found = imports.state(import_id)
    assert found
    assert (found.state, found.counts) == ("finished", {"created": 1})


def test_split_run_twice_pushes_the_rest(installation: Installation, tmp_path: Path) -> None:
    import_id = split(tmp_path / "a.csv", "1,a,tools,1", "2,b,tools,1", "3,c,tools,1")
    installation.take()
    ImportProductsWorker.perform_inline(import_id, 1)
    installation.take()
    csv_file(tmp_path / "a.csv", "9,changed meanwhile,tools,1")
    SplitSpreadsheetWorker.perform_inline(import_id)
    assert installation.take() == [("ImportProductsWorker", import_id, 2)]


def test_batch_after_a_failed_push_pushes_again(installation: Installation, tmp_path: Path) -> None:
    import_id = split(tmp_path / "a.csv", "H-1,Hammer,tools,10")
    installation.take()
    with installation.jobs.unavailable(), pytest.raises(PushError):
        ImportProductsWorker.perform_inline(import_id, 1)
    assert shop() != {}
    ImportProductsWorker.perform_inline(import_id, 1)
    assert installation.take() == [("RecalculatePricesWorker", "tools"), ("BuildImportReportWorker", import_id)]


def test_batches_at_once_ask_for_one_report(installation: Installation, tmp_path: Path) -> None:
    import_id = split(tmp_path / "a.csv", *[f"S-{n},name {n},tools,1" for n in range(16)])
    numbers = [job[2] for job in installation.take()]
    threads = [threading.Thread(target=ImportProductsWorker.perform_inline, args=(import_id, n)) for n in numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [job for job in installation.take() if job[0] == "BuildImportReportWorker"] == [
        ("BuildImportReportWorker", import_id)
    ]
    assert len(shop()) == 16


@pytest.mark.parametrize("end", [imports.cancel, imports.remove])
def test_cancelled_import_is_discarded(installation: Installation, tmp_path: Path, end) -> None:
    import_id = split(tmp_path / "a.csv", "H-1,Hammer,tools,10")
    installation.take()
    end(import_id)
    for worker, arguments in (
        (SplitSpreadsheetWorker, ()),
        (ImportProductsWorker, (1,)),
        (ReviewRowWorker, (2,)),
        (BuildImportReportWorker, ()),
    ):
        with pytest.raises(Discard, match=f"import {import_id} was"):
            worker.perform_inline(import_id, *arguments)
    assert (shop(), installation.take()) == ({}, [])


def test_empty_sheet_is_finished_at_once(installation: Installation, tmp_path: Path) -> None:
    import_id = split(tmp_path / "a.csv")
    assert installation.take() == [("BuildImportReportWorker", import_id)]


def test_failed_import_has_its_reason(installation: Installation, tmp_path: Path) -> None:
    import_id = imports.create(tmp_path / "a.csv")
    (tmp_path / "a.csv").write_text("dear shop,\n")
    with pytest.raises(BusinessError) as caught:
        SplitSpreadsheetWorker.perform_inline(import_id)
    SplitSpreadsheetWorker.retries_exhausted({"args": [import_id]}, caught.value)
    found = imports.state(import_id)
    assert found
    assert (found.state, found.reason) == (
        "failed",
        "a.csv has no column sku, name, category, price in its first row; it has: dear shop",
    )


def test_prices_of_a_removed_category_are_none(installation: Installation, tmp_path: Path) -> None:
    RecalculatePricesWorker.perform_inline("toys")
    RecalculatePricesWorker().perform_v1("H-404")
    assert shop() == {}


def test_price_of_half_a_cent_is_rounded_up(installation: Installation, tmp_path: Path) -> None:
    prices = ["0", "0.01", "0.05", "0.50", "9999999.99"]
    import_id = split(tmp_path / "a.csv", *[f"F-{n},food,food,{price}" for n, price in enumerate(prices)])
    run(installation, import_id)
    assert [found[3] for found in shop().values()] == [0, 1, 5, 54, 1069999999]
