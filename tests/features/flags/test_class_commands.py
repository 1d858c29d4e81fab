"""Test scripts/jobs drop, defer, flags, pause and resume: each has a reason and an end, on all shards or on one."""

import getpass
import json
import os

import pytest

from framework.admin.queue_actions import read_pause_log
from framework.features.flags.flag import drop_flag, pause_flag, run_flag
from framework.features.flags.redis_flags import read_flags
from framework.process.identity import operator_name
from framework.wire import keys
from tests.harness import ROOT, encoded

COMMAND = str(ROOT / "scripts" / "jobs")
WHY = ("--reason", "it floods us", "--for", "2h", "-r", "jobs")


@pytest.fixture
def site(two_shards):
    return two_shards


@pytest.fixture
def jobs(run):
    return run


def test_flags_set_on_every_shard_have_reason_and_end(jobs, redis, second_redis):
    output = jobs("drop", "NoopWorker", "--percent", "30", *WHY)
    assert output.splitlines() == [
        "main: 30 % of the jobs of NoopWorker are dropped, for 2 h (drop_jobs_NoopWorker)",
        "second: 30 % of the jobs of NoopWorker are dropped, for 2 h (drop_jobs_NoopWorker)",
        "Every process knows within 5 s.",
    ]
    for shard in (redis, second_redis):
        flag = read_flags(shard)[drop_flag("NoopWorker")]
        assert (flag.percentage, flag.reason) == (30, "it floods us")
        assert flag.set_by.startswith(f"{getpass.getuser()}@")
        assert flag.expires_at - flag.set_at == 7_200
    jobs("defer", "NoopWorker", "--percent", "90", "--shard", "second", *WHY)
    assert run_flag("NoopWorker") not in read_flags(redis)
    assert read_flags(second_redis)[run_flag("NoopWorker")].percentage == 10
    shown = json.loads(jobs("flags", "--json"))["flags"]
    assert [(one["shard"], one["name"], one["percentage"]) for one in shown] == [
        ("main", "drop_jobs_NoopWorker", 30.0),
        ("second", "drop_jobs_NoopWorker", 30.0),
        ("second", "run_jobs_NoopWorker", 10.0),
    ]
    assert "run_jobs_NoopWorker   10 %" in jobs("flags")
    slowly = jobs("flags", "clear", "NoopWorker", "--percent", "50", *WHY)
    assert slowly.splitlines()[0] == "main: drop_jobs_NoopWorker ended"
    assert read_flags(redis)[run_flag("NoopWorker")].percentage == 50
    assert jobs("flags", "clear", "NoopWorker").splitlines() == [
        "main: run_jobs_NoopWorker ended",
        "second: run_jobs_NoopWorker ended",
    ]
    assert "main: no flag of the class was set" in jobs("flags", "clear", "NoopWorker", "-r", "jobs")
    assert jobs("flags") == "No flag is set.\n"


def test_flags_unreadable_flag_is_shown_as_not_set(jobs, redis):
    redis.hset(keys.FLAGS, "run_jobs_NoopWorker", "garbage")
    assert "main run_jobs_NoopWorker - - - cannot be read and counts as not set" in " ".join(jobs("flags").split())
    assert json.loads(jobs("flags", "--json"))["flags"] == [
        {"shard": "main", "name": "run_jobs_NoopWorker", "unreadable": True}
    ]
    jobs("flags", "clear", "NoopWorker")
    assert jobs("flags") == "No flag is set.\n"


def test_flags_wrong_usage_sets_nothing(jobs, redis):
    assert "Missing option '--reason'" in jobs("drop", "NoopWorker", "--for", "1h", status=2)
    assert "Missing option '--for'" in jobs("pause", "NoopWorker", "--reason", "x", status=2)
    assert "--reason is empty" in jobs("defer", "NoopWorker", "--reason", " ", "--for", "1h", "-r", "jobs", status=2)
    assert "no worker 'NopWorker' (did you mean 'NoopWorker'?)" in jobs("drop", "NopWorker", *WHY, status=1)
    assert "belong together" in jobs("flags", "clear", "NoopWorker", "--percent", "5", status=2)
    assert "did you mean 'second'?" in jobs("drop", "NoopWorker", "--shard", "secnd", *WHY, status=2)
    assert redis.exists(keys.FLAGS) == 0


@pytest.mark.parametrize(
    "words",
    [
        "resume {}",
        "flags clear {}",
        "locks {}",
        'locks {} "text"',
        "locks delete {}",
        "deferred {}",
        "deferred run-now {}",
        "limits {}",
        "limits clear {}",
        "limits sweep {}",
        "limits set {} 3 --reason x --for 1h",
        "held drop --yes --class {}",
        "pause {} --reason x --for 1h",
        "drop {} --reason x --for 1h",
        "defer {} --reason x --for 1h",
    ],
)
def test_jobs_unknown_class_status_1(site, jobs, redis, words):
    """An unknown class without a flag gives status 1 and the nearest name on stderr, and sets no flag."""
    settings = {"workers_module": "jobs", "retired_workers": {"Removed::Long::AgoWorker": "gone in release 7"}}
    site.write("application.yml", settings)
    known = "(did you mean 'NoopWorker'?)"
    assert f"'NopWorker'{' ' + known}" in jobs(*words.format("NopWorker").split(), status=1)
    assert not redis.exists(keys.FLAGS)
    if words.startswith(("resume", "flags clear", "deferred")) or words in ("locks {}", "held drop --yes --class {}"):
        jobs(*words.format("Removed::Long::AgoWorker").split())
    if '"' not in words and not words.startswith("locks delete"):
        jobs(*words.format("NoopWorker").split())


