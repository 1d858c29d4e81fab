"""The page of the shards: one that does not answer is shown, and a development store that has ended is started from it."""

import os
import signal

import pytest

from framework.admin import audit_log
from framework.admin.diagnosis.facts import Installation
from framework.admin.explain import KnownClasses
from framework.all_settings import load
from framework.dashboard import Caller, application
from framework.shard.shards import open_shards
from framework.store.embedded import development_stores
from tests.admin.conftest import bound
from tests.dashboard.test_actions import send
from tests.harness import until

ADMIN = Caller("ann", "admin")


@pytest.fixture
def store(short_path, monkeypatch):
    """Return the development store of the shard main, which runs, and which the dashboard uses."""
    monkeypatch.setenv("FRAMEWORK_VAR_DIR", str(short_path))
    monkeypatch.delenv("REDIS_URL", raising=False)
    (short_path / "redis.yml").write_text("shards: {main: {url: embedded}}")
    monkeypatch.setenv("FRAMEWORK_CONFIG_DIR", str(short_path))
    settings = load()
    monkeypatch.setattr(application, "read_installation", lambda: Installation(settings, KnownClasses()))
    store = development_stores(settings)["main"]
    store.start()
    for _ in bound(open_shards(settings, role="tests")):
        yield store
    store.stop()


def test_shards_page_shows_servers_and_a_silent_shard(browser, silent_shards):
    client = browser(ADMIN)
    second, main = sorted(client.get("/api/shards").json()["shards"], key=lambda one: one["shard"], reverse=True)
    assert (main["error"], main["policy"]) == ("", "noeviction")
    assert main["memory"] > 0
    assert "'second' is unavailable" in second["error"]
    html = client.get("/shards").text
    assert "does not answer" in html
    assert html.count("systemctl start valkey-server") == 1
    assert ">redis-cli -u redis://127.0.0.1:1/0 PING</code>" in html
    text = send(client, "/shards", status=409, action="start", row="second")
    assert "is no development store of this host: start it where it runs" in text


def test_killed_store_is_started_in_the_dashboard(browser, store):
    client = browser(ADMIN)
    os.kill(store.pid, signal.SIGKILL)
    until(lambda: not store.running, "the end of the store")
    (row,) = client.get("/api/shards").json()["shards"]
    assert (row["is_store"], bool(row["error"])) == (True, True)
    assert "does not run" in send(client, "/shards", action="start", row="main")
    assert not store.running
    assert "main runs" in send(client, "/shards", action="start", row="main", confirmed="yes")
    assert store.running
    (record,) = audit_log()
    assert (record.action, record.actor, record.end) == ("store start", "ann", "done")


def test_shards_page_offers_nothing_to_readers(browser, store):
    send(browser(Caller("bob", "operate")), "/shards", status=403, action="start", row="main", confirmed="yes")
