"""Test the page of the payload store: what it counts, that it sweeps what no job names, and that it is honest without a store."""

import os
import time

import pytest

from framework.admin import audit_log
from framework.admin.diagnosis.facts import Installation
from framework.admin.explain import KnownClasses
from framework.all_settings import load
from framework.dashboard import Caller, application
from framework.features.encryption.blob_store import FolderStore
from framework.features.encryption.offload import PayloadOffload, blob_name
from framework.features.encryption.settings import PayloadOffloadSection
from framework.features.encryption.sweep import count_store
from framework.wire import keys
from tests.dashboard.conftest import browser, dashboard, shards, silent_shards
from tests.dashboard.test_actions import send
from tests.dashboard.test_pages import ATTACKS, check_inert
from tests.features.encryption.test_commands_payloads import job

__all__ = ["browser", "dashboard", "shards", "silent_shards"]

ADMIN, DAY_S = Caller("ann", "admin"), 86_400
AWAY = (ADMIN, Caller("eve", "admin", {"second": "read"}))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Let the dashboard use a store in a folder whose name is hostile."""
    found = tmp_path / ATTACKS[0].replace("/", "_")
    chosen = PayloadOffloadSection(url=f"file://{found}", keep=DAY_S)
    settings = load({}).model_copy(update={"payload_offload": chosen})
    monkeypatch.setattr(application, "read_installation", lambda: Installation(settings, KnownClasses({})))
    return found


def test_blobs_are_counted_and_swept(browser, shards, folder, redis):
    client = browser(ADMIN)
    assert "lacks the file payload-store" in client.get("/payloads").text
    assert "is no payload store" in send(client, "/payloads", 409, action="sweep")
    send(client, "/payloads", action="create")
    assert not folder.exists()
    assert "is a payload store now" in send(client, "/payloads", action="create", confirmed="yes")
    offload = PayloadOffload(FolderStore(folder), "", 1)
    redis.lpush(keys.queue("default"), job(offload, 1))
    for number in range(2, 4):
        job(offload, number)
    for path in folder.glob("blobs/*/*"):
        os.utime(path, (time.time() - 3 * DAY_S,) * 2)
    found = browser(ADMIN).get("/api/payloads?live=1").json()
    assert (found["kind"], found["blobs"], found["candidates"], found["noted"]) == ("folder", 3, 3, 0)
    text = check_inert(client.get("/payloads?live=1").text, "payloads").text
    assert ATTACKS[0].replace("/", "_") in text
    assert "0 blobs deleted, 0 B; 2 noted" in send(client, "/payloads", action="sweep", confirmed="yes")
    for path in folder.glob("unnamed/*"):
        os.utime(path, (time.time() - 2 * DAY_S,) * 2)
    found = client.get("/api/payloads?live=2").json()
    assert (found["noted"], found["noted_long"]) == (2, 2)
    assert "delete 2 blobs" in check_inert(send(client, "/payloads", action="sweep"), "preview").text
    assert len(list(folder.glob("blobs/*/*"))) == 3
    assert "2 blobs deleted" in send(client, "/payloads", action="sweep", confirmed="yes")
    assert len(list(folder.glob("blobs/*/*"))) == 1
    assert [(one.action, one.count) for one in audit_log(action="payloads")] == [
        ("payloads sweep", 2),
        ("payloads sweep", 0),
        ("payloads create", 1),
    ]


@pytest.mark.parametrize("caller", AWAY)
def test_sweep_needs_each_shard(browser, silent_shards, folder, caller):
    folder.mkdir(mode=0o700)
    store = FolderStore(folder)
    PayloadOffload(store, "", 1).make_store()
    store.put(blob_name("0" * 24 + "-" + "0" * 64), b"x")
    os.utime(next(folder.glob("blobs/*/*")), (time.time() - 3 * DAY_S,) * 2)
    client = browser(caller)
    send(client, "/payloads", 409, action="sweep", confirmed="yes")
    assert list(client.get("/api/payloads").json()["unanswered"]) == ["second"]
    assert [path.name for path in folder.iterdir() if path.name == "unnamed"] == []


def test_page_without_a_store_says_so(browser, shards):
    client = browser(ADMIN)
    assert "No payload store is configured" in client.get("/payloads").text
    assert "payload_offload.url" in send(client, "/payloads", 409, action="sweep")


def test_count_ends_with_its_time(folder):
    offload = PayloadOffload(FolderStore(folder), "", 1)
    offload.store.put(blob_name("0" * 24 + "-" + "0" * 64), b"x")
    assert count_store(offload, DAY_S, 60.0).blobs == 1
    found = count_store(offload, DAY_S, -1.0)
    assert (found.blobs, found.is_partial) == (0, True)
