"""Test jobs list, show, retry, kill, delete and requeue: tables, JSON, questions, and the exit codes."""

import itertools
import json
import time
from types import SimpleNamespace

import pytest

from framework.admin import search, shard_job_set
from framework.cli import jobs_actions
from framework.terminal import options
from framework.wire import keys
from framework.wire.compress import pack_backtrace
from tests.harness import encoded

NOW = time.time()
FAILED = {"error_class": "Net::SMTPError", "error_message": "no\x1b[31m answer", "failed_at": NOW - 90.5}


def add(redis, key, jid, score=NOW, **fields):
    redis.zadd(key, {encoded(fields.pop("name", "MailJob"), jid=jid, **fields): score})


def rows(text):
    return [line.split() for line in text.splitlines()[1:]]


def test_list_shows_the_jobs_of_each_set_in_order(jobs, redis):
    for number in range(3):
        add(redis, keys.DEAD, f"d{number}", score=NOW - 100 * number, queue="mail", **FAILED)
    add(redis, keys.RETRY, "r1", score=NOW + 3_600, retry_count=4, **FAILED)
    add(redis, keys.SCHEDULE, "s1", score=NOW - 5, args=["ann", {"n": 1}])
    redis.zadd(keys.INTERRUPTED, {b"\xff": NOW})
    shown = jobs("list", "dead", "--most", "2")
    assert [row[:4] for row in rows(shown)[:2]] == [["main", name, "MailJob", "mail"] for name in ("d0", "d1")]
    assert shown.endswith("Net::SMTPError: no\\x1b[31m answer\nand 1 more: --most shows more\n")
    assert rows(jobs("list", "retry"))[0][4:8] == ["59", "min", "59", "s"] or "5" in jobs("list", "retry")
    assert rows(jobs("list", "scheduled"))[0][4:] == ["due", '["ann",', '{"n":', "1}]"]
    assert "(malformed)" in jobs("list", "interrupted")
    assert jobs("list", "held") == "No job is in held.\n"
    found = jobs("list", "dead", "--json")
    assert (found["total"], [one["jid"] for one in found["jobs"]], found["unanswered"]) == (3, ["d0", "d1", "d2"], [])
    assert (found["jobs"][0]["since"], found["jobs"][0]["error_class"]) == (pytest.approx(NOW), "Net::SMTPError")


def test_list_filters_and_names_the_nearest_class(jobs, redis):
    for number in range(4):
        fields = {"meta.user": "ann", "tags": ["slow"]} if number % 2 else {}
        add(redis, keys.DEAD, f"d{number}", score=NOW - number, **fields)
    assert [one["jid"] for one in jobs("list", "dead", "--context", "user=ann", "--tag", "slow", "--json")["jobs"]] == [
        "d1",
        "d3",
    ]
    assert jobs("list", "dead", "--class", "MailJob", "--queue", "other") == "No job in dead matches.\n"
    assert "no job in dead has the class 'MailJobb' (did you mean 'MailJob'?)" in jobs(
        "list", "dead", "--class", "MailJobb", status=1
    )
    assert "(did you mean 'dead'?)" in jobs("list", "deda", status=2)
    assert "write K=V, such as" in jobs("list", "dead", "--context", "user", status=2)
    assert "--class is empty" in jobs("list", "dead", "--class", "", status=2)


def test_option_of_a_filter_given_twice_is_wrong_usage(jobs, redis):
    add(redis, keys.DEAD, "d1")
    refusal = jobs("retry", "--class", "Report", "--class", "MailJob", "--yes", status=2)
    assert "--class is given 2 times: give it once." in refusal
    assert redis.zcard(keys.DEAD) == 1


def test_list_held_shows_what_holds_each_job(jobs, redis):
    redis.zadd(keys.paused_jobs("MailJob"), {b'["mail"]\n' + encoded("MailJob", jid="h1", queue="mail"): NOW - 60})
    redis.zadd(keys.limit("Report") + ":waiting:", {b'["r","h2"]\n' + encoded("Report", jid="h2"): NOW - 600})
    shown = rows(jobs("list", "held"))
    assert [row[1] for row in shown] == ["h2", "h1"]
    assert shown[1][4:7] == ["pause", "of", "MailJob"]
    assert [one["held_by"] for one in jobs("list", "held", "--class", "Report", "--json")["jobs"]] == ["Report"]


