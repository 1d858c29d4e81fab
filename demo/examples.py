"""Run the example workers of all domains, one domain after the other: real files, real databases, a real web server."""

import json
import os
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from sqlalchemy import select

from demo.activity import activity_of
from demo.dashboard import DemoDashboard
from demo.folder import RunFolder
from demo.logs import RAN, count_ends, otherwise
from demo.processes import DemoProcesses
from demo.receiver import Receiver, receiving
from demo.run import (
    DONE,
    FAILED,
    INTERRUPTED,
    INTERRUPTION,
    LOOK_EVERY_S,
    explain_standstill,
    outcome_of,
    show_jobs,
)
from demo.scenarios.enrol import Enrol
from demo.scenarios.export import Export
from demo.scenarios.scenario import Scenario
from demo.stop import StopSignal
from demo.summary import heading, shown_path
from framework.declare import registry
from framework.errors import FrameworkError
from framework.sharding import router
from workers.code_index.database import process_engine as index_engine
from workers.code_index.index import this_process_index
from workers.code_index.run_statistics import read_run_statistics
from workers.code_index.scan_tree_worker import ScanTreeWorker
from workers.database import process_engine, reading, var_dir
from workers.maintenance.prune_reports_worker import PruneReportsWorker
from workers.maintenance.report_queues_worker import ReportQueuesWorker
from workers.maintenance.vacuum_databases_worker import VacuumDatabasesWorker
from workers.product_import import imports
from workers.product_import.split_spreadsheet_worker import SplitSpreadsheetWorker
from workers.product_import.tables import metadata as catalogue
from workers.product_import.tables import products
from workers.webhooks import hooks
from workers.webhooks.addresses import ALLOWED_VARIABLE
from workers.webhooks.fan_out_event_worker import FanOutEventWorker
from workers.webhooks.ping_webhook_worker import PingWebhookWorker
from workers.webhooks.prune_deliveries_worker import PruneDeliveriesWorker
from workers.webhooks.tables import deliveries
from workers.webhooks.tables import metadata as webhooks

ROWS = 5000
EVERY_BAD = 100
CATEGORIES = ("tools", "garden", "books", "food")
MOODS = ("/ok", "/huge", "/busy", "/broken", "/missing", "/redirect", "/gone")
METADATA_SERVICE = "http://169.254.169.254/latest/meta-data"
FREE_MEGABYTES = 8
FEW_ROWS = 200


class Domain(ABC):
    """One domain: ``begin`` pushes, ``ended`` checks, ``results`` describes the outcome."""

    title: str

    @abstractmethod
    def begin(self) -> None:
        """Push its first jobs."""

    @abstractmethod
    def ended(self) -> bool:
        """Return whether its work is done."""

    @abstractmethod
    def results(self) -> Iterator[tuple[str, str]]:
        """Return the result so far."""


class CodeIndex(Domain):
    title = "Code index: this checkout's workers, one job per file"

    def __init__(self, run_id: str, root: Path) -> None:
        self._run_id = run_id
        self._root = root

    def begin(self) -> None:
        ScanTreeWorker.perform_async(self._run_id, [str(self._root / "workers")])

    def ended(self) -> bool:
        state = this_process_index().state(self._run_id)
        return state is not None and state.finished

    def results(self) -> Iterator[tuple[str, str]]:
        state = this_process_index().state(self._run_id)
        if state is not None:
            yield "files", f"{state.done}, of which {state.refused} do not parse"
            yield "report", shown_path(Path(state.report or ""))


