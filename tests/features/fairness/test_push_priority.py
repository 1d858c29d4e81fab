"""Check the levels of a queue: which jobs start first, that none waits for ever, and that no move of a job loses its level."""

import json
from collections import Counter

import pytest

from framework.by_name import enqueue
from framework.errors import ArgumentsError, DeclarationError
from framework.fetch.requeue import requeue
from framework.fetch.unit_of_work import UnitOfWork
from framework.store.script import FETCH, RING
from framework.wire import keys
from framework.wire.sub_queues import (
    LEVELS,
    SUB_QUEUE,
    arrival_queue,
    at_level,
    level_of,
    list_of,
    return_queue,
    start_queue,
)
from tests.push.conftest import LetPass, worker

OWNER = "host:1:abc"


def leveled(**attributes):
    def perform(self, name, number: int):
        """Accept a name and a number."""

    return worker(**{"perform": perform, "queue": "default", "priority": "normal", **attributes})


def fetched(redis, most):
    """Fetch as a process does that knows of the levels; return the payloads in the order of their starts."""
    redis.set(keys.lease(OWNER), 1)
    _, _, _, *found = FETCH(
        redis, [keys.lease(OWNER), keys.working(OWNER), "queue:default"], [60_000, most, 0, f"~{most}"]
    )
    return found[1] if found else []


def names(payloads):
    return ["{}{}".format(*json.loads(data)["args"]) for data in payloads]


def test_higher_levels_start_first_in_their_order(pusher, redis):
    for middleware in [(), (LetPass,)]:
        redis.flushall()
        pusher.open(*middleware)
        job = leveled()
        job.set(priority="low").perform_bulk([("low", number) for number in range(3)])
        job.perform_bulk([("normal", number) for number in range(3)])
        job.set(priority="high").perform_bulk([("high", number) for number in range(3)])
        job.set(priority="critical").perform_async("critical", 0)
        # The first job waits for idle processes in the queue itself, whatever its level.
        (waiting,) = fetched(redis, 1)
        assert names([waiting]) == ["critical0"]
        assert (json.loads(waiting)["queue"], json.loads(waiting)["priority"]) == ("default", "critical")
        assert names(fetched(redis, 20)) == [f"{level}{n}" for level in ("high",) for n in range(3)] + [
            *("low0", "normal0", "normal1", "normal2"),
            *("low1", "low2"),
        ]
        assert not redis.exists(keys.levels("default"), keys.turns("default"), "queue:default")
        assert redis.smembers(keys.QUEUES) == {b"default"}


def test_no_level_waits_for_ever_and_keys_keep_their_turns(pusher, redis):
    job = leveled(fair_by=lambda args: args[0])
    for level in LEVELS:
        job.set(priority=level).perform_bulk([(f"{level[0]}{key}", n) for key in "ab" for n in range(40)])
    for _ in range(2):
        found = Counter(name[0] for data in names(fetched(redis, 40)) for name in [data])
        # 36 of 40 starts are of the highest level, and each other level has one at least.
        assert found["c"] == 37
        assert {found["h"], found["n"], found["l"]} == {1}
    found = names(fetched(redis, 6))
    assert {data[:2] for data in found} == {"ca", "cb"}
    assert names(fetched(redis, 1_000))[-1][0] == "l"
    # A full list of turns: the jobs of further keys share the sub-queue of their level.
    redis.zadd(keys.turns("default"), {f"gone{number}": number for number in range(10_000)})
    job.set(priority="high").perform_bulk([("new", 1), ("newer", 2)])
    assert redis.llen("queue:default~high^") == 1
    assert names(fetched(redis, 9)) == ["new1", "newer2"]


def test_jobs_keep_their_levels_wherever_they_go(pusher, redis):
    job = leveled(priority="low")
    jids = {level: job.set(priority=level).perform_in(60, level, 0) for level in LEVELS}
    job.perform_in(60, "default", 0)
    scheduled = {json.loads(data)["args"][0]: data for data in redis.zrange(keys.SCHEDULE, 0, -1)}
    assert {arrival_queue(json.loads(data), "default") for data in scheduled.values()} == {
        *("default~critical^", "default~high^", "default", "default~low^")
    }
    assert json.loads(scheduled["default"])[SUB_QUEUE] == "default~low^"
    assert arrival_queue(json.loads(scheduled["high"]), "elsewhere") == "elsewhere"
    assert None not in jids.values()
    # A fetched job goes back to the head of its level; one for which a slot is reserved runs before normal ones at least.
    for level, place in [("high", "default~high^"), ("normal", "default"), ("low", "default~low^")]:
        assert return_queue("default", scheduled[level]) == place
        assert start_queue("default", json.loads(scheduled[level])) == (place if level == "high" else "default")
    job.set(priority="high").perform_bulk([("high", 1), ("high", 2)])
    taken = fetched(redis, 2)
    requeue(redis, OWNER, [(UnitOfWork("default", data), data) for data in taken])
    assert not redis.exists(keys.working(OWNER))
    assert names(fetched(redis, 9)) == ["high1", "high2"]
    for found in ("default~high^a", "default~normal^", "default~a", "default"):
        assert list_of(found) == {"default~normal^": "default"}.get(found, found)
        assert level_of(found) == ("high" if "high" in found else "normal")
        assert at_level(found, "low") == {"default~high^a": "default~low^a", "default~normal^": "default~low^"}.get(
            found
        )


def test_priority_is_refused_where_no_process_would_look(pusher, redis):
    with pytest.raises(DeclarationError, match="one of 'critical', 'high', 'normal', 'low'"):
        leveled(priority="urgent")
    plain = worker("Plain")
    with pytest.raises(
        ArgumentsError, match=r"set\(priority='high'\) needs the attribute: declare priority = 'normal'"
    ):
        plain.set(priority="high").perform_async(1)
    for wrong in ("hihg", None, 1):
        with pytest.raises(ArgumentsError, match="is not allowed"):
            plain.set(priority=wrong)
    # Another program's class is known by its name alone, and another queue than the class's has no levels.
    enqueue("Other::Job", [1, 2], queue="default", priority="low")
    enqueue("Other::Job", [1, 3], queue="default", priority="low")
    leveled().set(queue="other", priority="high").perform_async("other", 1)
    assert (redis.llen("queue:default"), redis.llen("queue:default~low^"), redis.llen("queue:other")) == (1, 1, 1)
    assert SUB_QUEUE not in json.loads(redis.lindex("queue:other", 0))
    # A key of another type, and a lost one, change the order only.
    redis.set(keys.levels("default"), "garbage")
    leveled().set(priority="high").perform_bulk([("high", n) for n in range(2)])
    assert len(fetched(redis, 9)) == 4
    RING(redis, [], ["default", "other"])
