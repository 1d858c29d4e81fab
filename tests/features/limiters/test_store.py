"""Compare the scripts of rate limiters with models, on a clock that the test moves; and count under many clients."""

import hashlib
import math
import threading
from collections import Counter
from datetime import timedelta
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from framework import limiter
from framework.errors import ShardUnavailableError
from framework.features.limiters import keys
from framework.features.limiters import store as limiter_store
from framework.features.limiters.store import LOCK, READ, TAKE, LimiterStore
from framework.store.script import Script
from framework.telemetry import context
from tests.harness import examples, opened

BEGIN = 1_700_000_000.0
CASES = settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture], database=None)
STEPS = st.lists(
    st.tuples(st.sampled_from([0, 1, 90, 400, 700, 1_000, 2_600]), st.integers(1, 4)), min_size=1, max_size=25
)
"""Milliseconds that pass, then an amount that is taken."""


class Bench:
    """The limiters of one shard, whose scripts read the time from a key."""

    def __init__(self, redis, shard):
        self.redis, self.store, self.tokens, self.now = (
            redis,
            LimiterStore(SimpleNamespace(shards={"main": shard}, settings=SimpleNamespace(fleet_shard="main"))),
            0,
            BEGIN,
        )

    def begin(self):
        self.redis.flushall()
        self.now = BEGIN
        self.pass_time(0)

    def pass_time(self, seconds):
        self.now = round(self.now + seconds, 6)
        self.redis.set("aw:push:clock", f"{self.now:.6f}")

    def take(self, limit, amount=1, key="", token=None, *, waited=False, left_s=0.0):
        self.tokens += 1
        return self.store.take(limit.rule, key, amount, token or f"t{self.tokens}", waited=waited, left_s=left_s)


@pytest.fixture
def bench(redis, redis_url, monkeypatch):
    for one in (TAKE, LOCK, READ):
        timed = Script.__new__(Script)
        timed.name = one.name
        timed.source = one.source.replace(b"redis.call('TIME')", b"{ redis.call('GET', 'aw:push:clock'), 0 }")
        timed.digest = hashlib.sha1(timed.source).hexdigest()
        monkeypatch.setattr(limiter_store, one.name.rpartition("/")[2].upper(), timed)
    shard = opened(redis_url)
    made = Bench(redis, shard)
    made.begin()
    yield made
    shard.close()


@pytest.mark.parametrize(
    "one",
    [
        limiter.bucket("r", 10, "minute"),
        limiter.window("r", 10, "minute"),
        limiter.leaky("r", 10, "minute"),
        limiter.points("r", 10, 1 / 6),
    ],
    ids=lambda one: one.rule.kind,
)
def test_refused_jobs_come_back_one_by_one_when_there_is_room(bench, one):
    """Thirty jobs at ten a minute take three minutes at most, and each is refused once at most, also if it comes a little late."""
    begin, tries, done = bench.now, Counter(), []
    coming = [(begin, number) for number in range(30)]
    while coming:
        coming.sort()
        at, number = coming.pop(0)
        bench.pass_time(at + 0.5 * (number % 2) - bench.now if at + 0.5 * (number % 2) > bench.now else 0)
        tries[number] += 1
        with context.bound():
            context.enter_job({"class": "Job"})
            taken = bench.take(one)
        if taken.admitted:
            done.append(bench.now - begin)
        else:
            coming.append((bench.now + taken.turn_s, number))
    assert max(done) <= 180
    assert max(tries.values()) == 2


def test_caller_that_waits_or_is_no_job_takes_no_turn(bench):
    one = limiter.window("r", 1, "minute")
    bench.take(one)
    assert bench.take(one).turn_s is None
    with context.bound():
        context.enter_job({"class": "Job"})
        assert bench.take(one, left_s=61.0).turn_s is None
        assert bench.take(one).turn_s == pytest.approx(60, abs=0.01)
        assert bench.take(limiter.window("r", 1, "minute", backoff=int)).turn_s is None
        assert bench.take(one).turn_s == pytest.approx(60 + 61.2, abs=0.01)


@CASES
@given(steps=STEPS)
def test_bucket_admits_its_limit_in_each_interval(bench, steps):
    bench.begin()
    one, used = limiter.bucket("b", 5, "second"), Counter()
    for passed_ms, amount in steps:
        bench.pass_time(passed_ms / 1_000)
        number, taken = math.floor(bench.now), bench.take(one, amount)
        assert taken.admitted == (used[number] + amount <= 5)
        if taken.admitted:
            used[number] += amount
        else:
            assert taken.retry_after_s == pytest.approx(number + 1 - bench.now, abs=1e-5)
        assert bench.store.used(one.rule, "") == used[number]


