"""Check entries that were added at run time: what is refused, which process uses them, and their ends."""

import json

import pytest

from framework.all_settings import load
from framework.errors import ConfigurationError
from framework.features.cron import keys
from framework.features.cron.entries import AddedEntries, AddedEntry, check_new_entry, decode_added
from framework.features.cron.settings import CronEntrySettings
from framework.store.absent_keys import AbsentKeys
from tests.features.cron.conftest import Cron, entry, worker
from tests.harness import until
from tests.tables import each_row

KEY = keys.cron_entries("default")
SECONDLY = {"cron": "* * * * * *", "class": "TickWorker"}


@pytest.fixture
def settings(tmp_path):
    folder = tmp_path / "config"
    folder.mkdir()
    (folder / "redis.yml").write_text('{"shards": {"main": {"url": "embedded"}}}')
    (folder / "schedule.yml").write_text(json.dumps({"schedule": {"nightly": SECONDLY}}))
    return load({}, tmp_path)


def added_entries(settings, absent=None, shard="main"):
    return AddedEntries(settings, "main", lambda _declaration: shard, absent)


def add(cron, name, **facts):
    stored = AddedEntry(CronEntrySettings.model_validate(SECONDLY | facts), "audit", "ada@host", 5.5).encode()
    assert cron.states.add(name, stored)


@each_row(
    ("name", "facts", "message"),
    [
        *((name, {}, "must be a name of letters, digits and _ . : -, at most 100 of them") for name in ("a b", "-r")),
        ("extra", {"cron": "61 * * * *"}, "cron: must be a cron expression"),
        ("extra", {"missed": "onec"}, "missed: must be one of skip, once, all, not 'onec' (did you mean 'once'?)"),
        ("extra", {"spread": "x"}, "spread: must be a whole number from 0 to 86,400, not 'x'"),
        ("extra", {"time_zone": "Berlin"}, "time_zone: must be the name of a time zone"),
        (
            "extra",
            {"class": "TikWorker"},
            "class: no loaded module has a worker of the wire name 'TikWorker' (did you mean",
        ),
        ("extra", {"args": [1, 2]}, "args: TickWorker: "),
        ("extra", {"clas": "A"}, "clas: unknown key (did you mean 'class'?)"),
        ("nightly", {}, "config/schedule.yml has an entry of this name. Take another name"),
        ("HourlyWorker", {}, "the attribute cron of a class has an entry of this name"),
    ],
)
def test_new_entry_that_is_wrong_is_refused(settings, name, facts, message):
    worker()
    type("HourlyWorker", (worker(cron="@hourly"),), {"wire_name": "HourlyWorker"})
    with pytest.raises(ConfigurationError) as caught:
        check_new_entry(settings, name, SECONDLY | facts)
    assert message in str(caught.value)


def test_added_entry_pushes_until_it_is_removed(cron, settings, redis, redis_url):
    worker()
    absent = AbsentKeys([KEY], 60.0)
    scheduler = cron.scheduler(added=added_entries(settings, absent))
    scheduler.step()
    # A process without entries reads the key once; from then on one question for all such keys stands for it.
    absent.check(redis)
    assert not absent.may_exist(KEY)
    scheduler.step()
    assert not redis.exists(keys.leader("default"))
    add(cron, "extra")
    assert not cron.states.add("extra", b"another")
    assert absent.check(redis)
    until(lambda: scheduler.step() is not None and len(cron.pushed()) >= 2, "jobs of the added entry")
    # It survives the process: another one goes on at its state.
    scheduler.release()
    other = Cron(redis_url, redis, "host:2:b")
    successor = other.scheduler(entry("@yearly", name="else"), added=added_entries(settings))
    until(lambda: successor.step() is not None and other.events.of("pushed"), "jobs by the successor")
    ticks = [job["cron"]["tick"] for job in cron.pushed()]
    assert ticks == list(range(ticks[0], ticks[0] + len(ticks)))
    # Removed: a leader that still knows it pushes nothing.
    count = len(cron.pushed())
    assert cron.states.remove("extra")
    successor.step()
    assert len(cron.pushed()) == count
    assert not cron.states.remove("else")
    successor._snapshot = None
    successor.step()
    assert set(successor._entries) == {"else"}
    assert set(cron.states.read().raw) == {"else"}
    # Without any entry the process leads no longer.
    scheduler.step()
    assert (scheduler.leadership.leads, scheduler._led) == (False, False)
    other.shard.close()


def test_added_entry_that_cannot_be_used_stops_no_other(cron, settings):
    worker()
    for name, facts in (("good", {}), ("nightly", {}), ("gone", {"class": "GoneWorker"})):
        add(cron, name, **facts)
    cron.redis.hset(KEY, mapping={"bad": b"\xff{", "list": "[]", "worse": '{"cron": "x", "class": "TickWorker"}'})
    scheduler = cron.scheduler(entry("0 0 1 1 *", name="nightly"), added=added_entries(settings))
    until(lambda: scheduler.step() is not None and cron.events.of("pushed"), "the job of the good one")
    assert {one[0] for one in cron.events.of("pushed")} == {"good"}
    reported = dict(cron.events.of("unusable"))
    assert set(reported) == {"nightly", "gone", "bad", "list", "worse"}
    assert "schedule.yml has an entry of this name, which counts" in reported["nightly"]
    assert reported["gone"] == "the class GoneWorker is not loaded"
    assert reported["bad"] == "it cannot be read"
    # Reported once, until the entries change.
    scheduler._snapshot = None
    scheduler.step()
    assert len(cron.events.of("unusable")) == 5
    found = added_entries(settings, shard="second").usable_entry("good", cron.states.read_added()["good"])
    assert found == "jobs of TickWorker are routed to the shard second now: remove it, and add it again"
    assert decode_added(cron.states.read_added()["good"]).added_by == "ada@host"
