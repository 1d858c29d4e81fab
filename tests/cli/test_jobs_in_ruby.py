"""Test the commands with a job that a process of Sidekiq runs: only the record of the process has it."""

import json
import time

import pytest

from framework.wire import keys
from tests.admin.test_process_list import RUBY, write_record
from tests.harness import encoded

JID = "e" * 24


@pytest.fixture(params=keys.work(RUBY), ids=["since 6.4.2", "6.4.1"])
def running(redis, request):
    """Write the record of a process that runs a job, as two versions of Sidekiq do."""
    write_record(redis)
    entry = {"queue": "mail", "payload": encoded("MailJob", jid=JID).decode(), "run_at": time.time() - 70}
    redis.hset(request.param, "t1", json.dumps(entry))


def test_job_that_runs_in_ruby_is_explained_and_shown(jobs, redis, running):
    shown = jobs("explain", JID).splitlines()
    assert f"  where     runs in {RUBY}, a process of Sidekiq ({RUBY}:work" in "\n".join(shown)
    assert any("it runs in Ruby, since 1 min 1" in line for line in shown)
    (found,) = jobs("show", JID, "--json")["found"]
    assert (found["place"], found["name"], found["class"]) == ("running", RUBY, "MailJob")
    redis.hset(RUBY, "beat", time.time() - 40)
    (found,) = jobs("explain", JID, "--json")["found"]
    assert [reason["code"] for reason in found["reasons"]] == ["process_silent"]


@pytest.mark.parametrize("words", [(JID,), ("--class", "MailJob", "--yes")])
def test_job_that_runs_in_ruby_is_cancelled(jobs, redis, running, words):
    jobs("cancel", *words)
    assert redis.zrange(keys.CANCELLED, 0, -1) == [JID.encode()]
    assert redis.hkeys(keys.iteration(JID)) == [b"cancelled", b"c"]
    (found,) = jobs("explain", JID, "--json")["found"]
    assert [reason["code"] for reason in found["reasons"]] == ["cancelled", "running"]
    assert "Sidekiq::IterableJob" in found["reasons"][0]["remedy"]


def test_stale_record_of_python_is_no_place_of_a_job(jobs, redis, running):
    """The working list decides: a process of this framework writes its record later than it ends a job."""
    write_record(redis, labels=["python"])
    jobs("cancel", JID, status=1)
    assert "No key of main holds the job" in jobs("explain", JID, status=1)
