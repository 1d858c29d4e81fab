"""Run the periodic jobs of maintenance on real files, real databases and real queues."""

import json
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from framework import BusinessError, Discard, RetryLater
from tests.harness import enqueue
from tests.workers.conftest import Installation, connected
from workers.maintenance import vacuum_database_worker
from workers.maintenance.prune_folder_worker import PruneFolderWorker
from workers.maintenance.prune_reports_worker import PruneReportsWorker
from workers.maintenance.report_queues_worker import ReportQueuesWorker
from workers.maintenance.vacuum_database_worker import VacuumDatabaseWorker
from workers.maintenance.vacuum_databases_worker import VacuumDatabasesWorker
from workers.product_import import imports

DAY_S = 86_400


def aged(path: Path, days: float) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x")
    at = time.time() - days * DAY_S
    os.utime(path, (at, at))
    return path


class RecordingLogger:
    """A logger that records its lines."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, Any]]] = []

    def __getattr__(self, level: str) -> Any:
        return lambda message, **fields: self.lines.append((level, message, fields))


# --- files ----------------------------------------------------------------------------------------------------------


def test_prune_tick_pushes_a_job_per_folder(installation: Installation) -> None:
    PruneReportsWorker.perform_async()
    (tick,) = installation.jobs.enqueued()
    assert (tick["queue"], tick["retry"]) == ("cronjob:maintenance_prune_reports", False)
    installation.take()
    PruneReportsWorker.perform_inline()
    assert [job["meta.folder"] for job in installation.jobs.enqueued()] == ["reports", "uploads"]
    assert installation.take() == [("PruneFolderWorker", "reports", 30), ("PruneFolderWorker", "uploads", 7)]


def test_prune_removes_old_files_only(installation: Installation, tmp_path: Path) -> None:
    reports = installation.var / "reports"
    old, deep = aged(reports / "old.html", 31), aged(reports / "a" / "b" / "old.csv", 31)
    young = aged(reports / "young.html", 29)
    outside = aged(tmp_path / "elsewhere" / "outside_file", 100)
    (reports / "link").symlink_to(outside.parent)
    (reports / "new link").symlink_to(outside)
    for _ in range(2):
        PruneFolderWorker.perform_inline("reports", 30)
    assert [path.exists() for path in (old, deep, young, outside)] == [False, False, True, True]
    assert (reports / "new link").is_symlink()
    PruneFolderWorker.perform_inline("not there", 30)


@pytest.mark.parametrize("folder", ["..", ".", "../elsewhere", "/etc", "", "reports/../../elsewhere", "link"])
def test_prune_refuses_folders_outside_of_var(installation: Installation, tmp_path: Path, folder: str) -> None:
    outside_file = aged(tmp_path / "elsewhere" / "outside_file", 100)
    installation.var.mkdir()
    (installation.var / "link").symlink_to(outside_file.parent)
    with pytest.raises(BusinessError, match="no folder below the var directory"):
        PruneFolderWorker.perform_inline(folder, 1)
    assert outside_file.exists()


def test_prune_interrupted_leaves_the_rest_to_its_next_run(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = aged(installation.var / "reports" / "old.html", 31)
    monkeypatch.setattr(PruneFolderWorker, "interrupted", True)
    PruneFolderWorker.perform_inline("reports", 30)
    assert file.exists()
    assert installation.take() == [("PruneFolderWorker", "reports", 30)]


# --- databases ------------------------------------------------------------------------------------------------------


@pytest.fixture
def database(installation: Installation) -> Path:
    """The database of the product import after the removal of a large import: most of its pages are free."""
    imports.create(Path("a.csv"))
    path = installation.var / "product_import.sqlite3"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("CREATE TABLE filling AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000) "
                           "SELECT i, randomblob(2000) AS data FROM n")  # fmt: skip
        connection.execute("DROP TABLE filling")
    return path


def pragma(path: Path, name: str) -> Any:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(f"PRAGMA {name}").fetchone()[0]


def test_vacuum_gives_free_pages_to_the_disk(
    installation: Installation, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (installation.var / "not-one.txt").write_text("")
    VacuumDatabasesWorker.perform_inline()
    assert installation.take() == [("VacuumDatabaseWorker", "product_import.sqlite3")]
    before = pragma(database, "page_count")
    assert pragma(database, "freelist_count") > 1000
    looks: list[int] = []
    free_pages = vacuum_database_worker._free_pages
    monkeypatch.setattr(
        vacuum_database_worker, "_free_pages", lambda opened: looks.append(free_pages(opened)) or looks[-1]
    )
    for _ in range(2):
        VacuumDatabaseWorker.perform_inline("product_import.sqlite3")
    assert looks[2] == looks[0] - vacuum_database_worker.PAGES  # so many at a time
    assert pragma(database, "freelist_count") == 0
    assert pragma(database, "page_count") < before / 10
    assert installation.take() == []


def test_vacuum_over_budget_goes_on_later(
    installation: Installation, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = pragma(database, "freelist_count")
    monkeypatch.setattr(vacuum_database_worker, "BUDGET_S", 0.0)
    VacuumDatabaseWorker.perform_inline("product_import.sqlite3")
    assert [job["at"] > time.time() for job in installation.jobs.enqueued()] == [True]
    assert installation.take() == [("VacuumDatabaseWorker", "product_import.sqlite3")]
    assert pragma(database, "freelist_count") == free


def test_vacuum_leaves_a_busy_database_alone(
    installation: Installation, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vacuum_database_worker, "BUSY_TIMEOUT_S", 0.05)
    with closing(sqlite3.connect(database, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        with pytest.raises(RetryLater, match="locked"):
            VacuumDatabaseWorker.perform_inline("product_import.sqlite3")


def test_vacuum_of_a_full_database_ends_at_once(installation: Installation, database: Path) -> None:
    with closing(sqlite3.connect(installation.var / "plain.sqlite3", isolation_level=None)) as plain:
        plain.execute("CREATE TABLE a AS SELECT randomblob(100000) AS data")
        plain.execute("DROP TABLE a")
        assert plain.execute("PRAGMA freelist_count").fetchone()[0] > 10
    VacuumDatabaseWorker.perform_inline("plain.sqlite3")
    assert installation.take() == []


@pytest.mark.parametrize("name", ["gone.sqlite3", "../other.sqlite3", "/etc/passwd", "", "."])
def test_vacuum_without_database_is_discarded(installation: Installation, name: str) -> None:
    with pytest.raises(Discard, match="there is no database"):
        VacuumDatabaseWorker.perform_inline(name)


# --- queues ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def logger(monkeypatch: pytest.MonkeyPatch) -> RecordingLogger:
    recorder = RecordingLogger()
    monkeypatch.setattr(ReportQueuesWorker, "logger", recorder)
    return recorder


def test_queue_report_logs_waiting_jobs(
    real_installation: Installation, redis: Redis, second_redis: Redis, logger: RecordingLogger
) -> None:
    now = time.time()
    enqueue(redis, "Old", queue="external", enqueued_at=now - 100)
    enqueue(redis, "New", queue="external", enqueued_at=now)
    enqueue(second_redis, "Ruby", queue="code_index", enqueued_at=int((now - 5) * 1000))  # Sidekiq 8
    redis.sadd("queues", "empty")
    second_redis.sadd("queues", "damaged")
    second_redis.lpush("queue:damaged", "{")
    redis.zadd("dead", {json.dumps({"class": "X"}): now})
    ReportQueuesWorker.perform_inline()
    queues = [(level, fields) for level, message, fields in logger.lines if message == "queue"]
    ages = {fields["queue_name"]: (level, fields["jobs"], fields["oldest_s"]) for level, fields in queues}
    assert {name: (level, jobs) for name, (level, jobs, _) in ages.items()} == {
        "empty": ("info", 0),
        "external": ("warning", 2),
        "code_index": ("info", 1),
        "damaged": ("info", 1),
    }
    assert 100 <= ages["external"][2] < 160
    assert 5 <= ages["code_index"][2] < 65
    assert (ages["empty"][2], ages["damaged"][2]) == (0, 0)
    sets = {fields["shard_name"]: fields for _, message, fields in logger.lines if message == "sets"}
    assert (sets["main"]["dead"], sets["queues_shard_a"]["dead"]) == (1, 0)


def test_queue_report_without_one_shard_has_the_others(
    real_installation: Installation, redis: Redis, redis_url: str, logger: RecordingLogger
) -> None:
    config = real_installation.folder / "config" / "redis.yml"
    config.write_text(
        json.dumps({"shards": {"main": {"url": redis_url}, "queues_shard_a": {"url": "redis://127.0.0.1:1"}}})
    )
    enqueue(redis, "New", queue="external", enqueued_at=time.time())
    with connected():
        ReportQueuesWorker.perform_inline()
    assert {(level, fields["shard_name"]) for level, _, fields in logger.lines} == {
        ("info", "main"),
        ("error", "queues_shard_a"),
    }