def test_jobs_unknown_class_without_a_near_name_status_1(site, jobs, redis):
    site.write("application.yml", {"workers_module": "jobs"})
    assert "'Nonsense'" in jobs("resume", "Nonsense", status=1)
    assert not redis.exists(keys.FLAGS)


def test_jobs_unknown_class_with_import_error_status_1(site, jobs):
    """When the classes do not load, the message says that the class may exist."""
    site.write("application.yml", {"workers_module": "missing_module"})
    assert "it is not known whether NoopWorker is one" in jobs("resume", "NoopWorker", status=1)


@pytest.mark.parametrize("verb", ["pause", "drop", "defer"])
def test_flag_refused_by_one_shard_names_both_shards(site, jobs, redis, second_redis, verb):
    """One shard refuses the write, as its key has another type. The last sentence names the shards with and without it."""
    second_redis.set(keys.FLAGS, "no hash")
    done = site.run(COMMAND, verb, "NoopWorker", *WHY)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "Every process of main knows within 5 s."
    assert done.stderr.splitlines()[-1] == (
        "Carried out on main; not on second: run the command again with --shard second when Redis answers."
    )
    assert len(read_flags(redis)) == 1
    redis.delete(keys.FLAGS)
    redis.set(keys.FLAGS, "no hash")
    done = site.run(COMMAND, verb, "NoopWorker", *WHY)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1].startswith("Not carried out on main and second: ")


def test_resume_refused_by_one_shard_names_both_shards(site, redis, second_redis):
    second_redis.set(keys.FLAGS, "no hash")
    done = site.run(COMMAND, "resume", "NoopWorker", "-r", "jobs")
    assert done.returncode == 1
    assert done.stdout.startswith("main: no operator had paused NoopWorker")
    assert "Carried out on main; not on second" in done.stderr


def test_resume_former_name_names_the_class(site, jobs, redis):
    (site.folder / "renamed.py").write_text(
        "from framework import ApplicationWorker\n\n\nclass NewWorker(ApplicationWorker):\n"
        "    feature_category = 'not_owned'\n    aliases = ('OldWorker',)\n\n    def perform(self) -> None: ...\n"
    )
    site.write("application.yml", {"workers_module": "renamed"})
    jobs("pause", "OldWorker", "--reason", "x", "--for", "1h")
    assert "OldWorker is called NewWorker now" in jobs("resume", "OldWorker", status=1)
    jobs("resume", "NewWorker")
    assert pause_flag("NewWorker") not in read_flags(redis)


def test_operator_name_without_user_name_has_the_number(monkeypatch):
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 1_234_567_890)
    assert operator_name().startswith("1234567890@")


def test_resume_returns_held_jobs_in_order(jobs, redis):
    jobs("pause", "NoopWorker", *WHY)
    assert read_flags(redis)[pause_flag("NoopWorker")].percentage == 100
    for number in range(1_500):
        data = encoded("NoopWorker", args=[number])
        redis.zadd(keys.paused_jobs("NoopWorker"), {b'["default"]\n' + data: number})
    redis.sadd(keys.PAUSED_CLASSES, "NoopWorker")
    assert jobs("resume", "NoopWorker", "--reason", "rolled back").splitlines() == [
        "main: the pause has ended; 1,500 held jobs are back in their queues",
        "second: the pause has ended; 0 held jobs are back in their queues",
    ]
    waiting = redis.lrange("queue:default", 0, -1)
    assert [json.loads(job)["args"] for job in reversed(waiting)] == [[number] for number in range(1_500)]
    assert redis.exists(keys.FLAGS, keys.PAUSED_CLASSES, keys.paused_jobs("NoopWorker")) == 0
    history = [(one.action, one.name, one.by, one.reason) for one in read_pause_log(redis)]
    assert history == [
        ("resume", "NoopWorker", operator_name(), "rolled back"),
        ("pause", "NoopWorker", operator_name(), WHY[1]),
    ]
    assert "rolled back" in jobs("paused", "--history")


def test_resume_of_strategy_and_of_removed_class(jobs, redis):
    for worker in ("KeptWorker", "GoneWorker"):
        redis.zadd(keys.paused_jobs(worker), {b'["default"]\n' + encoded(worker): 1, b'["odd"]\n' + encoded(worker): 2})
        redis.sadd(keys.PAUSED_CLASSES, worker)
    redis.set("queue:odd", 1)
    redis.set(keys.pause_strategy("KeptWorker"), "zoekt", ex=60)
    kept = jobs("resume", "KeptWorker", "--shard", "main")
    assert "a strategy keeps it paused" in kept
    gone = jobs("resume", "GoneWorker", "--shard", "main")
    assert "no operator had paused GoneWorker" in gone
    assert "1 held job is back in its queue; 1 job stays held" in gone
    assert redis.llen("queue:default") == 1


def test_pause_with_unreachable_shard_sets_the_others(site, redis):
    site.write("redis.yml", {"shards": {"main": {"url": site.url}, "away": {"url": "redis://127.0.0.1:1"}}})
    done = site.run(COMMAND, "pause", "NoopWorker", *WHY)
    assert done.returncode == 1
    assert "shard 'away' is unavailable" in done.stderr
    assert pause_flag("NoopWorker") in read_flags(redis)