@CASES
@given(steps=STEPS)
def test_window_never_has_more_than_its_limit(bench, steps):
    bench.begin()
    one, admitted = limiter.window("w", 5, 2), []
    for passed_ms, amount in steps:
        bench.pass_time(passed_ms / 1_000)
        inside = sum(taken for at, taken in admitted if at + 2 > bench.now)
        almost = sum(taken for at, taken in admitted if at + 2.002 > bench.now)
        taken = bench.take(one, amount)
        assert inside + amount <= 5 if taken.admitted else almost + amount > 5
        if not taken.admitted:
            bench.pass_time(taken.retry_after_s + 0.000001)
            assert bench.take(one, amount).admitted
        admitted.append((bench.now, amount))


@CASES
@given(steps=STEPS, is_points=st.booleans())
def test_leaky_and_points_follow_a_falling_level(bench, steps, is_points):
    bench.begin()
    one = limiter.points("l", 6, 2.5) if is_points else limiter.leaky("l", 6, 2.4)
    level, at = 0.0, bench.now
    for passed_ms, amount in steps:
        bench.pass_time(passed_ms / 1_000)
        level, at = max(0.0, level - (bench.now - at) * 2.5), bench.now
        taken = bench.take(one, amount)
        if abs(level + amount - 6) > 1e-5:
            assert taken.admitted == (level + amount <= 6)
        if taken.admitted:
            level += amount
        else:
            assert taken.retry_after_s == pytest.approx((level + amount - 6) / 2.5, abs=1e-4)
        assert bench.store.used(one.rule, "") == pytest.approx(level, abs=1e-4)


@CASES
@given(
    steps=st.lists(st.tuples(st.sampled_from([0, 400, 2_600, 9_000]), st.integers(0, 6), st.booleans()), max_size=25)
)
def test_concurrent_has_at_most_its_limit_of_holders(bench, steps):
    bench.begin()
    one, ends = limiter.concurrent("c", 3, lock_timeout=10), {}
    for passed_ms, holder, gives_back in steps:
        bench.pass_time(passed_ms / 1_000)
        ends = {name: end for name, end in ends.items() if end > bench.now}
        if gives_back:
            bench.store.give_back(one.rule, "", f"h{holder}")
            ends.pop(holder, None)
            continue
        taken = bench.take(one, token=f"h{holder}")
        assert taken.admitted == (holder in ends or len(ends) < 3)
        if taken.admitted:
            ends.setdefault(holder, bench.now + 10)
        else:
            assert taken.retry_after_s == pytest.approx(min(ends.values()) - bench.now, abs=1e-5)
        assert bench.store.used(one.rule, "") == len(ends)


def test_lock_of_a_dead_holder_ends_and_is_counted(bench):
    one = limiter.concurrent("c", 1, lock_timeout=10)
    assert bench.take(one).admitted
    assert not bench.take(one).admitted
    bench.pass_time(10)
    assert bench.take(one).admitted
    assert bench.redis.hget(keys.limiter("c"), "reclaimed") == b"1"


def test_keys_have_limits_of_their_own(bench):
    one = limiter.bucket("b", 1, "hour")
    assert [bench.take(one, key=key).admitted for key in ("ada", "bob", "ada", "")] == [True, True, False, True]


def test_window_keeps_few_entries_of_many_takes(bench):
    one = limiter.window("w", 100_000, 10)
    for _ in range(300):
        bench.pass_time(0.001)
        bench.take(one)
    assert bench.store.used(one.rule, "") == 300
    assert bench.redis.hlen(keys.state("w", "")) < 40


def test_state_expires_when_nothing_is_used(bench):
    made = [limiter.bucket("b", 3, 5), limiter.window("w", 3, 5), limiter.leaky("l", 3, 5), limiter.points("p", 3, 0.6)]
    for one in made:
        bench.take(one)
        assert 1 <= bench.redis.ttl(keys.state(one.name, "")) <= 7
    bench.take(limiter.concurrent("c", 1, lock_timeout=5))
    assert 1 <= bench.redis.ttl(keys.state("c", "")) <= 7
    assert bench.redis.ttl(keys.limiter("c")) > 80 * 86_400


