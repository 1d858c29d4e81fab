"""Check the lines of `jobs explain` about a job's slots."""

import pytest

from framework.admin.explain_reader import ShardSnapshot
from framework.features.concurrency.explain import LimitReader
from framework.features.concurrency.limit_state import read_slot_expiries
from framework.wire import keys
from framework.wire.resources import slot_member

NOW = 1_700_000_000.0
JOB = {"class": "W", "jid": "j", "queue": "default"}


@pytest.fixture
def reader(granted):
    snapshot = ShardSnapshot(granted, "main")
    vars(snapshot)["now"] = NOW
    return LimitReader(snapshot)


def take_slot(redis, base, identity, left_s):
    redis.zadd(keys.limit(base) + ":running", {slot_member(identity, "j"): NOW + left_s})


def test_held_slots_tells_reserved_slots_of_class_and_queue(reader, redis):
    take_slot(redis, "W", "", 30)
    take_slot(redis, "queue/default", "", 60)
    assert reader.resources(JOB, "") == ["a slot of W for 30 s", "a slot of queue/default for 1 min"]


def test_held_slots_of_a_run_needs_its_process(reader, redis):
    take_slot(redis, "W", "host:1", 30)
    assert reader.resources(JOB, "") == []
    assert reader.resources(JOB, "host:1") == ["a slot of W for 30 s"]


def test_read_slot_expiries_takes_the_last_and_skips_other_types(granted, redis):
    take_slot(redis, "W", "", 30)
    take_slot(redis, "W", "host:1", 90)
    redis.set(keys.limit("Odd") + ":running", "text")
    members = [slot_member("", "j"), slot_member("host:1", "j")]
    assert read_slot_expiries(granted, ["Odd", "None", "W"], members) == [("W", NOW + 90)]
