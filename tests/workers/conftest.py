"""Provide an installation for the example workers: own routing rules on real servers, files in the folder of the test."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from framework.settings.load import load
from framework.wiring.client import ProcessClient, override
from workers.code_index.tables import metadata as code_index_tables
from workers.database import process_engine
from workers.product_import.tables import metadata as product_import_tables
from workers.webhooks.addresses import ALLOWED_VARIABLE
from workers.webhooks.http_post import TIMEOUT_VARIABLE
from workers.webhooks.tables import metadata as webhooks_tables

ROOT = Path(__file__).resolve().parent.parent.parent
DATABASES = {"code_index": code_index_tables, "product_import": product_import_tables, "webhooks": webhooks_tables}


class Installation:
    """The folders of an installation, and its waiting jobs."""

    def __init__(self, folder: Path, shards: dict[str, Redis]) -> None:
        self.folder = folder
        self.var = folder / "var"
        self._shards = shards

    @property
    def environment(self) -> dict[str, str]:
        return {"FRAMEWORK_CONFIG_DIR": str(self.folder / "config"), "FRAMEWORK_VAR_DIR": str(self.var)}

    def payloads(self) -> list[dict[str, Any]]:
        """Return the waiting jobs, in queues and scheduled, in the order of their pushes."""
        found = [json.loads(data) for redis in self._shards.values() for data in self._waiting(redis)]
        return sorted(found, key=lambda job: job["created_at"])

    def _waiting(self, redis: Redis) -> list[bytes]:
        queued = [
            data for name in redis.smembers("queues") for data in redis.lrange(f"queue:{name.decode()}", 0, -1)[::-1]
        ]
        return queued + redis.zrange("schedule", 0, -1)

    def take(self) -> list[tuple[Any, ...]]:
        """Remove the waiting jobs; return the class (without its feature) and the arguments of each."""
        found = [(job["class"].rpartition("::")[2], *job["args"]) for job in self.payloads()]
        for redis in self._shards.values():
            redis.flushall()
        return found


@pytest.fixture
def installation(
    tmp_path: Path,
    redis: Redis,
    second_redis: Redis,
    redis_url: str,
    second_redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Installation]:
    one = Installation(tmp_path, {"main": redis, "queues_shard_a": second_redis})
    shutil.copytree(ROOT / "config", tmp_path / "config")
    shards = {"main": {"url": redis_url}, "queues_shard_a": {"url": second_redis_url}}
    (tmp_path / "config" / "redis.yml").write_text(json.dumps({"shards": shards}))
    for name, value in one.environment.items():
        monkeypatch.setenv(name, value)
    for name in (*(f"{name.upper()}_DATABASE_URL" for name in DATABASES), ALLOWED_VARIABLE, TIMEOUT_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    enqueuer = ProcessClient(load())
    with override(enqueuer):
        yield one
    enqueuer.shards.close()
    for name, tables in DATABASES.items():
        if (one.var / f"{name}.sqlite3").exists():
            process_engine(name, tables).dispose()
