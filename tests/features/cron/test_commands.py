"""Test scripts/cron: it shows the schedule, pushes a job of an entry, and changes entries, on the shard of their jobs."""

import base64
import json
import re

import pytest

from framework.features.cron import keys as cron_keys
from framework.features.cron.entries import spread_offset_s
from framework.features.cron.settings import CronSection
from framework.features.cron.store import CronStates
from framework.wire import keys
from tests.harness import ROOT

COMMAND = str(ROOT / "scripts" / "cron")
WORKERS = """
from framework import ApplicationWorker, CronWorker


class TickWorker(CronWorker):
    feature_category = "not_owned"
    cron = "0 * * * *"

    def perform(self) -> None: ...


class ReportWorker(ApplicationWorker):
    feature_category = "not_owned"
    shard = "second"
    idempotent = True

    def perform(self, days: int) -> None: ...
"""
REPORT = {
    "cron": "30 6 * * *",
    "class": "ReportWorker",
    "args": [30],
    "time_zone": "Europe/Berlin",
    "overlap": "skip",
    "spread": 600,
}
OFFSET_S = spread_offset_s("report", 600, CronSection())


@pytest.fixture
def site(two_shards):
    (two_shards.folder / "shop.py").write_text(WORKERS)
    two_shards.write("schedule.yml", {"schedule": {"report": REPORT}})
    return two_shards


def test_cron_lists_entries_of_each_shard_with_their_ticks(run, redis, second_redis):
    redis.hset(cron_keys.cron_states("default"), "old", "1700000000 print jid")
    listed = json.loads(run("list", "-r", "shop", "--json"))["entries"]
    assert [(one["name"], one["shard"], one["origin"]) for one in listed] == [
        ("TickWorker", "main", "class"),
        ("old", "main", None),
        ("report", "second", "file"),
    ]
    report = listed[2]
    assert (report["cron"], report["time_zone"], report["args"], report["overlap"]) == (
        *("30 6 * * *", "Europe/Berlin", [30]),
        "skip",
    )
    assert report["next_tick"] + OFFSET_S > second_redis.time()[0]
    assert (report["offset_s"], listed[0]["offset_s"]) == (OFFSET_S, 0)
    table = run("list", "-r", "shop")
    assert re.search(
        r"report +ReportWorker +30 6 \* \* \* +Europe/Berlin +462 s +\d{4}-\d\d-\d\d 06:30:00 \+0[12]00 +- +schedule\.yml +enabled",
        table,
    )
    assert "not in the configuration: `cron forget old`" in table
    assert run("forget", "old") == "main: old is forgotten\nsecond: old was not known\n"
    run("forget", "old", status=1)


def test_cron_next_shows_ticks_in_the_zone_and_in_utc(run):
    lines = run("next", "report", "-r", "shop", "--count", "3").splitlines()
    assert lines[0] == "30 6 * * * (At 06:30 every day), Europe/Berlin"
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d 06:30:00 \+0[12]00  0[45]:30:00Z", line) for line in lines[1:4])
    assert lines[4] == f"Each tick pushes its job {OFFSET_S} s after its time."
    assert len(json.loads(run("next", "TickWorker", "-r", "shop", "--json"))["ticks"]) == 5


def test_cron_run_pushes_a_job_and_keeps_the_ticks(run, second_redis):
    state = "1700000000 print last"
    second_redis.hset(cron_keys.cron_states("default"), "report", state)
    pushed = run("run", "report", "-r", "shop")
    (job,) = map(json.loads, second_redis.lrange("queue:report", 0, -1))
    assert pushed == f"second: report has pushed job {job['jid']}\n"
    assert (job["args"], job["cron"], job["meta.caller_id"]) == (
        [30],
        {"name": "report", "tick": None, "alone": True},
        "Cronjob",
    )
    # The status of the job of an entry that skips overlaps.
    assert second_redis.get(keys.status(job["jid"])) == b"queued"
    assert second_redis.hget(cron_keys.cron_states("default"), "report") == f"1700000000 print {job['jid']}".encode()
    assert "has pushed no job: job " in run("run", "report", "-r", "shop", status=1)
    assert second_redis.llen("queue:report") == 1
    ticks = json.loads(run("history", "report", "-r", "shop", "--json"))["ticks"]
    assert [(one["tick"], one["outcome"], one["jid"]) for one in ticks] == [
        (None, "duplicate", job["jid"]),
        (None, "manual", job["jid"]),
    ]
    assert "between ticks  duplicate" in run("history", "report", "-r", "shop")


