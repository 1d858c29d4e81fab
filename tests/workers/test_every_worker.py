"""Rules for every example worker (GitLab's spec of the same name); each runs twice with the result of one run."""

import inspect
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import yaml

from demo.receiver import Receiver, receiving
from framework import ApplicationWorker, BusinessError
from framework.declare import registry
from framework.testing import assert_idempotent, is_json
from tests.tables import each_row
from tests.workers.conftest import ROOT, Installation
from tests.workers.sheets import csv_file
from workers.code_index.build_report_worker import BuildReportWorker
from workers.code_index.index_file_worker import IndexFileWorker
from workers.code_index.scan_tree_worker import ScanTreeWorker
from workers.enrolment import offers
from workers.enrolment.enrol_product_worker import EnrolProductWorker
from workers.maintenance.prune_folder_worker import PruneFolderWorker
from workers.maintenance.prune_reports_worker import PruneReportsWorker
from workers.maintenance.report_queues_worker import ReportQueuesWorker
from workers.maintenance.vacuum_database_worker import VacuumDatabaseWorker
from workers.maintenance.vacuum_databases_worker import VacuumDatabasesWorker
from workers.order_export import exports
from workers.order_export.export_part_worker import ExportPartWorker
from workers.order_export.join_parts_worker import JoinPartsWorker
from workers.product_import import imports
from workers.product_import.build_import_report_worker import BuildImportReportWorker
from workers.product_import.import_products_worker import ImportProductsWorker
from workers.product_import.recalculate_prices_worker import RecalculatePricesWorker
from workers.product_import.review_row_worker import ReviewRowWorker
from workers.product_import.split_spreadsheet_worker import SplitSpreadsheetWorker
from workers.webhooks import hooks
from workers.webhooks.addresses import ALLOWED_VARIABLE
from workers.webhooks.deliver_webhook_worker import DeliverWebhookWorker
from workers.webhooks.fan_out_event_worker import FanOutEventWorker
from workers.webhooks.ping_webhook_worker import PingWebhookWorker
from workers.webhooks.prune_deliveries_worker import PruneDeliveriesWorker

Worker = type[ApplicationWorker]
VOLATILE = {"at", "created_at", "finished_at", "indexed_at", "cpu_s", "duration_s"}
"""Columns of times and durations: a second run may change them."""


def every_worker() -> list[Worker]:
    registry.load(["workers"])
    return [worker for worker in registry.workers() if worker.__module__.startswith("workers.")]


def committed(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text())


each = each_row("worker", every_worker(), ids=[worker.declaration().wire_name for worker in every_worker()])


# --- declarations ---------------------------------------------------------------------------------------------------


def test_examples_are_at_least_twelve_in_six_domains() -> None:
    workers = every_worker()
    assert len(workers) >= 12
    assert len({worker.__module__.split(".")[1] for worker in workers}) == 6


@each
def test_example_category_has_an_owner(worker: Worker) -> None:
    category = committed("config/feature_categories.yml")["feature_categories"][worker.feature_category]
    assert category["owner"]
    assert category["description"]


@each
def test_example_queue_follows_its_name(worker: Worker) -> None:
    assert (worker.queue, worker.shard) == (None, None), "rules decide, so that operators can"
    assert worker.declaration().generated_queue != "default"


def test_committed_list_is_that_of_the_classes() -> None:
    names = {entry["name"]: entry["worker_name"] for entry in committed("workers/all_queues.yml")}
    assert names == {worker.declaration().generated_queue: worker.declaration().wire_name for worker in every_worker()}


@each
def test_every_queue_is_served(worker: Worker, installation: Installation) -> None:
    served = {queue for queue, _ in committed("config/queues.yml")["queues"]}
    for queue in {worker.declaration().generated_queue, worker.route().queue}:
        assert {queue, queue.partition(":")[0]} & served


@each
def test_example_retries_end_with_a_hook_or_are_none(worker: Worker) -> None:
    tick = worker.queue_namespace == "cronjob"
    assert tick == worker.declaration().generated_queue.startswith("cronjob:")
    assert not tick or not inspect.signature(worker.perform).parameters.keys() - {"self"}
    assert (worker.retry is False) == (tick or worker is PingWebhookWorker)  # its user sees the failure


@each
def test_example_loggable_arguments_are_no_ids(worker: Worker) -> None:
    """Numbers are always logged. Text is filtered unless it is named; no named text is personal."""
    hints = get_type_hints(worker.perform)
    text = {name for name in inspect.signature(worker.perform).parameters if name != "self" and hints[name] is not int}
    assert text <= set(worker.loggable_arguments)


@each
def test_example_has_a_test_of_its_domain(worker: Worker) -> None:
    folder = ROOT / "tests" / "workers" / worker.__module__.split(".")[1]
    assert [
        path
        for path in folder.glob("test_*.py")
        if f"{worker.__name__}.perform" in path.read_text() or f"{worker.__name__}()" in path.read_text()
    ]


# --- the guide's page ------------------------------------------------------------------------------------------------

PAGE = (ROOT / "docs" / "learn" / "examples.md").read_text()
LINK = re.compile(r"\[`(\w+)`\]\(\S+?/workers/(\S+)\.py\)")


def test_examples_page_has_every_worker() -> None:
    places = {(name, path.replace("/", ".")) for name, path in LINK.findall(PAGE)}
    assert places == {(worker.__name__, worker.__module__.removeprefix("workers.")) for worker in every_worker()}


# --- two runs have the result of one ----------------------------------------------------------------------------------


