"""Test jobs cancel: by ids and by a filter, the question, and the exit codes."""

import time

import pytest

from framework.declare import registry
from framework.terminal import options
from framework.wire import keys
from tests.harness import encoded, hold

FAR = time.time() + 9_000


@pytest.fixture
def stored(redis):
    redis.zadd(keys.SCHEDULE, {encoded("MailJob", jid="s"): FAR})
    redis.lpush(keys.queue("default"), encoded("MailJob", jid="q"), encoded("Other", jid="o"))
    hold(redis, encoded("MailJob", jid="r"), "host:1:aa")


def rows(text):
    return [line.split() for line in text.splitlines()[1:]]


def marks(redis):
    return sorted(redis.zrange(keys.CANCELLED, 0, -1))


def test_cancel_by_ids_ends_or_marks_each(jobs, redis, stored):
    assert rows(jobs("cancel", "s", "q", "r")) == [["main", "3", "1", "2", "0", "yes"]]
    assert (redis.zcard(keys.SCHEDULE), marks(redis)) == (0, [b"q", b"r"])
    shown = jobs("cancel", "q", "gone", "gone", status=1)
    assert "1 of 2 ids were not found: it has ended, or never was" in shown
    assert "no job that waits or runs matches" in jobs("cancel", "gone", status=1)


def test_cancel_by_a_filter_asks_first(jobs, redis, stored, monkeypatch):
    shown = jobs("cancel", "--class", "MailJob", "--dry-run")
    assert rows(shown) == [["main", "3", "1", "2", "0", "yes"]]
    assert (redis.zcard(keys.SCHEDULE), marks(redis)) == (1, [])
    monkeypatch.setattr(options, "is_terminal", lambda: True)
    assert "Cancel 3 jobs with class=MailJob?" in jobs("cancel", "--class", "MailJob", answer="n\n", status=1)
    assert marks(redis) == []
    found = jobs("cancel", "--class", "MailJob", "--yes", "--json")
    (result,) = found["results"]
    assert (result["shard"], result["matched"], result["ended"], result["completed"]) == ("main", 3, 1, True)
    assert marks(redis) == [b"q", b"r"]


def test_cancel_without_yes_or_terminal_changes_nothing(jobs, redis, stored):
    shown = jobs("cancel", "--class", "MailJob", status=2)
    assert "--yes" in shown
    assert (redis.zcard(keys.SCHEDULE), marks(redis)) == (1, [])


@pytest.mark.parametrize("words", [(), ("s", "--class", "MailJob"), (" ",), ("--class", "")])
def test_cancel_with_wrong_words_is_wrong_usage(jobs, redis, stored, words):
    jobs("cancel", *words, status=2)
    assert marks(redis) == []


def test_cancel_of_an_unknown_class_names_the_nearest(jobs, redis, tmp_path, monkeypatch):
    body = 'feature_category = "not_owned"\n    def perform(self) -> None: ...'
    (tmp_path / "cancel_jobs.py").write_text(
        f"import framework\nclass MailWorker(framework.ApplicationWorker):\n    {body}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with registry.isolated():
        shown = jobs("cancel", "--class", "MialWorker", "--yes", "-r", "cancel_jobs", status=1)
        assert "there is no worker 'MialWorker' (did you mean 'MailWorker'?)" in shown
        shown = jobs("cancel", "--class", "MailWorker", "--yes", "-r", "cancel_jobs", status=1)
        assert "no job that waits or runs matches" in shown
