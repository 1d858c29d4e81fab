"""Run the example workers in a real process on a real Redis, from the push to the result, with hooks and retries."""

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from sqlalchemy import select

from demo.receiver import Receiver, receiving
from framework import status
from tests.harness import ROOT, Process, enqueue, until
from tests.workers.conftest import Installation
from tests.workers.sheets import csv_file
from workers.database import process_engine, reading
from workers.maintenance.prune_reports_worker import PruneReportsWorker
from workers.maintenance.report_queues_worker import ReportQueuesWorker
from workers.maintenance.vacuum_databases_worker import VacuumDatabasesWorker
from workers.product_import import imports, prices
from workers.product_import.split_spreadsheet_worker import SplitSpreadsheetWorker
from workers.webhooks import hooks
from workers.webhooks.addresses import ALLOWED_VARIABLE
from workers.webhooks.fan_out_event_worker import FanOutEventWorker
from workers.webhooks.ping_webhook_worker import PingWebhookWorker
from workers.webhooks.tables import deliveries, metadata

Json = dict[str, Any]
PATHS = ("/ok", "/busy", "/missing", "/gone", "/chunked")


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as one:
        yield one


@pytest.fixture
def process(real_installation: Installation, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    """Start a process with the queues of config/queues.yml."""
    monkeypatch.setenv(ALLOWED_VARIABLE, "127.0.0.0/8")
    one = Process(
        [str(ROOT / "scripts" / "worker"), "-c", "5", "-t", "5"], real_installation.folder, dict(os.environ), warm=True
    )
    yield one.ready()
    one.kill()


def states(event_id: int) -> dict[int, tuple[str, int | None]]:
    with reading(process_engine("webhooks", metadata)) as connection:
        found = connection.execute(select(deliveries).where(deliveries.c.event_id == event_id))
        return {row.hook_id: (row.state, row.status) for row in found}


def jobs(redis: Redis, key: str) -> dict[str, tuple[Json, float]]:
    """Return the entries of a sorted set by their class."""
    return {
        (job := json.loads(data))["class"]: (job, score) for data, score in redis.zrange(key, 0, -1, withscores=True)
    }


def ended(import_id: int) -> Callable[[], imports.ImportState | None]:
    def look() -> imports.ImportState | None:
        found = imports.state(import_id)
        return found if found and found.state in ("finished", "failed") else None

    return look


def test_examples_of_all_domains_run_in_one_process(
    real_installation: Installation, process: Process, receiver: Receiver, redis: Redis, tmp_path: Path
) -> None:
    """One process runs all examples: the domains are independent."""
    good, bad = imports_are_pushed(tmp_path)
    event_id, by_path, pinged = webhooks_are_pushed(receiver)
    old = ticks_are_pushed(real_installation)
    imports_have_ended(process, good, bad, redis)
    webhooks_have_ended(event_id, by_path, pinged, redis)
    ticks_have_ended(process, old)
    old_releases_are_understood(process, redis)
    assert process.end() == 0


def imports_are_pushed(folder: Path) -> tuple[int, int]:
    lines = [f"S-{n},Product {n},{'tools' if n % 2 else 'food'},{n}.50" for n in range(1, 1200)]
    good = imports.create(csv_file(folder / "good.csv", *lines, "S-1200,,tools,1"))
    bad = imports.create(csv_file(folder / "bad.csv", header="dear,shop"))
    for import_id in (good, bad):
        SplitSpreadsheetWorker.perform_async(import_id)
    return good, bad


def imports_have_ended(process: Process, good: int, bad: int, redis: Redis) -> None:
    done = until(ended(good), "the import is finished")
    assert (done.state, done.counts) == ("finished", {"created": 1199, "rejected": 1})
    assert (
        Path(done.report).read_text().splitlines()[1].startswith("1201,name: string should have at least 1 character")
    )
    until(lambda: not prices_missing(), "every product has its price")
    failed = until(ended(bad), "the other has failed")
    assert (failed.state, failed.reason[:25]) == ("failed", "bad.csv has no column sku")
    refused = process.line(**{"class": "ProductImport::SplitSpreadsheetWorker", "job_status": "fail"})
    assert (refused["args"], refused["error_kind"], refused["retry_count"]) == ([str(bad)], "business", 0)
    assert "ProductImport::SplitSpreadsheetWorker" not in jobs(redis, "retry")
    line = process.line(
        **{"class": "ProductImport::ImportProductsWorker", "job_status": "done", "meta.lines": "502-1001"}
    )
    assert line["extra.product_import_import_products_worker.created"] == 500


def prices_missing() -> int:
    products = prices.products
    with reading(process_engine("product_import", prices.metadata)) as connection:
        return len(connection.execute(select(products.c.sku).where(products.c.gross_cents.is_(None))).all())


def webhooks_are_pushed(receiver: Receiver) -> tuple[int, dict[str, int], str]:
    by_path = {path: hooks.create_hook(receiver.url(path), ["order.paid"]) for path in PATHS}
    event_id = hooks.record_event("order.paid", {"order": 7})
    FanOutEventWorker.perform_async(event_id)
    pinged = PingWebhookWorker.perform_async(by_path["/ok"])
    assert pinged
    return event_id, by_path, pinged


def webhooks_have_ended(event_id: int, by_path: dict[str, int], pinged: str, redis: Redis) -> None:
    expected = {
        "/ok": ("delivered", 200),
        "/chunked": ("delivered", 200),
        "/busy": ("pending", 429),
        "/missing": ("failed", 404),
        "/gone": ("failed", 410),
    }
    until(
        lambda: states(event_id) == {by_path[path]: state for path, state in expected.items()}, "deliveries have ended"
    )
    job, due = until(lambda: jobs(redis, "retry"), "the busy one is tried again")["Webhooks::DeliverWebhookWorker"]
    assert job["args"] == [event_id, by_path["/busy"]]
    assert 7 <= due - job["failed_at"] <= 7 + 10 + 1  # the requested delay, and the jitter of a first failure
    assert "Webhooks::DeliverWebhookWorker" not in jobs(redis, "dead")
    assert until(lambda: status.of(pinged) == "completed", "the ping has its state")


def ticks_are_pushed(installation: Installation) -> Path:
    old = installation.var / "uploads" / "old.csv"
    old.parent.mkdir(parents=True)
    old.write_text("x")
    os.utime(old, (0, 0))
    for tick in (PruneReportsWorker, VacuumDatabasesWorker, ReportQueuesWorker):
        tick.perform_async()
    return old


def ticks_have_ended(process: Process, old: Path) -> None:
    until(lambda: not old.exists(), "the old file is gone")
    pruned = process.line(**{"class": "Maintenance::PruneFolderWorker", "job_status": "done", "meta.folder": "uploads"})
    assert pruned["extra.maintenance_prune_folder_worker.removed"] == 1
    assert pruned["meta.caller_id"] == "Maintenance::PruneReportsWorker"
    process.line(**{"class": "Maintenance::VacuumDatabaseWorker", "job_status": "done", "args": ["webhooks.sqlite3"]})
    sets = process.line(message="sets", shard_name="queues_shard_a")
    assert (sets["class"], sets["dead"]) == ("Maintenance::ReportQueuesWorker", 0)


def old_releases_are_understood(process: Process, redis: Redis) -> None:
    """The argument of a job from before version 2 is one product, not a category."""
    name = "ProductImport::RecalculatePricesWorker"
    enqueue(redis, name, queue="default", args=["S-8"], version=1, jid="c0ffee" * 4, enqueued_at=time.time())
    line = process.line(jid="c0ffee" * 4, job_status="done")
    assert (line["args"], line["extra.product_import_recalculate_prices_worker.products"]) == (["S-8"], 1)
