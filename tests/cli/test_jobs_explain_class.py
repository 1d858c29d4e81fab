"""Test jobs explain WORKER: the places of its jobs, the processes that serve them, its rates and blockers, and a change."""

import json
import re
import time

import pytest

from framework.features.flags.flag import Flag, pause_flag
from framework.features.flags.redis_flags import set_flag
from framework.wire import keys
from tests.admin.test_process_list import RUBY, write_record
from tests.cli.test_jobs import OWNER, take_slot
from tests.harness import ROOT, encoded, enqueue

COMMAND = str(ROOT / "scripts" / "jobs")


@pytest.fixture
def explain(site):
    """Return a function that runs the command and returns its report, parsed with ``--json``."""

    def run(*words, status=0):
        done = site.run(COMMAND, "explain", *words, "-r", "jobs")
        assert done.returncode == status, done.stdout + done.stderr
        return json.loads(done.stdout) if "--json" in words else done.stdout + done.stderr

    return run


def test_class_with_priorities_shows_its_levels(explain, redis):
    """Levels that are no level of ours are not counted."""
    places = {"low^": "low", "critical^": "critical", "low^seller": "low"}
    for sub_queue, level in places.items():
        fields = {"queue": "default", "priority": level, "aw_sub_queue": f"default~{sub_queue}"}
        redis.sadd(keys.QUEUES, f"default~{sub_queue}")
        redis.lpush(f"queue:default~{sub_queue}", encoded("NoopWorker", jid=sub_queue, **fields))
    redis.sadd(keys.QUEUES, "fair~seller")
    redis.lpush("queue:fair~seller", encoded("NoopWorker", jid="fair", queue="fair", priority=["low"]))
    push(redis, 2)
    push(redis, 1, priority="urgent")
    assert "  priority  critical 1, low 2" in explain("NoopWorker").splitlines()
    (shard,) = explain("NoopWorker", "--json")["shards"]
    assert shard["priorities"] == {"critical": 1, "low": 2}


def codes(shard):
    return [(reason["queue"], reason["code"]) for reason in shard["reasons"]]


def push(redis, count, **fields):
    for number in range(count):
        enqueue(redis, "NoopWorker", jid=f"n{number}", enqueued_at=time.time() - 100, **fields)


def test_class_without_a_process_says_so(explain, redis):
    push(redis, 3)
    shown = explain("NoopWorker").splitlines()
    assert shown[0] == "NoopWorker on main: queue default (no rule matches)"
    assert shown[1] == "  jobs      queue default 3"
    assert shown[2].startswith("  oldest    waits for 1 min 4")
    assert shown[3] == "  served    by no process"
    assert re.fullmatch(r"  runs      0\.0 a minute in [56] min.* \(0, 0 failed\)", shown[4])
    assert "  why       no process of main is running" in shown
    assert any(line.startswith("  empty     never at these rates") for line in shown)


def test_class_is_explained_by_queue_with_its_rates(explain, redis):
    push(redis, 4)
    push(redis, 1, queue="aside", aw_result=[60, ""], aw_profile=True)
    redis.hset(keys.profile("n0"), mapping={"class": "NoopWorker", "at": 5})
    redis.zadd(keys.PROFILES, {"n0": 5})
    write_record(redis, queues=["default"])
    set_flag(redis, Flag(pause_flag("NoopWorker"), 100, "reindexing", "ann"), 600)
    now = time.time()
    for at in (now, now - 60):
        redis.hset(keys.metrics(8, time.gmtime(at))[0][0], mapping={"NoopWorker|p": 60, "NoopWorker|ms": 120_000})
    (shard,) = explain("NoopWorker", "--json")["shards"]
    assert (shard["queue"], shard["routed"], shard["waiting"]) == ("default", True, 5)
    assert shard["places"] == {"queue default": 4, "queue aside": 1}
    assert (shard["called"], shard["profiled"], shard["profiles"]) == (1, 1, 1)
    assert [(one["identity"], one["busy"]) for one in shard["processes"]] == [(RUBY, 2)]
    assert (shard["runs"], shard["mean_s"], shard["slots"]) == (120, 2.0, 5)
    assert shard["capacity_per_minute"] == 150
    assert shard["soonest_s"] == 2
    # Of the minute before and the part of this one.
    assert 60 <= shard["ending_per_minute"] <= 120
    assert codes(shard) == [("default", "paused"), ("aside", "queue_unserved"), ("aside", "paused")]


