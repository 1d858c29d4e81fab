"""Test ``application-worker limiters``, and the data API of rate limiters, on real shards."""

import json
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from framework import admin, limiter
from framework.features.limiters import keys
from framework.features.limiters.commands import limiters as command
from framework.features.limiters.store import LimiterStore
from tests.harness import opened

API = limiter.window("api", 3, "day")
LOCK = limiter.concurrent("lock", 2)


@pytest.fixture
def store(redis_url):
    shard = opened(redis_url)
    yield LimiterStore(SimpleNamespace(shards={"main": shard}, settings=SimpleNamespace(fleet_shard="main")))
    shard.close()


@pytest.fixture
def run(redis, redis_url, monkeypatch, tmp_path):
    """Return a function that runs a command in this process, and returns what it printed, parsed with ``--json``."""
    monkeypatch.setenv("REDIS_URL", redis_url)
    monkeypatch.setenv("FRAMEWORK_CONFIG_DIR", str(tmp_path))
    (tmp_path / "redis.yml").write_text("shards: {main: {url: embedded}}")

    def call(*words, status=0):
        ended = CliRunner().invoke(command, list(words), prog_name="application-worker limiters")
        assert ended.exit_code == status, ended.output
        return json.loads(ended.stdout) if "--json" in words else ended.output

    return call


@pytest.fixture
def used(store):
    """Take from two limiters, also over the limit of a key."""
    for number, key in enumerate(("", "ada", "ada", "ada", "ada", "bob")):
        store.take(API.rule, key, 1, f"t{number}", waited=False)
    store.take(LOCK.rule, "", 1, "holder", waited=True)
    return store


def test_list_shows_use_and_counts_of_each_limiter(run, used):
    api, lock = run("list", "--json")["limiters"]
    assert [api[name] for name in ("name", "kind", "limit", "used", "taken", "refused")] == [
        "api",
        "window",
        3,
        1,
        5,
        1,
    ]
    assert (lock["name"], lock["used"], lock["waited"]) == ("lock", 1, 1)
    heading, first, _ = run("list").splitlines()
    assert heading.split()[:5] == ["SHARD", "LIMITER", "KIND", "LIMIT", "USED"]
    assert first.split() == ["main", "api", "window", "3", "per", "1", "d", "1", "5", "0", "1", "0", "the", "code"]


def test_list_without_limiters_says_so(run, redis):
    assert run("list") == "No limiter is in use.\n"
    redis.zadd(keys.NAMES, {"gone": 1})  # its facts have expired
    assert run("list") == "No limiter is in use.\n"


def test_show_puts_the_most_used_key_first(run, used):
    assert [(row["key"], row["used"]) for row in run("show", "api", "--json")["keys"]] == [("ada", 3), ("bob", 1)]
    assert len(run("show", "api", "--most", "1", "--json")["keys"]) == 1
    assert "no limiter in use is named 'apo' (did you mean 'api'?)" in run("show", "apo", status=1)


def test_resize_holds_for_a_time_and_unresize_ends_it(run, used, store):
    assert "main: api has the limit 9, for 1 h" in run("resize", "api", "9", "--reason", "their sale", "--for", "1h")
    (row,) = run("show", "api", "--json")["limiters"]
    assert (row["limit"], row["declared"], row["resized_reason"]) == (9, 3, "their sale")
    assert store.take(API.rule, "ada", 1, "more", waited=False).admitted
    assert "their sale; declared: 3" in run("list")
    assert run("unresize", "api") == "main: api has the limit of the code\n"
    assert run("unresize", "api") == "main: api was not resized\n"
    assert "--reason is empty" in run("resize", "api", "9", "--reason", " ", "--for", "1h", status=2)


def test_reset_frees_one_key_or_all(run, used, store):
    assert run("reset", "api", "--key", "ada") == "main: api: 1 key reset\n"
    assert (store.used(API.rule, "ada"), store.used(API.rule, "bob")) == (0, 1)
    assert run("reset", "api") == "main: api: 2 keys reset\n"
    assert store.used(API.rule, "") == 0


def test_data_api_reads_limiters_by_shard(run, used):
    (one, two) = admin.limiters().by_shard["main"]
    assert (one.name, one.taken, two.name, two.used) == ("api", 5, "lock", 1)
