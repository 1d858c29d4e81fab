"""Test jobs undo: what it lists, what it brings back, why jobs stay deleted, and the exit codes."""

import time
from types import SimpleNamespace

import pytest

from framework.admin.audit import audit_log
from framework.cli import jobs_undo
from framework.wire import keys
from tests.admin.conftest import shard
from tests.harness import encoded

__all__ = ["shard"]

NOW = time.time()


@pytest.fixture
def deleted(jobs, redis):
    """Delete three dead jobs and one of the retry set, and return the command."""
    for number in range(3):
        failed = {"error_class": "KeyError", "error_message": "x", "failed_at": NOW}
        redis.zadd(keys.DEAD, {encoded("MailJob", jid=f"d{number}", queue="mail", **failed): NOW - number})
    redis.zadd(keys.RETRY, {encoded("OtherJob", jid="r0"): NOW + 60})
    jobs("delete", "--in", "dead", "--all", "--yes")
    jobs("delete", "r0")
    assert not redis.exists(keys.DEAD, keys.RETRY)
    return jobs


def test_undo_lists_deleted_jobs_and_changes_nothing(deleted, redis):
    shown = deleted("undo", "--most", "3")
    assert shown.splitlines()[0].split()[:5] == ["SHARD", "JID", "CLASS", "QUEUE", "FROM"]
    assert "and 1 more: --most shows more" in shown
    assert "Nothing was changed: --yes brings the selected jobs back." in shown
    found = deleted("undo", "--class", "OtherJob", "--json")
    assert (found["total"], found["unanswered"]) == (1, [])
    (one,) = found["jobs"]
    assert (one["jid"], one["place"], one["score"]) == ("r0", "retry", pytest.approx(NOW + 60))
    assert deleted("undo", "--older-than", "1h") == "No job was deleted in the last 24 hours.\n"
    assert "no job d9 was deleted in the last 24 hours on main" in deleted("undo", "d9", "d1", status=1)
    assert not redis.exists(keys.DEAD, keys.RETRY)


def test_undo_brings_selected_jobs_back(deleted, redis, shard):
    (result,) = deleted("undo", "--error", "KeyError", "--count", "2", "--yes", "--json")["results"]
    assert (result["matched"], result["done"], result["completed"]) == (2, 2, True)
    assert redis.zcard(keys.DEAD) == 2
    assert "no job d9" in deleted("undo", "r0", "d9", "--yes", status=1)
    assert redis.zcard(keys.RETRY) == 1
    deleted("undo", "--all", "--yes")
    assert redis.zrange(keys.DEAD, 0, -1, withscores=True)[0][1] == pytest.approx(NOW - 2)
    assert not redis.exists(keys.DELETED)
    assert [(one.action, one.source, one.count) for one in audit_log(action="jobs undo")] == [
        ("jobs undo", "command", 1),
        ("jobs undo", "command", 1),
        ("jobs undo", "command", 2),
    ]


def test_undo_says_how_many_stay_deleted_and_why(jobs, redis):
    for name, more in (("j1", {}), ("j2", {"aw_signature": "s"}), ("j3", {"aw_signature": "s"})):
        redis.zadd(keys.RETRY, {encoded("Job", jid=name, bid="b", **more): NOW + 60})
    jobs("delete", "--in", "retry", "--all", "--yes")
    shown = jobs("undo", "--all", "--yes", status=1)
    assert shown.splitlines()[1].split() == ["main", "3", "1", "0", "2", "yes"]
    assert "main: 2 stay deleted: its batch has counted it as removed, and its signature names the batch." in shown
    redis.delete(keys.RETRY)
    redis.set(keys.DEAD, "x")
    redis.zadd(keys.DELETED, {b"dead 1\n" + encoded("Job", jid="j4"): NOW, b"elsewhere 1\n{}": NOW})
    (result,) = jobs("undo", "--all", "--yes", "--json", status=1)["results"]
    assert result["refused"] == {"wrong type": 1, "no set": 1, "signed": 2}


def test_undo_of_a_job_that_was_deleted_twice_brings_the_last_one_back(jobs, redis):
    redis.zadd(
        keys.DELETED, {b"dead 1\n" + encoded("Job", jid="j1"): NOW - 9, b"retry 2\n" + encoded("Job", jid="j1"): NOW}
    )
    jobs("undo", "j1", "--yes")
    assert (redis.zcard(keys.RETRY), redis.exists(keys.DEAD), redis.zcard(keys.DELETED)) == (1, 0, 1)


def test_undo_without_a_selection_or_with_two_is_wrong_usage(jobs):
    assert "--yes alone selects nothing" in jobs("undo", "--yes", status=2)
    assert "or --all" in jobs("undo", "j1", "--all", status=2)


def test_undo_that_ends_early_says_so(deleted, redis, monkeypatch):
    monkeypatch.setattr(jobs_undo, "time", SimpleNamespace(monotonic=lambda: -1_000.0))
    assert "no: run it again" in deleted("undo", "--all", "--yes", status=1)
    assert redis.zcard(keys.DELETED) == 4
