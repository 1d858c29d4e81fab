"""Test scripts/store as a user runs it: background servers for the shards whose url is `embedded`, and for no others."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from framework.store.connect import Endpoint, open_client
from framework.store.embedded import embedded_url
from tests.fork_server import FORK_SERVER

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
        done = FORK_SERVER.run([STORE, word], short_path, {**inherited, **places, **more})
        return done.returncode, done.stdout + done.stderr

    yield run
    run("stop")


def ping(url: str) -> bool:
    with open_client(Endpoint(url), name="tests") as client:
        return bool(client.ping())


@pytest.mark.campaign
def test_store_start_status_and_stop(store: Store, short_path: Path) -> None:
    status, output = store("status")
    assert status == 1, output
    assert output.count("does not run") == 2

    status, output = store("start")
    assert status == 0, output
    assert output.count("started, pid") == 2
    assert "elsewhere" not in output
    urls = [embedded_url(short_path / "var", shard) for shard in ("main", "queues_shard_a")]
    assert all(url and ping(url) for url in urls)
    assert urls[0] != urls[1]

    status, output = store("start")
    assert status == 0, output
    assert output.count("runs already") == 2
    assert store("status")[0] == 0

    status, output = store("stop")
    assert status == 0, output
    assert output.count("stopped") == 2
    assert embedded_url(short_path / "var", "main") is None
    status, output = store("stop")
    assert status == 0, output
    assert output.count("did not run") == 2


@pytest.mark.campaign
def test_store_data_survives_a_stop(store: Store, short_path: Path) -> None:
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
    status, output = store("start")
    assert status == 78, output
    assert "redis.yml" in output


@pytest.mark.campaign
def test_store_start_without_a_redis_setting_starts_one(store: Store, short_path: Path) -> None:
    (short_path / "config" / "redis.yml").unlink()
    (short_path / "config" / "application.yml").write_text("concurrency: 2\n")
    status, output = store("start")
    url = embedded_url(short_path / "var", "main")
    assert status == 0, output
    assert url
    assert ping(url)
    assert f"\n  export REDIS_URL={url}\n" in output
    assert "config/redis.yml" in output

    for named in ({}, {"REDIS_URL": url}):  # before and after the line was given to the shell
        assert store("status", **named)[0] == 0
        assert "runs already" in store("start", **named)[1]
    status, output = store("stop", REDIS_URL=url)
    assert status == 0, output
    assert "stopped" in output
    status, output = store("start", REDIS_URL=url)
    assert status == 0, output
    assert "started" in output
    assert "export" not in output
    assert ping(url)


@pytest.mark.parametrize("named", ["environment", "file"])
def test_store_start_with_another_redis_starts_none(store: Store, short_path: Path, named: str) -> None:
    elsewhere = "redis://127.0.0.1:1/0"
    if named == "file":
        (short_path / "config" / "redis.yml").write_text(f"shards: {{main: {{url: '{elsewhere}'}}}}")
        status, output = store("start")
    else:
        (short_path / "config" / "redis.yml").unlink()
        status, output = store("start", REDIS_URL=elsewhere)
    assert status == 0, output
    assert "no store to manage" in output
    assert not (short_path / "var").exists()
