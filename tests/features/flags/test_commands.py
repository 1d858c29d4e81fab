"""Test scripts/flags: it lists, sets and clears the feature flags of the application, on all shards or on one."""

import json

import pytest

from framework.features.flags.flag import Flag
from framework.features.flags.redis_flags import read_flags, set_flag
from framework.wire import keys
from tests.harness import ROOT

COMMAND = str(ROOT / "scripts" / "flags")


@pytest.fixture
def site(two_shards):
    return two_shards


def test_flags_set_list_and_clear_on_every_shard(run, redis, second_redis):
    assert run("list") == "No flag is set.\n"
    output = run("set", "new_invoices", "--percentage", "12.5", "--expires-in", "2h", "--reason", "the first eighth")
    assert output.splitlines() == [
        "main: new_invoices is on for 12.5 %, for 2 h",
        "second: new_invoices is on for 12.5 %, for 2 h",
        "Every process knows within 5 s.",
    ]
    for shard in (redis, second_redis):
        flag = read_flags(shard)["new_invoices"]
        assert (flag.percentage, flag.reason, flag.expires_at - flag.set_at) == (12.5, "the first eighth", 7_200)
    assert run("set", "other", "--shard", "second").startswith("second: other is on for 100 %\n")
    set_flag(redis, Flag("drop_jobs_NoopWorker", 100), None)
    redis.hset(keys.FLAGS, "broken", "{")
    listed = json.loads(run("list", "--json"))
    assert listed["unanswered"] == []
    assert [(one["shard"], one["name"], one.get("percentage")) for one in listed["flags"]] == [
        ("main", "broken", None),
        ("main", "new_invoices", 12.5),
        ("second", "new_invoices", 12.5),
        ("second", "other", 100.0),
    ]
    table = [" ".join(line.split()) for line in run("list", "--shard", "main").splitlines()]
    assert table[0] == "SHARD FLAG ON FOR SET BY ENDS IN REASON"
    assert table[1] == "main broken - - - cannot be read and counts as not set: set it again, or clear it"
    assert table[2].startswith("main new_invoices 12.5 % ")
    assert run("clear", "other").splitlines() == ["main: other was not set", "second: other is cleared"]
    assert json.loads(run("clear", "new_invoices", "--json")) == {"cleared": ["main", "second"], "unanswered": []}
    run("clear", "broken")
    assert run("list") == "No flag is set.\n"
    assert read_flags(redis).keys() == {"drop_jobs_NoopWorker"}


def test_flags_set_prints_json(run):
    written = json.loads(run("set", "a", "--json", "--shard", "main"))
    (flag,) = written["flags"]
    assert (flag["shard"], flag["name"], flag["percentage"], flag["expires_at"]) == ("main", "a", 100.0, None)


def test_flags_unknown_name_status_1_with_nearest(run):
    run("set", "new_invoices")
    assert "no flag is named 'new_invoice' (did you mean 'new_invoices'?)" in run("clear", "new_invoice", status=1)


def test_flags_wrong_usage_sets_nothing(run, redis):
    assert "is a flag of a class" in run("set", "drop_jobs_NoopWorker", status=2)
    assert "is a flag of a class" in run("clear", "pause_jobs_NoopWorker", status=2)
    assert "is not a name of a flag" in run("set", "a b", status=2)
    assert "101" in run("set", "a", "--percentage", "101", status=2)
    assert "is not a duration" in run("set", "a", "--expires-in", "soon", status=2)
    assert "did you mean 'second'?" in run("set", "a", "--shard", "secnd", status=2)
    assert not redis.exists(keys.FLAGS)


def test_flags_refused_by_one_shard_names_both(site, redis, second_redis):
    second_redis.set(keys.FLAGS, "no hash")
    done = site.run(COMMAND, "set", "a")
    assert (done.returncode, "Carried out on main; not on second" in done.stderr) == (1, True)
    done = site.run(COMMAND, "clear", "a")
    assert (done.returncode, done.stdout) == (1, "main: a is cleared\n")
    assert read_flags(redis) == {}
