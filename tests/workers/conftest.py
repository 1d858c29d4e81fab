"""Provide an installation for the example workers: the rules of config/, jobs in a fake or in Redis, files in the test's folder."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from framework.all_settings import load
from framework.testing import FakeJobs, RealJobs, fake, real
from framework.wiring import client as wiring
from workers.code_index.tables import metadata as code_index_tables
from workers.database import process_engine
from workers.enrolment.tables import metadata as enrolment_tables
from workers.order_export.tables import metadata as order_export_tables
from workers.product_import.tables import metadata as product_import_tables
from workers.webhooks.addresses import ALLOWED_VARIABLE
from workers.webhooks.http_post import TIMEOUT_VARIABLE
from workers.webhooks.tables import metadata as webhooks_tables

ROOT = Path(__file__).resolve().parent.parent.parent
DATABASES = {
    "code_index": code_index_tables,
    "enrolment": enrolment_tables,
    "order_export": order_export_tables,
    "product_import": product_import_tables,
    "webhooks": webhooks_tables,
}


class Installation:
    """The folders of an installation, and its waiting jobs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.var = folder / "var"
        self.jobs: FakeJobs | RealJobs

    @property
    def environment(self) -> dict[str, str]:
        return {"FRAMEWORK_CONFIG_DIR": str(self.folder / "config"), "FRAMEWORK_VAR_DIR": str(self.var)}

    def take(self) -> list[tuple[Any, ...]]:
        """Remove the waiting jobs; return the class (without its feature) and the arguments of each."""
        found = [(job.worker.rpartition("::")[2], *job.args) for job in self.jobs.enqueued()]
        self.jobs.clear()
        return found


@pytest.fixture
def installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installation]:
    """An installation without Redis."""
    with _installed(tmp_path, monkeypatch) as one, fake() as one.jobs:
        yield one


@pytest.fixture
def real_installation(
    tmp_path: Path,
    redis: Redis,
    second_redis: Redis,
    redis_url: str,
    second_redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Installation]:
    """An installation on two Redis servers."""
    with _installed(tmp_path, monkeypatch) as one:
        shards = {"main": {"url": redis_url}, "queues_shard_a": {"url": second_redis_url}}
        (tmp_path / "config" / "redis.yml").write_text(json.dumps({"shards": shards}))
        with connected() as one.jobs:
            yield one


@contextmanager
def connected() -> Iterator[RealJobs]:
    """Connect to the Redis servers of the configuration."""
    client = wiring.ProcessClient(load())
    wiring.bind(client)
    with real() as jobs:
        yield jobs
    client.shards.close()
    wiring.bind_default()


@contextmanager
def _installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installation]:
    one = Installation(folder)
    shutil.copytree(ROOT / "config", folder / "config")
    for name, value in one.environment.items():
        monkeypatch.setenv(name, value)
    for name in (*(f"{name.upper()}_DATABASE_URL" for name in DATABASES), ALLOWED_VARIABLE, TIMEOUT_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    yield one
    for name, tables in DATABASES.items():
        if (one.var / f"{name}.sqlite3").exists():
            process_engine(name, tables).dispose()
