"""The search of the jobs of a shard in all places: what a query means, and that a search that stops goes on without a gap."""

import time

import pytest

from framework.admin.job_search import JobQuery, parse_query, search_shard
from framework.settings.model import SizeLimitSettings
from framework.wire import keys
from tests.admin.conftest import shard
from tests.harness import encoded

__all__ = ["shard"]

SIZES = SizeLimitSettings()


def search(shard, text, *, time_limit_s=60.0, most=1_000, resume=None, arguments=lambda job: job.display_args):
    return search_shard(shard, parse_query(text), arguments, SIZES, time_limit_s=time_limit_s, most=most, resume=resume)


def jids(result):
    return sorted(one.job.jid for one in result.found)


def test_query_has_words_keys_age_and_status():
    found = parse_query('Chaos::SleepWorker class:Charge user:42 age:>1h30m status:dead tag:"two words"')
    assert found.words == ("Chaos::SleepWorker",)
    assert found.parts == {"class": ("Charge",), "tag": ("two words",)}
    assert (found.context, found.older_than_s, found.kinds) == ({"user": "42"}, 5_400.0, frozenset(("dead",)))
    assert parse_query("it's").words == ("it's",)
    assert not JobQuery()
    for wrong, message in (("status:deed", "did you mean 'dead'"), ("age:soon", "duration")):
        with pytest.raises(ValueError, match=message):
            parse_query(wrong)


def test_each_place_is_searched_for_each_field(shard, redis):
    now = time.time()
    job = {"meta.user": 42, "tags": ["slow"], "queue": "mail"}
    redis.zadd("schedule", {encoded("Charge", args=[1], jid="J1", created_at=now - 7_200, **job): now + 60})
    redis.zadd(
        "retry", {encoded("Charge", args=["x"], jid="J2", error_class="Timeout", error_message="no answer"): now}
    )
    redis.zadd("dead", {encoded("Other", args=[4242], jid="J3"): now - 90_000})
    redis.sadd("queues", "mail")
    redis.lpush("queue:mail", encoded("Charge", args=[4242], jid="J4", enqueued_at=now))
    redis.lpush(keys.working("h:1:a"), encoded("Charge", jid="J5", enqueued_at=now))
    redis.zadd(keys.paused_jobs("Charge"), {b"[1]\n" + encoded("Charge", jid="J6"): now})
    for text, wanted in (
        ("Charge", ["J1", "J2", "J4", "J5", "J6"]),
        ("class:Charge user:42", ["J1"]),
        ("tag:slow", ["J1"]),
        ("queue:mail", ["J1"]),
        ("error:Timeout", ["J2"]),
        ("answer", ["J2"]),
        ("arg:4242", ["J3", "J4"]),
        ("4242", ["J3", "J4"]),
        ("status:held", ["J6"]),
        ("status:running", ["J5"]),
        ("age:1d", ["J3"]),
        ("class:Charge age:1h", ["J1"]),
        ("jid:J4", ["J4"]),
        ("nothing", []),
    ):
        result = search(shard, text)
        assert (text, jids(result)) == (text, wanted)
        assert (result.resume, result.searched) == (None, result.total)
    # An argument that the caller may not see matches nothing.
    assert jids(search(shard, "4242", arguments=lambda job: ["[FILTERED]" for _ in job.display_args])) == []


def test_search_that_stops_goes_on_and_finds_all(shard, redis):
    for key in ("schedule", "dead"):
        redis.zadd(key, {encoded("Charge", jid=f"{key}{number}"): number + 1.0 for number in range(700)})
    redis.sadd("queues", "a", "b")
    for queue in ("a", "b"):
        redis.lpush(f"queue:{queue}", *(encoded("Charge", jid=f"{queue}{number}") for number in range(700)))
    found, resume, shares = set(), None, []
    for _ in range(1_000):
        result = search(shard, "Charge", time_limit_s=0.0, resume=resume)
        found.update(jids(result))
        shares.append(result.searched / result.total)
        if (resume := result.resume) is None:
            break
    assert len(found) == 2_800
    assert len(shares) > 4
    assert shares == sorted(shares)
    assert 0 < shares[0] < 1 == shares[-1]