class ProductImport(Domain):
    title = "Product import: a spreadsheet, and a file that is none"

    def begin(self) -> None:
        uploads = var_dir() / "uploads"
        uploads.mkdir(parents=True, exist_ok=True)
        lines = [_product(number) for number in range(1, ROWS + 1)]
        (uploads / "products.csv").write_text("\n".join(["sku,name,category,price", *lines, ""]))
        (uploads / "letter.csv").write_text("Dear shop,\nplease find enclosed\n")
        self._imports = {name: imports.create(uploads / name) for name in ("products.csv", "letter.csv")}
        for import_id in self._imports.values():
            SplitSpreadsheetWorker.perform_async(import_id)

    def ended(self) -> bool:
        states = [imports.state(import_id) for import_id in self._imports.values()]
        return all(state is not None and state.state in ("finished", "failed") for state in states) and not _unpriced()

    def results(self) -> Iterator[tuple[str, str]]:
        for name, import_id in self._imports.items():
            state = imports.state(import_id)
            if state is None:
                continue
            counts = ", ".join(f"{count:,} {outcome}" for outcome, count in state.counts.items())
            yield name, state.reason or f"{counts}; every price calculated"
            if state.report:
                yield "to mend", shown_path(Path(state.report))


class Webhooks(Domain):
    title = "Webhooks: one event, and receivers of every kind"

    def __init__(self, receiver: Receiver) -> None:
        self._urls = [receiver.url(mood) for mood in MOODS] + [METADATA_SERVICE]

    def begin(self) -> None:
        self._hooks = {hooks.create_hook(url, ["order.paid"]): url for url in self._urls}
        self._event = hooks.record_event("order.paid", {"order": 7})
        FanOutEventWorker.perform_async(self._event)
        PingWebhookWorker.perform_async(min(self._hooks))
        PruneDeliveriesWorker.perform_async()

    def ended(self) -> bool:
        found = list(self._found())
        return len(found) == len(self._hooks) and all(state != "pending" or note for _, state, note in found)

    def results(self) -> Iterator[tuple[str, str]]:
        waits = _retries()
        for hook_id, state, note in self._found():
            again = waits.get(hook_id)
            outcome = f"tried again in {again:.0f} s" if again is not None and state == "pending" else state
            yield self._hooks[hook_id].rpartition("/")[2], f"{outcome}: {(note or 'no text')[:80]}"

    def _found(self) -> Iterator[tuple[int, str, str | None]]:
        wanted = select(deliveries.c.hook_id, deliveries.c.state, deliveries.c.note)
        with reading(process_engine("webhooks", webhooks)) as connection:
            mine = wanted.where(deliveries.c.event_id == self._event).order_by(deliveries.c.hook_id)
            for row in connection.execute(mine):
                yield row.hook_id, row.state, row.note


class Maintenance(Domain):
    title = "Maintenance: three ticks, pushed by hand"

    def begin(self) -> None:
        self._old = var_dir() / "uploads" / "forgotten.csv"
        self._old.write_text("")
        os.utime(self._old, (0, 0))
        self._database = var_dir() / "product_import.sqlite3"
        with closing(sqlite3.connect(self._database, timeout=30)) as connection:
            connection.execute("CREATE TABLE filling (data)")
            connection.executemany("INSERT INTO filling VALUES (zeroblob(1048576))", [()] * FREE_MEGABYTES)
            connection.execute("DROP TABLE filling")
            connection.commit()
        for tick in (PruneReportsWorker, VacuumDatabasesWorker, ReportQueuesWorker):
            tick.perform_async()

    def ended(self) -> bool:
        return not self._old.exists() and not _free_pages(self._database) and not _waiting()

    def results(self) -> Iterator[tuple[str, str]]:
        yield "files", f"{self._old.name}, older than its limit, is removed"
        yield "database", f"{self._database.name} has given back the {FREE_MEGABYTES} MB that it did not use"
        yield "queues", "counted on every shard; the lines are in the log"


class TaskDomain(Domain):
    """A scenario of tasks, with few rows."""

    def __init__(self, scenario: Scenario) -> None:
        self.title = f"{scenario.title}: {scenario.size:,} rows"
        self._scenario = scenario

    def begin(self) -> None:
        self._scenario.prepare(lambda: False)
        self._task = self._scenario.begin()

    def ended(self) -> bool:
        return self._task.progress().is_complete

    def results(self) -> Iterator[tuple[str, str]]:
        for name, value, note in self._scenario.figures():
            yield name, f"{value} {note}".rstrip()
        counts = self._task.progress().counts
        yield "jobs", ", ".join(f"{count:,} {status}" for status, count in counts.items() if count)


