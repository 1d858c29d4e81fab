"""Test scripts/store as a user runs it: background servers for the shards whose url is `embedded`, and for no others."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from framework.store.connect import Endpoint, open_client
from framework.store.embedded import embedded_url

ROOT = Path(__file__).resolve().parent.parent.parent
STORE = str(ROOT / "scripts" / "store")
SHARDS = """
shards:
  main: {url: embedded}
  queues_shard_a: {url: embedded}
  elsewhere: {url: "redis://127.0.0.1:1/0"}
"""

Store = Callable[..., tuple[int, str]]


@pytest.fixture
def store(short_path: Path) -> Iterator[Store]:
    config = short_path / "config"
    config.mkdir()
    (config / "redis.yml").write_text(SHARDS)
    inherited = {name: value for name, value in os.environ.items() if name != "REDIS_URL"}
    places = {"FRAMEWORK_CONFIG_DIR": str(config), "FRAMEWORK_VAR_DIR": str(short_path / "var")}

    def run(word: str, **more: str) -> tuple[int, str]:
        command = [sys.executable, STORE, word]
        done = subprocess.run(
            command, env={**inherited, **places, **more}, cwd=short_path, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout + done.stderr

    yield run
    run("stop")


def ping(url: str) -> bool:
    with open_client(Endpoint(url), name="tests") as client:
        return bool(client.ping())


def test_start_status_stop(store: Store, short_path: Path) -> None:
    status, said = store("status")
    assert status == 1, said
    assert said.count("does not run") == 2

    status, said = store("start")
    assert status == 0, said
    assert said.count("started, pid") == 2
    assert "elsewhere" not in said
    urls = [embedded_url(short_path / "var", shard) for shard in ("main", "queues_shard_a")]
    assert all(url and ping(url) for url in urls)
    assert urls[0] != urls[1]

    status, said = store("start")
    assert status == 0, said
    assert said.count("runs already") == 2
    assert store("status")[0] == 0

    status, said = store("stop")
    assert status == 0, said
    assert said.count("stopped") == 2
    assert embedded_url(short_path / "var", "main") is None
    status, said = store("stop")
    assert status == 0, said
    assert said.count("did not run") == 2


def test_data_outlives_a_stop(store: Store, short_path: Path) -> None:
    store("start")
    url = embedded_url(short_path / "var", "main")
    assert url
    with open_client(Endpoint(url), name="tests") as client:
        client.set("kept", "1")
    store("stop")
    store("start")
    with open_client(Endpoint(url), name="tests") as client:
        assert client.get("kept") == b"1"


def test_store_with_wrong_configuration_ends_with_78(store: Store, short_path: Path) -> None:
    (short_path / "config" / "redis.yml").write_text("shards: {main: {ur: embedded}}")
    status, said = store("start")
    assert status == 78, said
    assert "redis.yml" in said


def test_start_without_a_named_redis_starts_one(store: Store, short_path: Path) -> None:
    (short_path / "config" / "redis.yml").unlink()
    (short_path / "config" / "application.yml").write_text("concurrency: 2\n")
    status, said = store("start")
    url = embedded_url(short_path / "var", "main")
    assert status == 0, said
    assert url
    assert ping(url)
    assert f"\n  export REDIS_URL={url}\n" in said
    assert "config/redis.yml" in said

    for named in ({}, {"REDIS_URL": url}):  # before and after the line was given to the shell
        assert store("status", **named)[0] == 0
        assert "runs already" in store("start", **named)[1]
    status, said = store("stop", REDIS_URL=url)
    assert status == 0, said
    assert "stopped" in said
    status, said = store("start", REDIS_URL=url)
    assert status == 0, said
    assert "started" in said
    assert "export" not in said
    assert ping(url)


@pytest.mark.parametrize("named", ["environment", "file"])
def test_start_with_a_foreign_redis_starts_none(store: Store, short_path: Path, named: str) -> None:
    elsewhere = "redis://127.0.0.1:1/0"
    if named == "file":
        (short_path / "config" / "redis.yml").write_text(f"shards: {{main: {{url: '{elsewhere}'}}}}")
        status, said = store("start")
    else:
        (short_path / "config" / "redis.yml").unlink()
        status, said = store("start", REDIS_URL=elsewhere)
    assert status == 0, said
    assert "no store to manage" in said
    assert not (short_path / "var").exists()
