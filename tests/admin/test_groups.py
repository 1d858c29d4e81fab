"""Test the groups of the jobs of a place: exact and sampled numbers, their bounds, and bounded memory."""

import json
import random
import time
from functools import partial

import pytest

from framework import admin
from framework.admin import groups
from framework.admin.groups import _Tally, general_message
from framework.wire import keys
from tests.admin.test_held_set import NOW, pause, wait
from tests.admin.test_process_list import RUBY, write_record
from tests.harness import encoded
from tests.tables import each_row

CLASSES = {"Mail": 60, "Report": 30, "Other": 10}


def fill(redis, key, count=100, **fields):
    """Add jobs of the classes in their shares, in no order."""
    names = [name for name, share in CLASSES.items() for _ in range(share * count // 100)]
    random.Random(4).shuffle(names)
    jobs = [encoded(name, jid=f"{key}{at}", queue=name.lower(), **fields) for at, name in enumerate(names)]
    if key.startswith("queue:"):
        redis.lpush(key, *jobs)
        redis.sadd(keys.QUEUES, key.removeprefix("queue:"))
    else:
        redis.zadd(key, {job: at for at, job in enumerate(jobs)})


def numbers(found):
    return [(one.name, one.jobs) for one in found.groups]


@each_row(
    "key, place", [(keys.DEAD, "dead"), (keys.RETRY, "retry"), ("queue:mail", "queue:mail"), ("queue:a~b", "queues")]
)
def test_groups_are_summed_over_all_shards(both_shards, redis, second_redis, key, place):
    fill(redis, key)
    fill(second_redis, key, 200)
    found = admin.top(place)
    assert numbers(found) == [("Mail", 180), ("Report", 90), ("Other", 30)]
    assert (found.total, found.examined, found.is_estimate, found.unseen_at_most) == (300, 300, False, 0)
    assert [(one.low, one.high) for one in found.groups] == [(180, 180), (90, 90), (30, 30)]
    assert (numbers(admin.top(place, limit=1)), admin.top(place, limit=1).further) == ([("Mail", 180)], 2)
    assert numbers(admin.top(place, "queue", not_cls="Mail")) == [("report", 90), ("other", 30)]


@each_row("by, named", [("tag", {"slow": 2, "(none)": 2, "a": 1}), ("context:user", {"ann": 2, "(none)": 1, "7": 1})])
def test_groups_by_tag_and_context(shard, redis, by, named):
    jobs = [{"tags": ["slow", "a", "a"], "meta.user": "ann"}, {"tags": ["slow"], "meta.user": "ann"}, {"meta.user": 7}]
    redis.zadd(keys.DEAD, {encoded("Mail", jid=f"j{at}", **fields): at for at, fields in enumerate(jobs)})
    redis.zadd(keys.DEAD, {b"no json": 9})
    assert dict(numbers(admin.dead().top(by))) == named


def test_groups_by_error_join_messages_that_differ_in_ids(shard, redis):
    for at in range(10):
        message = f"order {at}7 of user 5f0{at}ac99b1 is gone\ndetail {at}"
        redis.zadd(keys.DEAD, {encoded("Mail", jid=f"j{at}", error_class="KeyError", error_message=message): at})
    redis.zadd(keys.DEAD, {encoded("Mail", jid="other", error_class="OSError", error_message="full"): 1})
    found = admin.dead().where(cls="Mail").top("error")
    assert numbers(found) == [("KeyError: order N of user ID is gone", 10), ("OSError: full", 1)]
    assert found.groups[1].example == "other"


@each_row(
    "message, general",
    [
        ("timeout after 3.5 s at 10:00", "timeout after N s at N"),
        ("job 0195d1c2-1111-7abc-8def-001122334455 failed", "job ID failed"),
        ("0xdeadbeef and facade and decade00", "ID and facade and ID"),
        ("key user_session_9f8a7b6c5d4e3f2a1b", "key ID"),
        ("an_identifier_without_a_number", "an_identifier_without_a_number"),
        ("row 1,234 of t2", "row N of tN"),
    ],
)
def test_general_message_leaves_out_what_differs(message, general):
    assert general_message(message) == general


def test_held_and_running_jobs_are_grouped(shard, redis):
    pause(redis, "p1")
    wait(redis, "w1")
    wait(redis, "w2")
    assert numbers(admin.top("held")) == [("Report", 2), ("MailJob", 1)]
    # The ages count from ``NOW``, the start of the tests: on a loaded machine this test may come long after it.
    assert numbers(admin.top("held", older_than=300 + time.time() - NOW)) == [("Report", 2)]
    write_record(redis)
    for at, name in enumerate(("Mail", "Mail", "Report")):
        work = {"queue": "default", "run_at": 1, "payload": {"class": name, "jid": f"j{at}", "args": []}}
        redis.hset(keys.work(RUBY)[0], f"t{at}", json.dumps(work))
    assert numbers(admin.top("running")) == [("Mail", 2), ("Report", 1)]


@each_row("key, place", [(keys.DEAD, "dead"), ("queue:mail", "queue:mail")])
def test_large_place_is_sampled_within_its_bounds(both_shards, redis, second_redis, monkeypatch, key, place):
    monkeypatch.setattr(groups, "SAMPLED_ABOVE", 100)
    monkeypatch.setattr(groups, "_SAMPLE", 1_000)
    monkeypatch.setattr(groups, "_LIST_SAMPLE", 1_000)
    monkeypatch.setattr(groups, "_LIST_SAMPLE_S", 600)
    fill(redis, key, 2_000)
    fill(second_redis, key, 100)
    found = admin.top(place)
    assert (found.is_estimate, found.total, found.examined) == (True, 2_100, 1_100)
    assert 0 < found.unseen_at_most < 20
    for one in found.groups:
        # Redis draws: its bounds hold in 95 of 100 samples, and five standard errors in all but one of a million.
        assert abs((one.low + one.high) / 2 - CLASSES[one.name] * 21) < 2.6 * (one.high - one.low) / 2, one
        assert one.low < one.jobs < one.high
    assert numbers(admin.top(place, exact=True))[0] == ("Mail", 1_260)


def test_bounds_contain_the_truth_as_often_as_they_say():
    """A share of 1 %, of 30 %, and one on two shards of unlike sizes: 500 samples each."""
    dice = random.Random(5)
    for shares, sizes in (((0.01,), (100_000,)), ((0.3,), (20_000,)), ((0.02, 0.5), (500_000, 30_000))):
        truth = sum(share * size for share, size in zip(shares, sizes, strict=True))
        held = 0
        for _ in range(500):
            intervals = []
            for share, size in zip(shares, sizes, strict=True):
                tally = _Tally()
                tally.total, tally.examined = size, 1_000
                intervals.append(tally.interval(sum(dice.random() < share for _ in range(1_000))))
            low, high = groups.GroupCount._bounds(intervals)
            held += low <= truth <= high
        assert held / 500 > 0.92, (shares, held)


def test_too_many_groups_are_merged_and_the_error_is_told(shard, redis, monkeypatch):
    monkeypatch.setattr(groups, "_MOST_NAMES", 20)
    jobs = [f"Rare{at}" for at in range(300)] + ["Common"] * 500
    random.Random(3).shuffle(jobs)
    redis.zadd(keys.DEAD, {encoded(name, jid=f"j{at}"): at for at, name in enumerate(jobs)})
    found = admin.top("dead", limit=1_000)
    common, others = found.groups[0], found.groups[-1]
    assert (common.name, others.name) == ("Common", "(others)")
    assert common.jobs <= 500 <= common.jobs + found.short_by
    assert sum(one.jobs for one in found.groups) == 800
    assert len(found.groups) <= 21


def test_jobs_that_leave_during_an_exact_count_hide_no_other(shard, redis, monkeypatch):
    monkeypatch.setattr(groups, "ranked_pages", partial(groups.ranked_pages, most=50))
    fill(redis, keys.DEAD, 400)
    wanted = redis.zrange(keys.DEAD, 200, -1)
    pages = groups.ranked_pages
    seen = []

    def trimmed(client, key):
        for page in pages(client, key):
            yield page
            # The oldest leave, and so does the end of the page.
            redis.zremrangebyrank(keys.DEAD, 0, 9)
            redis.zrem(keys.DEAD, *(member for member, _ in page[-5:]))
            seen.extend(member for member, _ in page)

    monkeypatch.setattr(groups, "ranked_pages", trimmed)
    admin.top("dead", exact=True)
    assert [member for member in seen if member in set(wanted)] == wanted


def test_top_names_places_and_groupings(shard):
    with pytest.raises(ValueError, match="there are scheduled, retry"):
        admin.top("queue:")
    with pytest.raises(ValueError, match="is no grouping: there are class, queue, error, tag and context:NAME"):
        admin.top("dead", "context:")