def test_show_has_every_field_of_a_job(jobs, redis):
    fields = {**FAILED, "error_backtrace": pack_backtrace(["smtp.py:5"]), "encrypt": True, "extra": {"a": [1]}}
    add(redis, keys.DEAD, "d1", args=[1, "ciphertext"], **fields)
    shown = jobs("show", "d1")
    for text in (
        "d1: MailJob on main\n",
        "  place          dead, number 1 of 1 (dead)\n",
        '  arguments      [1, "[encrypted data]"]\n',
        "  error          Net::SMTPError: no\\x1b[31m answer\n                 smtp.py:5\n",
        '  extra          {"a": [1]}\n',
        f"  failed_at      {time.strftime('%Y-%m-%d', time.gmtime(NOW - 90))}",
    ):
        assert text in shown
    (found,) = jobs("show", "d1", "--json")["found"]
    assert (found["place"], found["error_backtrace"], found["payload"]["extra"]) == ("dead", ["smtp.py:5"], {"a": [1]})
    assert "ciphertext" not in json.dumps(found)
    redis.lpush("queue:default", encoded("MailJob", jid="q1"))
    assert "place          queue default, number 1 of 1" in jobs("show", "q1")
    assert "no key of main holds the job nope" in jobs("show", "nope", status=1)


def test_actions_on_ids_say_what_became_of_each(jobs, redis):
    for key in (keys.DEAD, keys.RETRY, keys.SCHEDULE, keys.INTERRUPTED):
        for number in range(2):
            add(redis, key, f"{key}{number}", queue="mail")
    redis.zadd(keys.DEAD, {encoded("aw.Malformed", jid="odd"): NOW})
    assert jobs("retry", "dead0", "retry0") == (
        "main: dead0 (dead): moved to its queue\nmain: retry0 (retry): moved to its queue\n"
    )
    assert jobs("retry", "dead1", "--dry-run") == "main: dead1 (dead): would be moved to its queue\n"
    assert "main: odd (dead): stays as it is: its payload cannot run" in jobs("retry", "odd", status=1)
    assert jobs("retry", "dead0", "dead1", status=1).splitlines() == [
        "main: dead1 (dead): moved to its queue",
        "no job dead0 is in dead or retry of main",
    ]
    assert jobs("requeue", "interrupted0") == "main: interrupted0 (interrupted): moved to its queue\n"
    assert jobs("requeue", "schedule0", "--in", "scheduled").endswith("(scheduled): moved to its queue\n")
    assert jobs("kill", "schedule1", "retry1").count("moved to the dead set") == 2
    assert jobs("delete", "retry1") == "main: retry1 (dead): deleted\n"
    done = jobs("delete", "interrupted1", "nope", "--json", status=1)
    assert (done["jobs"][0]["outcome"], done["unknown"]) == ("done", ["nope"])
    assert redis.llen("queue:mail") == 5


def test_job_moved_between_look_and_action_is_reported(jobs, redis, monkeypatch):
    add(redis, keys.DEAD, "d1")
    act_on = jobs_actions.ShardJobSet.act_on
    monkeypatch.setattr(jobs_actions.ShardJobSet, "act_on", lambda *given: (redis.delete(keys.DEAD), act_on(*given))[1])
    assert "d1 (dead): not there any more: another program moved it meanwhile" in jobs("retry", "d1", status=1)
    assert redis.llen("queue:default") == 0


