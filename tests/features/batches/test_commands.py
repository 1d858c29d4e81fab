"""List, show, cancel and delete batches of a real server."""

import json

import pytest
from click.testing import CliRunner

from framework.features.batches import keys as batch_keys
from framework.features.batches.commands import batches as command
from framework.wire import keys


@pytest.fixture
def run(redis, redis_url, monkeypatch, tmp_path):
    """Return a function that runs a command of the group, and returns what it printed."""
    monkeypatch.setenv("REDIS_URL", redis_url)
    monkeypatch.setenv("FRAMEWORK_CONFIG_DIR", str(tmp_path))
    (tmp_path / "redis.yml").write_text("shards: {main: {url: embedded}}")

    def call(*words, status=0):
        ended = CliRunner().invoke(command, list(words), prog_name="application-worker batches")
        assert ended.exit_code == status, ended.output
        return ended.output

    return call


@pytest.fixture
def two(redis):
    """A batch with a dead job, and one that is nested in it."""
    for at, (bid, more) in enumerate({"aw-outer": {"children": 1}, "aw-inner": {"parent": "aw-outer"}}.items()):
        fields = {"total": 3, "pending": 2, "created_at": 1_700_000_000 + at, "ttl_s": 60, "description": f"of {bid}"}
        redis.hset(batch_keys.batch(bid), mapping={**fields, **more})
        redis.zadd(batch_keys.BATCHES, {bid: 2e9})
    redis.sadd(f"{batch_keys.batch('aw-outer')}:children", "aw-inner")
    redis.sadd(f"{batch_keys.batch('aw-outer')}:dead", "d1")
    redis.hset(batch_keys.batch("aw-outer"), "death_at", 1_700_000_000)


def test_list_shows_the_newest_first(run, two, redis):
    redis.zadd(batch_keys.BATCHES, {"aw-expired": 1})
    _, first, second = run("list").splitlines()
    assert first.split()[:9] == ["main", "aw-inner", "pending", "3", "2", "0", "0", "0", "of"]
    assert second.split()[:7] == ["main", "aw-outer", "pending", "3", "2", "1", "1"]
    assert [one["bid"] for one in json.loads(run("list", "--json"))["batches"]] == ["aw-inner", "aw-outer"]


def test_list_without_batches_says_so(run):
    assert run("list") == "There is no batch.\n"


def test_show_has_counts_times_and_ids(run, two):
    shown = run("show", "aw-outer")
    assert "3 in total, 2 pending, 1 failed, 1 dead, 0 removed" in shown
    assert "death       2023-11-14 22:13:20Z" in shown
    assert "dead        d1" in shown
    assert "nested in aw-outer" in run("show", "aw-inner")
    (found,) = json.loads(run("show", "aw-outer", "--json"))["found"]
    assert (found["dead_jids"], found["children"]) == (["d1"], 1)


def test_cancel_marks_the_batch_and_nested_ones(run, two, redis):
    assert "Give --yes" in run("cancel", "aw-outer", status=2)
    assert run("cancel", "aw-outer", "--yes") == "main: the batch aw-outer is cancelled\n"
    assert set(redis.zrange(keys.CANCELLED, 0, -1)) == {b"aw-outer", b"aw-inner"}
    assert "cancelled" in run("list")


def test_batch_deleted_during_the_question_is_not_cancelled(run, two, redis, monkeypatch):
    monkeypatch.setattr(
        "framework.terminal.shards.confirm", lambda *_, **__: redis.delete(batch_keys.batch("aw-outer"))
    )
    printed = run("cancel", "aw-outer", status=1)
    assert printed.startswith("main: the batch aw-outer is gone\nno shard has the batch aw-outer: ")


def test_delete_removes_every_key(run, two, redis):
    run("delete", "aw-inner", "--yes")
    run("delete", "aw-outer", "--yes")
    assert redis.keys("*") == [b"aw:audit"]


@pytest.mark.parametrize("words", [("show",), ("cancel", "--yes"), ("delete", "--yes")])
def test_unknown_batch_is_an_error(run, words):
    assert "no shard has the batch aw-x" in run(words[0], "aw-x", *words[1:], status=1)
    assert "is no id of a batch" in run(words[0], "x", *words[1:], status=2)