def test_assumptions_show_the_answer_after_the_change(explain, site, redis):
    push(redis, 2)
    write_record(redis, queues=["default"])
    redis.hset(keys.metrics(7, time.gmtime())[0][0], mapping={"NoopWorker|p": 6, "NoopWorker|ms": 60_000})
    (now,) = explain("NoopWorker", "--json")["shards"]
    assert (now["limit"], now["slots"], codes(now)) == (None, 5, [])
    (then,) = explain("NoopWorker", "--json", "--assume", "limit=1")["shards"]
    assert (then["limit"], then["slots"], then["soonest_s"]) == (1, 1, 20)
    (then,) = explain("NoopWorker", "--json", "--assume", "limit=-1")["shards"]
    assert codes(then) == [("default", "limit_paused")]
    (then,) = explain("NoopWorker", "--json", "--assume", "flag:run_jobs_NoopWorker=50")["shards"]
    assert codes(then) == [("default", "deferring")]
    assert "jobs of NoopWorker are dropped (100 %): assumed" in explain(
        "NoopWorker", "--assume", "flag:drop_jobs_NoopWorker=100"
    )
    assert not redis.exists(keys.FLAGS, keys.LIMITS), "nothing is changed"


def test_class_that_is_not_loaded_is_explained_by_redis(explain, redis):
    """Two jobs run, six are held and none is in a queue: the jobs name their queue, and Redis has the limit and its slots."""
    redis.zadd(keys.REGISTRY, {OWNER: time.time()})
    for number in range(8):
        take_slot(redis, f"j{number}", 2, base="FarJob", queue="mail")
    write_record(redis, queues=["mail"])
    shown = explain("FarJob").splitlines()
    assert shown[:3] == [
        "FarJob on main: queue mail",
        "  class     not loaded here, so its route and former names are not known: name its module with -r",
        "  jobs      in flight 2, held by its limit or pause 6",
    ]
    assert f"  served    by {RUBY} (2/5 busy); its limit: 2/2" in shown
    assert any(line.startswith("  why       the limit FarJob is reached (2/2;") for line in shown)
    (shard,) = explain("FarJob", "--json")["shards"]
    assert (shard["queue"], shard["slots"], codes(shard)) == ("mail", 2, [("mail", "limit_reached")])


def test_class_whose_queue_is_not_known_says_so(explain, redis):
    redis.hset(keys.metrics(8, time.gmtime())[0][0], "FarJob|p", 3)
    shown = explain("FarJob").splitlines()
    assert "  served    not known: no job of it names its queue" in shown
    assert shown[-1].startswith("  why       no job names its queue")
    (shard,) = explain("FarJob", "--json")["shards"]
    assert [shard[name] for name in ("queue", "processes", "slots", "soonest_s")] == [None] * 4


def test_class_whose_jobs_fail_names_the_failures(explain, redis):
    """Three hundred of three hundred runs failed in the seconds since its process began: the rate is that of these seconds."""
    write_record(redis, queues=["default"], started_at=time.time() - 20)
    redis.hset(keys.metrics(8, time.gmtime())[0][0], mapping={"NoopWorker|p": 300, "NoopWorker|f": 300})
    failed = {"error_class": "KeyError", "error_message": "'x'", "queue": "default"}
    redis.zadd(keys.RETRY, {encoded("NoopWorker", jid=f"r{number}", **failed): time.time() + 60 for number in range(3)})
    redis.zadd(keys.DEAD, {encoded("NoopWorker", jid="d", **{**failed, "error_class": "ValueError"}): time.time()})
    shown = explain("NoopWorker").splitlines()
    whys = [line.removeprefix("  why       ") for line in shown if line.startswith("  why")]
    assert re.fullmatch(r"300 of the 300 runs in .* failed", whys[0])
    assert whys[1:] == [
        "its failed jobs that wait for their next run: 3 (KeyError 3)",
        "its dead jobs: 1 (ValueError 1)",
    ]
    assert "  released  by their times; at once: scripts/jobs requeue --in retry --class NoopWorker" in shown
    (shard,) = explain("NoopWorker", "--json")["shards"]
    assert codes(shard) == [(None, "failing"), (None, "failed"), (None, "dead")]