def test_resize_holds_for_every_process_until_removed(bench):
    one = limiter.bucket("b", 1, "hour")
    bench.store.resize(one.rule, 2, None)
    assert [bench.take(one).admitted for _ in range(3)] == [True, True, False]
    bench.store.resize(one.rule, None, None)
    assert bench.take(one).limit == 1
    bench.store.resize(one.rule, 0, None)
    assert bench.take(one).retry_after_s is None


def test_resize_for_a_time_ends_by_itself(bench, redis):
    one = limiter.bucket("b", 1, "hour")
    bench.store.resize(one.rule, 5, 60)
    bench.now = redis.time()[0]
    bench.pass_time(0)
    assert bench.take(one).limit == 5
    bench.pass_time(120)
    assert bench.take(one).limit == 1


def test_reset_forgets_one_key_or_all(bench):
    one = limiter.bucket("b", 1, "hour")
    for key in ("", "ada", "bob"):
        bench.take(one, key=key)
    bench.store.reset(one.rule, "ada")
    assert [bench.store.used(one.rule, key) for key in ("", "ada", "bob")] == [1, 0, 1]
    bench.store.reset(one.rule, None)
    assert not bench.redis.keys("aw:limiter:b:*")


def test_points_used_corrects_an_estimate_beyond_the_limit(bench):
    one = limiter.points("p", 10, 1)
    bench.take(one, 4)
    bench.store.correct(one.rule, "", 11, "t1 later")
    assert bench.store.used(one.rule, "") == 15
    assert bench.take(one, 1).retry_after_s == pytest.approx(6)
    bench.store.correct(one.rule, "", -20, "t1 last")
    assert bench.store.used(one.rule, "") == 0


def test_counts_and_list_of_limiters(bench):
    one = limiter.bucket("b", 1, "hour")
    bench.take(one)
    # Two calls that wait, and try in turns.
    for waited in (False, True, True):
        for token in ("ada", "bob"):
            bench.take(one, token=token, waited=waited)
    facts = bench.redis.hgetall(keys.limiter("b"))
    assert (facts[b"taken"], facts[b"refused"]) == (b"1", b"2")
    assert bench.redis.zscore(keys.NAMES, "b") == bench.now + limiter_store.KEPT_S


@pytest.mark.parametrize("kind", ["bucket", "concurrent"])
def test_limiter_is_listed_again_after_a_tenth_of_its_time(bench, kind):
    one = limiter.bucket("b", 9, "hour") if kind == "bucket" else limiter.concurrent("b", 9)
    bench.take(one)
    bench.redis.zrem(keys.NAMES, "b")
    bench.pass_time(limiter_store.KEPT_S / 10 - 1)
    bench.take(one)
    assert bench.redis.zscore(keys.NAMES, "b") is None
    bench.pass_time(1)
    bench.take(one)
    assert bench.redis.zscore(keys.NAMES, "b") == bench.now + limiter_store.KEPT_S
    bench.redis.zrem(keys.NAMES, "b")
    # Another program has another rule: it is listed at once.
    bench.take(limiter.bucket("b", 8, "hour") if kind == "bucket" else limiter.concurrent("b", 8))
    assert bench.redis.zscore(keys.NAMES, "b") == bench.now + limiter_store.KEPT_S


def test_limiter_of_a_key_of_another_type_raises(bench):
    bench.redis.set(keys.state("b", ""), "no hash")
    with pytest.raises(ShardUnavailableError, match="WRONGTYPE"):
        bench.take(limiter.bucket("b", 1, "hour"))


@pytest.mark.parametrize(
    "one",
    [
        limiter.concurrent("c", 50),
        limiter.bucket("b", 50, timedelta(days=366)),
        limiter.window("w", 50, "day"),
        limiter.leaky("l", 50, "day"),
        limiter.points("p", 50, 0.000001),
    ],
    ids=lambda one: one.rule.kind,
)
@pytest.mark.parametrize("clients", [8, pytest.param(64, marks=pytest.mark.campaign)])
def test_many_clients_take_exactly_the_limit(redis, redis_url, one, clients):
    admitted, start = [], threading.Barrier(clients)

    def client(number):
        shard = opened(redis_url)
        start.wait()
        store = LimiterStore(SimpleNamespace(shards={"main": shard}, settings=SimpleNamespace(fleet_shard="main")))
        admitted.extend(store.take(one.rule, "", 1, f"{number} {at}", waited=False).admitted for at in range(16))
        shard.close()

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (sum(admitted), len(admitted)) == (50, 16 * clients)