def test_cron_orders_change_an_entry_until_the_reset(run, second_redis):
    states = CronStates(second_redis, "default")
    assert run("disable", "report", "--reason", "quiet", "-r", "shop") == (
        "second: report is disabled\nThe leader knows within 5 s.\n"
    )
    assert re.search(r"disabled by \S+@\S+: quiet", run("list", "-r", "shop"))
    assert "these ticks push no jobs" in run("next", "report", "-r", "shop")
    run("set", "report", "--cron", "@hourly", "--args", "[7]", "--reason", "audit", "-r", "shop")
    order = states.read().orders["report"]
    assert (order.enabled, order.cron, order.args, order.reason) == (False, "@hourly", [7], "audit")
    run("enable", "report", "-r", "shop")
    assert states.read().orders["report"].enabled is None
    assert "enabled, changed by" in run("list", "-r", "shop")
    run("reset", "report", "--reason", "audit is over", "-r", "shop")
    order = states.read().orders["report"]
    assert (order.enabled, order.cron, order.args) == (None, None, None)
    assert re.search(r" enabled by \S+@\S+: audit is over", run("list", "-r", "shop"))
    run("reset", "report", "-r", "shop")
    assert not second_redis.exists(cron_keys.cron_orders("default"))


def test_cron_leader_shows_the_process_of_each_shard(run, redis):
    redis.set(cron_keys.leader("default"), "host:1:a")
    assert run("leader") == "SHARD   LEADER\nmain    host:1:a\nsecond  none\n"
    assert json.loads(run("leader", "--json"))["leaders"] == {"main": "host:1:a", "second": None}
    assert json.loads(run("leader", "--shard", "main", "--json"))["leaders"] == {"main": "host:1:a"}


def test_cron_enable_overrides_the_file(run, site, second_redis):
    site.write("schedule.yml", {"schedule": {"report": {**REPORT, "enabled": False}}})
    run("enable", "report", "-r", "shop")
    assert CronStates(second_redis, "default").read().orders["report"].enabled is True


def test_cron_add_lasts_until_remove(run, redis, second_redis):
    facts = ["--cron", "15 * * * *", "--class", "ReportWorker", "--reason", "audit", "-r", "shop"]
    options = [
        "--args",
        "[7]",
        "--time-zone",
        "Europe/Berlin",
        "--missed",
        "all",
        "--overlap",
        "queue",
        "--spread",
        "60",
    ]
    assert run("add", "extra", *facts, *options) == "second: extra is added\nThe leader knows within 5 s.\n"
    (stored,) = CronStates(second_redis, "default").read_added().values()
    (listed,) = (one for one in json.loads(run("list", "-r", "shop", "--json"))["entries"] if one["name"] == "extra")
    assert json.loads(stored)["spread"] == 60
    assert (listed["origin"], listed["shard"], listed["args"], listed["time_zone"]) == (
        *("added", "second", [7]),
        "Europe/Berlin",
    )
    assert (listed["missed"], listed["overlap"], listed["added_reason"]) == ("all", "queue", "audit")
    assert listed["offset_s"] == spread_offset_s("extra", 60, CronSection())
    # The other commands know it.
    assert run("next", "extra", "-r", "shop").startswith("15 * * * * ")
    assert "extra has pushed job" in run("run", "extra", "-r", "shop")
    run("set", "extra", "--cron", "@daily", "--args", "[8]", "--reason", "quiet", "-r", "shop")
    assert re.search(
        r"extra .*@daily .* added +enabled, changed by \S+: quiet; added by \S+: audit", run("list", "-r", "shop")
    )
    run("reset", "extra", "-r", "shop")
    assert "15 * * * *" in run("list", "-r", "shop")
    # A refused entry changes nothing.
    assert "was added before" in run("add", "extra", *facts, "--args", "[7]", status=1)
    assert "the cron entry 'extra2': args: ReportWorker: argument 'days'" in run("add", "extra2", *facts, status=78)
    assert "no entry report was added at run time" in run("remove", "report", status=1)
    assert CronStates(second_redis, "default").read_added() == {"extra": stored}
    # A class that is gone: the entry is shown, and says why it pushes nothing.
    gone = json.loads(stored) | {"class": "GoneWorker"}
    second_redis.hset(cron_keys.cron_entries("default"), "extra", json.dumps(gone))
    assert "added, and not used: the class GoneWorker is not loaded" in run("list", "-r", "shop")
    assert "the class GoneWorker is not loaded" in run("next", "extra", "-r", "shop", status=1)
    assert run("remove", "extra") == "second: extra is removed\n"
    assert not second_redis.keys("aw:cron*")
    run("remove", "extra", status=1)


