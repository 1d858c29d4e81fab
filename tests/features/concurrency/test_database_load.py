"""Throttling by database time: what is written and read, the rule, a simulated overload, and a worker with a real database."""

import shutil
from pathlib import Path

import pytest
from redis.exceptions import RedisError

from framework.features.concurrency import limits as limits_module
from framework.features.concurrency.database_load import (
    DatabaseLoad,
    minute_keys,
    seconds_of_last_minute,
    strategy_of,
)
from framework.features.concurrency.limits import Throttle
from framework.features.concurrency.observer import Quotas, class_seconds
from framework.store.absent_keys import AbsentKeys
from framework.store.connect import Endpoint, open_client
from framework.wire import keys
from tests.features.concurrency.test_limits import ANSWER, limits
from tests.harness import enqueue
from tests.servers.proxy import Proxy

__all__ = ["limits"]


@pytest.fixture(autouse=True)
def nothing_counted():
    class_seconds.take()
    yield
    class_seconds.take()


def load_of(redis, seconds=20.0, high=100.0):
    return DatabaseLoad(redis, Quotas(seconds, high), AbsentKeys())


def test_seconds_of_processes_add_up_in_the_minute(redis):
    one = load_of(redis)
    one.write()
    assert redis.keys("aw:database_seconds*") == []
    for database, seconds in (("", 1.5), ("main", 2.0), ("main", 0.25)):
        class_seconds.add("Report", database, seconds)
    one.write()
    class_seconds.add("Report", "main", 1.0)
    one.write()
    (key,) = redis.keys("aw:database_seconds*")
    assert redis.hgetall(key) == {b"|Report": b"1.5", b"main|Report": b"3.25"}
    assert 100 < redis.ttl(key) <= 150


@pytest.mark.proves("I19")
def test_seconds_of_a_lost_reply_count_once(redis, redis_url):
    with Proxy(redis_url) as proxy, open_client(Endpoint(proxy.url), name="tested") as client:
        load = load_of(client)
        for seconds in (1.0, 2.0, 4.0):
            class_seconds.add("Report", "main", seconds)
            if seconds == 2.0:
                proxy.lose_replies(b"aw:database_seconds", {1})
                with pytest.raises(RedisError):
                    load.write()
            else:
                load.write()
    assert len(proxy.lost) == 1
    assert redis.hgetall(redis.keys("aw:database_seconds*")[0]) == {b"main|Report": b"7"}


def test_window_is_this_minute_and_the_rest_of_the_last():
    minutes = [{b"main|A": b"60", b"main|B": b"x"}, {b"main|A": b"5"}, {b"main|A": b"1000"}]
    # The second 15 of minute 3001: three quarters of the last minute count.
    assert seconds_of_last_minute(3001 * 60 + 15.0, minutes) == {"main": {"A": 50.0}}


def test_class_above_its_quota_is_throttled_by_its_rank():
    found = {"main": {"Most": 50.0, "Much": 30.0, "Little": 5.0}, "ci": {"Little": 25.0, "Much": 1.0}}
    answers = {name: strategy_of(name, 20.0, found) for name in ("Most", "Much", "Little", "None")}
    assert answers == {"Most": "hard", "Much": "soft", "Little": "hard", "None": None}
    assert strategy_of("Most", 0.0, found) is None
    assert strategy_of("Most", 50.0, found) is None


def test_limit_follows_an_overload_and_returns_after_it(redis, limits, monkeypatch):
    """A simulation: each slot of the class keeps a connection busy the whole minute; the quota is that of three slots of four."""
    monkeypatch.setattr(limits_module, "_LOWER_INTERVAL_S", 0)
    monkeypatch.setattr(limits_module, "_RAISE_INTERVAL_S", 0)
    monkeypatch.setitem(ANSWER, "limit", 0)
    load = load_of(redis, seconds=150.0)
    throttle = Throttle(redis, limits, [], load)
    used = []

    def minute(share):
        redis.delete(keys.LIMITS_THROTTLING, *minute_keys())
        current = redis.hget(keys.limit("TenantLimitedWorker"), "current")
        class_seconds.add("TenantLimitedWorker", "main", 60.0 * share * int(current or 4))
        load.write()
        throttle.adjust()
        used.append(round(60.0 * share * int(current or 4)))

    for _ in range(4):
        minute(1.0)
    # Four slots are above the quota, two below: the limit goes down by a half, then up by one, and stays near the quota.
    assert used == [240, 120, 180, 120]
    for _ in range(6):
        minute(0.1)
    assert redis.hget(keys.limit("TenantLimitedWorker"), "current") is None


def test_worker_throttles_a_class_that_uses_a_database(site, redis):
    """Without a line of the application: SQLAlchemy's statements are counted, written, read, and lower the limit."""
    shutil.copy(Path(__file__).parent / "database_jobs.py", site.folder)
    process = site.hurried_worker(
        "-r", "database_jobs", "-q", "default", "-c", "4", FRAMEWORK_THROTTLING_DATABASE_SECONDS="1"
    ).ready()
    for number in range(40):
        enqueue(redis, "SlowQueryWorker", jid=f"j{number}")
    line = process.line(event_name="concurrency_limit.throttled")
    assert (line["class"], line["strategy"], line["previous_concurrency_limit"], line["concurrency_limit"]) == (
        "SlowQueryWorker",
        "hard",
        4,
        2,
    )
    assert process.end() == 0