def run_examples(root: Path, *, stop: StopSignal, dashboard: DemoDashboard, patience_s: float) -> int:
    """Run every domain and return the exit status; no process of the demo is left afterwards."""
    folder = RunFolder.under(Path(os.environ.get("FRAMEWORK_VAR_DIR") or root / "var"))
    os.environ[ALLOWED_VARIABLE] = "127.0.0.0/8"  # the receiver is on this machine
    registry.load(["workers"])
    processes = DemoProcesses(root, folder.path, registry.workers())
    began = time.monotonic()
    try:
        with receiving() as receiver, processes, dashboard.beside(folder.path):
            scenarios = (Enrol(folder.path, FEW_ROWS, "csv"), Export(folder.path, FEW_ROWS, "csv"))
            tasks = map(TaskDomain, scenarios)
            domains = [CodeIndex(folder.run_id, root), ProductImport(), *tasks, Webhooks(receiver), Maintenance()]
            outcome = _run(domains, stop, patience_s)
            if outcome == DONE:
                dashboard.stay()
    except FrameworkError as error:
        outcome = outcome_of(error, stop)
        if outcome == FAILED:
            return FAILED
    if outcome == DONE:
        _conclude(processes, folder.run_id, time.monotonic() - began)
    elif outcome == INTERRUPTED:
        print(f"\n{INTERRUPTION}")
    else:
        explain_standstill(processes, patience_s)
    return outcome


def _run(domains: Sequence[Domain], stop: StopSignal, patience_s: float) -> int:
    for domain in domains:
        heading(domain.title)
        domain.begin()
        deadline = time.monotonic() + patience_s
        while not domain.ended():
            if stop.wait(LOOK_EVERY_S):
                return INTERRUPTED
            if time.monotonic() > deadline:
                return FAILED
        for name, text in domain.results():
            print(f"  {name:<14} {text}", flush=True)
    return DONE


def _conclude(processes: DemoProcesses, run_id: str, seconds: float) -> None:
    ended = count_ends(processes.logs)
    total = sum(ends[status] for ends in ended.values() for status in RAN)
    heading(f"{total} runs of {len(ended)} classes in {seconds:.1f} s, on two Redis")
    for name, ends in sorted(ended.items()):
        print(f"  {name:<42}{ends['done']:>6}   {otherwise(ends)}".rstrip())
    logs = [*processes.logs, processes.supervisor_log]
    report = show_jobs(read_run_statistics(index_engine(), run_id), activity_of(logs))
    print(f"\nReport     {shown_path(report or processes.folder)}")
    print(f"JSON logs  {', '.join(shown_path(log) for log in logs)}")


def _product(number: int) -> str:
    price = "a lot" if number % EVERY_BAD == 0 else f"{number % 90 + 1}.50"
    return f"P-{number},Product {number},{CATEGORIES[number % len(CATEGORIES)]},{price}"


def _unpriced() -> bool:
    with reading(process_engine("product_import", catalogue)) as connection:
        return (
            connection.execute(select(products.c.sku).where(products.c.gross_cents.is_(None)).limit(1)).first()
            is not None
        )


def _free_pages(database: Path) -> int:
    with closing(sqlite3.connect(database, timeout=30)) as connection:
        return int(connection.execute("PRAGMA freelist_count").fetchone()[0])


def _waiting() -> int:
    with router.via_all() as pools:
        return sum(pool.llen(f"queue:{name.decode()}") for pool in pools.values() for name in pool.smembers("queues"))


def _retries() -> dict[int, float]:
    """Return in how many seconds the delivery to each hook is retried."""
    with router.via_all() as pools:
        found = [entry for pool in pools.values() for entry in pool.zrange("retry", 0, -1, withscores=True)]
    now = time.time()
    jobs = ((json.loads(data), due) for data, due in found)
    return {job["args"][1]: due - now for job, due in jobs if job["class"].startswith("Webhooks::Deliver")}
