"""Test the page of the settings: no secret on it, hostile values escaped, and to whom it shows which shard."""

import pytest

from framework.admin.diagnosis.facts import Installation
from framework.admin.explain import KnownClasses
from framework.all_settings import load
from framework.dashboard import Caller, application
from framework.settings.base import secrets_of
from tests.admin.conftest import bound
from tests.dashboard.test_pages import ATTACKS, check_inert
from tests.harness import opened
from tests.settings.test_shown import FILES, folder

__all__ = ["folder"]

ADMIN = Caller("ann", "admin")


@pytest.fixture
def settings(folder, redis_url, second_redis_url, monkeypatch):
    """Let the dashboard have settings full of secrets and of hostile values."""
    categories = "\n".join(f"  a{number}: {{owner: {one!r}}}" for number, one in enumerate(ATTACKS))
    (folder / "config" / "feature_categories.yml").write_text(f"feature_categories:\n{categories}\n")
    found = load({"FRAMEWORK_TIMEOUT": "41"}, folder)
    monkeypatch.setattr(application, "read_installation", lambda: Installation(found, KnownClasses({})))
    for _ in bound({"main": opened(redis_url), "b": opened(second_redis_url, "b")}):
        yield found


def test_page_has_each_setting_and_no_secret(browser, settings):
    assert FILES
    client = browser(ADMIN)
    found = client.get("/api/settings").json()
    origins = {one["name"]: one["origin"] for one in found["given"]}
    assert (origins["timeout"], origins["concurrency"]) == ("FRAMEWORK_TIMEOUT", "config/application.yml")
    assert {one["name"] for one in found["defaults"]} >= {"poll_interval", "tracing.opentelemetry"}
    first, second = found["shards"]
    assert (first["shard"], first["address"], first["user"], first["role"]) == (
        "b",
        "m of the sentinels s:1",
        "ann",
        "master",
    )
    assert (second["address"], second["user"]) == ("redis://h:1/2", "ann")
    for path in ("/settings", "/api/settings"):
        text = client.get(path).text
        assert [one for one in secrets_of(settings) if one in text] == [], path
        assert "s3same" not in text
    text = check_inert(client.get("/settings").text, "settings").text
    assert [attack for attack in ATTACKS if attack not in text.encode().decode("unicode_escape")] == []


def test_admin_of_one_shard_sees_the_address_of_no_other(browser, settings):
    found = browser(Caller("eve", shards={"main": "admin", "b": "read"})).get("/api/settings").json()
    names = {one["name"] for one in [*found["given"], *found["defaults"]]}
    assert "shards.main.url" in names
    assert not [name for name in names if name.startswith("shards.b.")]
    assert [one["shard"] for one in found["shards"]] == ["main"]
    assert browser(Caller("eve", "operate")).get("/settings").status_code == 403
