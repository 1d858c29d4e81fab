"""Count the jobs of some classes in every place where a job can be, in bounded steps."""

import itertools
from collections import Counter

import pytest

from framework.admin import statistics
from framework.admin.statistics import count_jobs_by_class
from framework.wire import keys
from tests.harness import encoded, enqueue, hold


def count(redis, *names):
    return count_jobs_by_class(redis, names, lambda place, looked: None)


def test_job_counts_every_place_is_counted(redis):
    enqueue(redis, "Old", queue="a")
    enqueue(redis, "Old", queue="a", jid="2")
    enqueue(redis, "Old", queue="b")
    redis.lpush("queue:unlisted", encoded("Old"))  # the set `queues` lacks the name
    for key in (keys.SCHEDULE, keys.RETRY, keys.DEAD, keys.INTERRUPTED):
        redis.zadd(key, {encoded("Old", jid=key): 1})
    hold(redis, encoded("Old", jid="held"), "host:1:00000000000e")
    redis.zadd(keys.REGISTRY, {"host:1:00000000000e": 1})
    for job in ("New", "Older", "old"):
        enqueue(redis, job, args=["Old"], queue="a")  # the text `Old` as an argument is no class
    places = ["schedule", "retry", "queue a", "queue b", "queue unlisted", "in flight", "dead", "interrupted"]
    assert count(redis, "Old", "Gone") == {
        "Old": Counter(dict.fromkeys(places, 1) | {"queue a": 2}),
        "Gone": Counter(),
    }


@pytest.mark.proves("R53")
def test_job_counts_malformed_jobs_are_ignored(redis):
    redis.lpush("queue:a", b"Old \xff{", b"[]", b'{"class":5,"args":["Old"]}', encoded("Old"))
    redis.zadd(keys.DEAD, {b"Old \x00": 1})
    redis.sadd(keys.QUEUES, "a", "gone", "wrong", b"\xff")
    redis.set("queue:wrong", "Old")
    redis.lpush(b"queue:\xff", encoded("Old"))
    assert count(redis, "Old")["Old"] == {"queue a": 1, "queue \ufffd": 1}


def test_job_counts_escaped_name_is_found(redis):
    redis.lpush("queue:a", encoded("Old::Job"), encoded("Old::Job").replace(b"Old::Job", b"Old\\u003a\\u003aJob"))
    assert count(redis, "Old::Job")["Old::Job"] == {"queue a": 2}


@pytest.mark.proves("R55")
@pytest.mark.parametrize("number", [0, 1, 499, 500, 501, 1_234])
def test_job_counts_long_list_is_read_in_bounded_steps(redis, number):
    jobs = [encoded("Old", jid=str(n)) for n in range(number)]
    if jobs:
        redis.rpush("queue:a", *jobs)
        redis.zadd(keys.DEAD, dict.fromkeys(jobs, 1))
    steps = []
    found = count_jobs_by_class(redis, ["Old"], lambda place, looked: steps.append((place, looked)))
    assert found["Old"] == ({"queue a": number, "dead": number} if number else {})
    looked = [0, *(count for _, count in steps)]
    assert looked[-1] == 2 * number
    assert all(after - before <= 2 * statistics.PAGE_SIZE for before, after in itertools.pairwise(looked))


@pytest.mark.proves("R62")
def test_job_counts_concurrent_pushes_hide_no_job(redis):
    redis.rpush("queue:a", *(encoded("Old", jid=str(n)) for n in range(1_200)))

    def push(place, looked):
        redis.lpush("queue:a", encoded("New"))
        redis.rpop("queue:a")

    # A process takes jobs at the right end during the count. A job counts if it was in the queue when its page was read.
    assert count_jobs_by_class(redis, ["Old"], push)["Old"]["queue a"] >= 1_195