def test_bulk_action_shows_the_number_and_asks(jobs, redis, monkeypatch):
    for number in range(3):
        add(redis, keys.DEAD, f"d{number}")
    refused = jobs("retry", "--class", "MailJob", status=2)
    assert (
        "Retry 3 jobs in dead with class=MailJob? Nothing was changed: the input is no terminal. Give --yes" in refused
    )
    monkeypatch.setattr(options, "is_terminal", lambda: True)
    assert "Retry 3 jobs in dead with class=MailJob? [y/N]: " in jobs(
        "retry", "--class", "MailJob", status=1, answer="n\n"
    )
    assert redis.zcard(keys.DEAD) == 3
    assert rows(jobs("retry", "--class", "MailJob", "--dry-run")) == [["main", "3", "0", "0", "0", "yes"]]
    assert rows(jobs("retry", "--class", "MailJob", answer="y\n").split("\n", 1)[1])[-1] == [
        "main",
        "3",
        "3",
        "0",
        "0",
        "yes",
    ]
    assert "no job in dead has the class 'MailJob'" in jobs("retry", "--class", "MailJob", "--yes", status=1)
    assert rows(jobs("delete", "--in", "retry", "--all")) == [["main", "0", "0", "0", "0", "yes"]]


def test_bulk_action_that_is_not_complete_ends_with_status_1(jobs, redis):
    add(redis, keys.SCHEDULE, "s1", aw_transfer="token")
    shown = jobs("delete", "--in", "scheduled", "--all", "--yes", status=1)
    assert "main: 1 left: it is on its way to another shard" in shown
    add(redis, keys.DEAD, "d1")
    done = jobs("requeue", "--in", "dead", "--older-than", "1d", "--yes", "--json")
    assert done["results"] == [
        {"shard": "main", "matched": 0, "done": 0, "gone": 0, "refused": {}, "in_doubt": 0, "trimmed": 0}
        | {"scanned": 1, "completed": True}
    ]
    assert done["resume"] == ""


def test_bulk_action_goes_on_from_the_printed_resume(jobs, redis, monkeypatch):
    monkeypatch.setattr(search, "SET_STEP", (10, 10))
    for number in range(600):
        add(redis, keys.DEAD, f"d{number}", score=NOW - 7_200 * (number % 2))
    clock = itertools.count()
    monkeypatch.setattr(jobs_actions, "time", SimpleNamespace(monotonic=lambda: 0.0))
    monkeypatch.setattr(shard_job_set, "time", SimpleNamespace(monotonic=lambda: next(clock) * 3.0))
    first = jobs("delete", "--in", "dead", "--older-than", "1h", "--yes", "--json", status=1)
    assert 0 < first["results"][0]["done"] < 300
    monkeypatch.setattr(shard_job_set, "time", SimpleNamespace(monotonic=lambda: 0.0))
    second = jobs("delete", "--in", "dead", "--older-than", "1h", "--yes", "--resume", first["resume"], "--json")
    assert (second["results"][0]["completed"], redis.zcard(keys.DEAD)) == (True, 300)
    assert second["results"][0]["scanned"] < 600 - 1.5 * first["results"][0]["done"], (
        "jobs before the cursor are left out"
    )
    assert "give the text that the earlier call printed" in jobs("retry", "--all", "--resume", "nowhere:1", status=2)
    assert "--resume goes with options" in jobs("retry", "d1", "--resume", "main:1", status=2)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["retry"], "Give the ids of jobs, or options that select them, or --all"),
        (["retry", "d1", "--all"], "Give the ids of jobs, or options that select them, or --all"),
        (["delete", "--all"], "Add --in with the set of the jobs: scheduled, retry, dead, interrupted."),
        (["kill", "--all", "--in", "dead"], "'dead' is not one of 'retry', 'scheduled', 'interrupted'"),
        (["show", " "], "JID is empty"),
    ],
)
def test_wrong_use_is_told_the_right_one(jobs, words, text):
    assert text in jobs(*words, status=2)


def test_commands_name_the_shard_that_does_not_answer(jobs, redis, tmp_path):
    (tmp_path / "redis.yml").write_text("shards: {main: {url: embedded}, second: {url: 'redis://127.0.0.1:1'}}")
    add(redis, keys.DEAD, "d1")
    assert "'second' is unavailable" in jobs("list", "dead", status=1)
    assert "'second' is unavailable" in jobs("retry", "--all", "--yes", status=1)
    assert redis.llen("queue:default") == 1
