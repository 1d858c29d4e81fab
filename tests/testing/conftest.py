"""Provide an application with two shards, on real servers, and the modes in which the same test runs."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from framework import middleware
from framework.all_settings import load
from framework.declare import registry
from framework.testing import FakeJobs, RealJobs, fake, real
from framework.wiring import client as wiring

pytest_plugins = ["pytester"]


@pytest.fixture(autouse=True)
def own_classes() -> Iterator[None]:
    """Let a test declare workers and middlewares of its own."""
    with registry.isolated():
        yield
    for chain in (middleware.client, middleware.server):
        chain.allow_changes()
        chain._entries.clear()


@pytest.fixture
def application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of configuration whose Redis does not answer."""
    shards = {"main": {"url": "redis://127.0.0.1:1"}, "second": {"url": "redis://127.0.0.1:1"}}
    write_config(tmp_path, shards)
    monkeypatch.setenv("FRAMEWORK_CONFIG_DIR", str(tmp_path / "config"))
    return tmp_path


def write_config(folder: Path, shards: dict[str, dict[str, str]], **files: object) -> None:
    (folder / "config").mkdir(exist_ok=True)
    rules = {"routing_rules": [["tags=second", None, "second"], ["*", None]]}
    contents = {"redis": {"shards": shards}, "routing": rules, **files}
    for name, content in contents.items():
        (folder / "config" / f"{name}.yml").write_text(json.dumps(content))


@pytest.fixture(params=["fake", "real"])
def jobs(request: pytest.FixtureRequest, application: Path) -> Iterator[FakeJobs | RealJobs]:
    """The jobs of the application, in a fake, or in two Redis servers."""
    if request.param == "fake":
        with fake() as found:
            yield found
        return
    urls = [request.getfixturevalue(name) for name in ("redis_url", "second_redis_url")]
    write_config(application, {"main": {"url": urls[0]}, "second": {"url": urls[1]}})
    client = wiring.ProcessClient(load())
    wiring.bind(client)
    with real() as found:
        yield found
    client.shards.close()
    wiring.bind_default()
