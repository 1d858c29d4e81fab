"""Test the pages of sorted sets while their members leave."""

import pytest

from framework.admin.pages import ranked_data, ranked_members, ranked_pages
from framework.features.deferral.admin import summarize_deferrals
from framework.wire import blocks, keys
from framework.wire.job import DEFERRED, DEFERRED_BY
from tests.harness import encoded

MEMBERS = [b"j%03d" % number for number in range(400)]


def data_of(pages):
    return ([member for member, _ in page] for page in pages)


@pytest.mark.parametrize(
    "read",
    [lambda *place: data_of(ranked_members(*place)), ranked_data],
    ids=["with scores", "without"],
)
def test_pages_miss_no_member_when_whole_pages_leave(redis, read):
    redis.zadd(keys.DEAD, {member: number / 3 for number, member in enumerate(MEMBERS)})
    seen = []
    for number, page in enumerate(read(redis, keys.DEAD, 50)):
        seen += page
        if number > 1:
            redis.zrem(keys.DEAD, *page)
            # Others that came before leave, too.
            redis.zremrangebyrank(keys.DEAD, 0, 9)
    assert seen == MEMBERS


def test_pages_of_another_type_are_empty(redis):
    redis.rpush(keys.DEAD, "x")
    assert (list(ranked_pages(redis, keys.DEAD)), list(ranked_data(redis, keys.DEAD))) == ([], [])


def test_pages_without_scores_have_the_jobs_in_blocks(redis):
    jobs = [blocks.HeldMember(b"line\n" + encoded(jid=f"j{number}"), number) for number in range(3)]
    redis.zadd("held", {blocks.pack_members(jobs): 0, b"line\nlast": 9})
    redis.hset(keys.PACKED_HELD, "held", 2)
    assert list(ranked_data(redis, "held")) == [[*(one.data for one in jobs), b"line\nlast"]]


def test_deferrals_have_the_first_due_time_and_the_oldest_push(redis):
    rows = [(30, "A", 300.5), (10, "A", 200.5), (20, "A", 100.5), (5, "B", 50.5), (1, "C", "never")]
    redis.zadd(
        keys.SCHEDULE,
        {
            encoded(worker, jid=f"j{due}", created_at=created, **{DEFERRED: due, DEFERRED_BY: "flag"}): due
            for due, worker, created in rows
        },
    )
    found = {one.worker: one for one in summarize_deferrals(redis, lambda _key, _jobs: None)}
    assert {name: (one.jobs, one.next_due, one.oldest) for name, one in found.items()} == {
        "A": (3, 10, 100.5),
        "B": (1, 5, 50.5),
        "C": (1, 1, None),
    }