def test_cron_wrong_usage_changes_nothing(run, second_redis):
    assert "no entry is named 'repot' (did you mean 'report'?)" in run("run", "repot", "-r", "shop", status=1)
    assert "--cron or --args is missing" in run("set", "report", "--reason", "x", "-r", "shop", status=2)
    assert "the field minute" in run("set", "report", "--cron", "61 * * * *", "--reason", "x", "-r", "shop", status=2)
    assert "--args is no list" in run("set", "report", "--args", "{}", "--reason", "x", "-r", "shop", status=2)
    assert "--args is not JSON" in run("set", "report", "--args", "[", "--reason", "x", "-r", "shop", status=2)
    assert "argument 'days'" in run("set", "report", "--args", '["x"]', "--reason", "x", "-r", "shop", status=78)
    assert "--reason is empty" in run("disable", "report", "--reason", " ", "-r", "shop", status=2)
    assert not second_redis.exists(cron_keys.cron_orders("default"))


def test_cron_refuses_a_schedule_that_would_not_boot(run, site):
    site.write("application.yml", {"workers_module": ["shop"]})
    site.write("schedule.yml", {"schedule": {"report": {**REPORT, "class": "ReprotWorker"}}})
    message = run("list", status=78)
    assert "schedule.report.class: no worker has the wire name 'ReprotWorker' (did you mean 'ReportWorker'?)" in message
    # Another module may have the class.
    site.write("application.yml", {"workers_module": ["shop", "other"]})
    assert json.loads(run("list", "-r", "shop", "--json"))["entries"]


def test_cron_list_shows_what_would_be_refused(run, second_redis, monkeypatch):
    facts = ["--cron", "15 * * * *", "--class", "ReportWorker", "--args", "[7]", "--reason", "audit", "-r", "shop"]
    run("add", "extra", *facts)
    run("set", "report", "--args", "[7]", "--reason", "audit", "-r", "shop")
    monkeypatch.setenv("FRAMEWORK_SIGNATURES__KEYS__1", base64.b64encode(b"k" * 32).decode())
    monkeypatch.setenv("FRAMEWORK_SIGNATURES__REQUIRED", "true")
    listed = run("list", "-r", "shop")
    assert "added, and not used: it has no signature, and the setting signatures.required asks for one" in listed
    assert "its order is not used: `cron reset report`" in listed
    # Written again, both are signed.
    run("remove", "extra")
    run("add", "extra", *facts)
    run("set", "report", "--args", "[7]", "--reason", "audit", "-r", "shop")
    assert "not used" not in run("list", "-r", "shop")


def test_cron_set_refuses_secret_arguments(run, site, second_redis, monkeypatch):
    (site.folder / "shop.py").write_text(WORKERS.replace("    idempotent = True", "    encrypt = True"))
    monkeypatch.setenv("FRAMEWORK_ENCRYPTION__KEYS__1", base64.b64encode(b"k" * 32).decode())
    refused = run("set", "report", "--args", "[7]", "--reason", "audit", "-r", "shop", status=2)
    assert "ReportWorker declares encrypt, and an order is stored in plain text" in refused
    assert not second_redis.exists(cron_keys.cron_orders("default"))
    (report,) = (one for one in json.loads(run("list", "-r", "shop", "--json"))["entries"] if one["name"] == "report")
    assert report["args"] == ["[encrypted data]"]