def test_remedies_have_the_modules_and_the_config_folder(site, redis):
    """The line that is printed is pasted: it needs what this command was given."""
    (site.folder / "config").rename(site.folder / "other")
    push(redis, 1)
    set_flag(redis, Flag(pause_flag("NoopWorker"), 100, "reindexing", "ann"), 600)
    done = site.run(COMMAND, "explain", "NoopWorker", "-r", "jobs", FRAMEWORK_CONFIG_DIR=str(site.folder / "other"))
    folder = f"FRAMEWORK_CONFIG_DIR={site.folder}/other scripts/"
    assert f"{folder}worker -r jobs --shard main -q default\n" in done.stdout
    assert f"by {folder}jobs resume NoopWorker -r jobs; by itself in " in done.stdout


FLAGGED = """
from framework import ApplicationWorker, flags


class FlaggedWorker(ApplicationWorker):
    feature_category = "not_owned"
    queue = "default"
    concurrency_limit = lambda: 100 if flags.enabled("wide") else 10  # noqa: E731

    def perform(self) -> None:
        pass
"""


@pytest.mark.parametrize(
    ("percentage", "limit", "line"),
    [(0, 10, None), (100, 100, None), (50, 10, "  limit     10 or 100 by evaluation; 10 counts")],
)
def test_assumed_flag_of_the_application_gives_the_limit(site, redis, percentage, limit, line):
    (site.folder / "flagged.py").write_text(FLAGGED)
    enqueue(redis, "FlaggedWorker")
    words = ("explain", "FlaggedWorker", "-r", "flagged", "--assume", f"flag:wide={percentage}")
    (shard,) = json.loads(site.run(COMMAND, *words, "--json").stdout)["shards"]
    assert shard["limit"] == limit
    if line is not None:
        assert line in site.run(COMMAND, *words).stdout.splitlines()


def test_assumed_rule_shows_the_new_shard(explain, site, redis):
    site.write("redis.yml", {"shards": {"main": {"url": site.url}, "second": {"url": "redis://127.0.0.1:1"}}})
    push(redis, 1)
    rule = "rule=worker_name=NoopWorker,slow,second"
    shown = explain("NoopWorker", "--assume", rule, status=1)
    assert "NoopWorker on main: new jobs go to default on second; these stay here" in shown
    assert "shard 'second' is unavailable" in shown


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("NoopWroker",), 1, "there is no worker 'NoopWroker' (did you mean 'NoopWorker'?)"),
        (("abc", "--assume", "limit=1"), 2, "--assume goes with the name of a class"),
        (("NoopWorker", "--assume", "limits=1"), 2, "'limits=1' is no assumption: write limit=20"),
        (("NoopWorker", "--assume", "limit=x"), 2, "'x' is no whole number"),
        (("NoopWorker", "--assume", "flag:x=1"), 2, "the concurrency_limit of NoopWorker is no function"),
        (("GoneWorker", "--assume", "flag:x=1"), 2, "the class GoneWorker is not loaded here"),
        (("NoopWorker", "--assume", "flag:drop_jobs_Nop=1"), 2, "no flag 'drop_jobs_Nop' of NoopWorker (did you mean"),
        (("NoopWorker", "--assume", "flag:a b=1"), 2, "--assume 'flag:a b=1'"),
        (("NoopWorker", "--assume", "flag:drop_jobs_NoopWorker=101"), 2, "give a percentage from 0 to 100"),
        (("NoopWorker", "--assume", "rule=*"), 2, "write rule='QUERY,QUEUE,SHARD'"),
        (("NoopWorker", "--assume", "rule=nme=1,a,"), 2, "--assume rule: unknown attribute 'nme'"),
        (("GoneWorker", "--assume", "rule=*,,"), 2, "the class GoneWorker is not loaded here"),
    ],
)
def test_wrong_use_of_explain_is_told_the_right_one(explain, redis, words, status, message):
    assert message in explain(*words, status=status)