class Setup:
    """The parts that the setups below use."""

    def __init__(self, installation: Installation, receiver: Receiver, folder: Path) -> None:
        self.var = installation.var
        self.receiver = receiver
        self.folder = folder

    def scanned(self) -> tuple[str, str]:
        tree = self.folder / "tree"
        tree.mkdir()
        (tree / "one.py").write_text("def f():\n    return 1\n")
        return "run-1", str(tree)

    def imported(self) -> int:
        import_id = imports.create(csv_file(self.folder / "a.csv", "H-1,Hammer,tools,10", "H-2,,tools,1"))
        SplitSpreadsheetWorker.perform_inline(import_id)
        return import_id

    def hook(self, path: str = "/ok") -> int:
        return hooks.create_hook(self.receiver.url(path), ["order.paid"])

    def fanned_out(self) -> tuple[int, int]:
        hook_id, event_id = self.hook(), hooks.record_event("order.paid", {})
        FanOutEventWorker.perform_inline(event_id)
        return event_id, hook_id


def index_file(setup: Setup) -> tuple[Any, ...]:
    run_id, tree = setup.scanned()
    ScanTreeWorker.perform_inline(run_id, [tree])
    return run_id, 1


def build_report(setup: Setup) -> tuple[Any, ...]:
    run_id, number = index_file(setup)
    IndexFileWorker.perform_inline(run_id, number)
    return (run_id,)


def build_import_report(setup: Setup) -> tuple[Any, ...]:
    import_id = setup.imported()
    ImportProductsWorker.perform_inline(import_id, 1)
    with suppress(BusinessError):
        ReviewRowWorker.perform_inline(import_id, 3)
    return (import_id,)


def review_row(setup: Setup) -> tuple[Any, ...]:
    import_id = imports.create(csv_file(setup.folder / "a.csv", "H-1,Hammer,hardware,10"))
    SplitSpreadsheetWorker.perform_inline(import_id)
    ImportProductsWorker.perform_inline(import_id, 1)
    return import_id, 2


def enrol(setup: Setup) -> tuple[Any, ...]:
    feed = csv_file(
        setup.folder / "feed.csv",
        "A1,Hammer,4006381333931,9,Ferro,https://shop.example/1.jpg",
        header="sku,title,ean,price,brand,picture",
    )
    return "S-7", *offers.load("S-7", feed)


def export_part(setup: Setup) -> tuple[Any, ...]:
    export_id, (number,) = exports.create("csv")
    return export_id, number


def join_parts(setup: Setup) -> tuple[Any, ...]:
    export_id, number = export_part(setup)
    ExportPartWorker.perform_inline(export_id, number)
    return (export_id,)


def recalculate(setup: Setup) -> tuple[Any, ...]:
    build_import_report(setup)
    return ("tools",)


def database(setup: Setup) -> tuple[Any, ...]:
    setup.imported()
    return ("product_import.sqlite3",)


def no_arguments(setup: Setup) -> tuple[Any, ...]:
    setup.fanned_out()
    return ()


ARGUMENTS: dict[Worker, Callable[[Setup], tuple[Any, ...]]] = {
    ScanTreeWorker: lambda setup: ((scanned := setup.scanned())[0], [scanned[1]]),
    IndexFileWorker: index_file,
    BuildReportWorker: build_report,
    SplitSpreadsheetWorker: lambda setup: (imports.create(csv_file(setup.folder / "a.csv", "H-1,Hammer,tools,10")),),
    ImportProductsWorker: lambda setup: (setup.imported(), 1),
    RecalculatePricesWorker: recalculate,
    ReviewRowWorker: review_row,
    EnrolProductWorker: enrol,
    ExportPartWorker: export_part,
    JoinPartsWorker: join_parts,
    BuildImportReportWorker: build_import_report,
    FanOutEventWorker: lambda setup: (setup.fanned_out()[0],),
    DeliverWebhookWorker: Setup.fanned_out,
    PingWebhookWorker: lambda setup: (setup.hook(),),
    PruneDeliveriesWorker: no_arguments,
    PruneReportsWorker: no_arguments,
    PruneFolderWorker: lambda setup: (build_import_report(setup) and "reports", 30),
    VacuumDatabasesWorker: no_arguments,
    VacuumDatabaseWorker: database,
    ReportQueuesWorker: no_arguments,
}
"""Of each worker, a job that has something to do, in a world where it is to be done."""


def all_data(var: Path) -> dict[str, Any]:
    """Return all rows of all databases, and all other files, without the story of the jobs."""
    found: dict[str, Any] = {}
    for path in sorted(var.rglob("*")):
        if path.suffix == ".sqlite3":
            found |= rows(path)
        elif path.is_file() and not path.name.endswith(("-wal", "-shm")) and path.suffix != ".db":
            found[str(path.relative_to(var))] = path.read_text()
    return found


def rows(path: Path) -> dict[str, Any]:
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        tables = [row["name"] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        return {
            f"{path.name}:{table}": [
                {name: row[name] for name in row.keys() if name not in VOLATILE}  # noqa: SIM118 - a Row iterates over values
                for row in connection.execute(f"SELECT * FROM {table}")
            ]
            for table in tables
        }


@each
def test_example_run_twice_equals_once(
    worker: Worker, real_installation: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ALLOWED_VARIABLE, "127.0.0.0/8")
    with receiving() as receiver:
        arguments = ARGUMENTS[worker](Setup(real_installation, receiver, tmp_path))
        assert is_json(list(arguments))
        assert_idempotent(worker, *arguments, state=lambda: all_data(real_installation.var))
        assert all_data(real_installation.var)
