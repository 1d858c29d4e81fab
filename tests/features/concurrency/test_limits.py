"""Check limits in a process and the effects on their keys, on a real server."""

import threading
import time

import pytest

from framework import ApplicationWorker, ConcurrencyScope
from framework.execute.admission import AdmissionRequest, LimitSlots, renew_slots
from framework.features.concurrency import limits as limits_module
from framework.features.concurrency.admission import ClassLimit, QueueLimit
from framework.features.concurrency.limits import FleetSlots, Limits, Throttle
from framework.features.concurrency.sweeper import LimitSweeper
from framework.finish.outcome import Held, Lost
from framework.store.script import FINISH
from framework.wire import keys
from framework.wire.job import decode
from tests.harness import IDENTITY, encoded, hold, server_lines

ANSWER = {"limit": 3}


def current_answer():
    answer = ANSWER["limit"]
    if isinstance(answer, BaseException):
        raise answer
    return answer


class Base(ApplicationWorker, abstract=True):
    feature_category = "not_owned"

    def perform(self, *args):
        pass


class FixedLimitedWorker(Base):
    wire_name = "FixedLimitedWorker"
    concurrency_limit = 2


class AskedLimitedWorker(Base):
    wire_name = "AskedLimitedWorker"
    concurrency_limit = staticmethod(current_answer)


class ShareLimitedWorker(Base):
    wire_name = "ShareLimitedWorker"
    max_concurrency_limit_percentage = 0.3


class TenantLimitedWorker(Base):
    wire_name = "TenantLimitedWorker"
    concurrency_limit = 4
    concurrency_scope = ConcurrencyScope(lambda args: args[0], max_percentage=0.3)


class PlainLimitedWorker(Base):
    wire_name = "PlainLimitedWorker"
    urgency = "throttled"


class RenamedLimitedWorker(Base):
    wire_name = "RenamedLimitedWorker"
    concurrency_limit = 1
    aliases = ("FormerLimitedWorker",)


@pytest.fixture
def limits(redis, granted, set_clock):
    return Limits(FleetSlots(granted))


def declared(worker):
    return worker.declaration()


def entry(redis, worker, jid="j1", args=(), **fields):
    data = encoded(worker.__name__, jid=jid, args=list(args), **fields)
    unit = hold(redis, data)
    return AdmissionRequest(unit, decode(data), worker.declaration(), worker)


def test_limits_invalid_callable_result_keeps_last_limit(limits, set_clock):
    with server_lines("info") as lines:
        for answer, limit in [(3, 3), (True, 3), (5, 5), ("7", 5), (SystemExit(), 5), (10**10, 5), (None, 0), (-1, -1)]:
            ANSWER["limit"] = answer
            set_clock.monotonic += 0.9
            limits.class_limit(declared(AskedLimitedWorker))  # it is too early to ask
            set_clock.monotonic += 0.2
            assert limits.class_limit(declared(AskedLimitedWorker)) == limit, answer
        messages = [line["message"] for line in lines()]
    assert len(messages) == 4
    refused, raised = "its concurrency_limit returned True, not a whole number", "its concurrency_limit raised an error"
    assert f"AskedLimitedWorker: {refused}; the limit stays 3. Correct this function of the class" in messages
    assert f"AskedLimitedWorker: {raised}; the limit stays 5. Correct this function of the class" in messages
    ANSWER["limit"] = ValueError("from the start")
    assert Limits(FleetSlots(None)).class_limit(declared(AskedLimitedWorker)) == 0


def test_limits_during_a_call_other_threads_use_last_result(limits, set_clock, monkeypatch):
    ANSWER["limit"] = 3
    assert limits.class_limit(declared(AskedLimitedWorker)) == 3
    set_clock.monotonic += 1.5
    asked, go = threading.Event(), threading.Event()
    monkeypatch.setitem(ANSWER, "limit", 4)
    monkeypatch.setattr(
        limits, "_evaluate", lambda *args, answer=limits._evaluate: (asked.set(), go.wait(20), answer(*args))[2]
    )
    slow = threading.Thread(target=limits.class_limit, args=(declared(AskedLimitedWorker),))
    slow.start()
    assert asked.wait(20)
    assert limits.class_limit(declared(AskedLimitedWorker)) == 3
    go.set()
    slow.join(20)
    assert limits.class_limit(declared(AskedLimitedWorker)) == 4
    set_clock.monotonic += 60  # no job asked for 60 s: the last result is too old
    go.clear()
    asked.clear()
    monkeypatch.setitem(ANSWER, "limit", 5)
    found = []
    one, other = (
        threading.Thread(target=lambda: found.append(limits.class_limit(declared(AskedLimitedWorker)))) for _ in "12"
    )
    one.start()
    assert asked.wait(20)
    other.start()
    other.join(0.05)  # time to go on too early
    go.set()
    one.join(20)
    other.join(20)
    assert found == [5, 5]


def test_limits_share_counts_live_slots_else_no_limit(redis, granted, limits):
    with server_lines("info") as lines:
        assert limits.class_limit(declared(ShareLimitedWorker)) == 0
        (line,) = lines()
    assert "no process has registered its slots" in line["message"]
    now = redis.time()[0]
    for identity, beat, slots in (
        ("a", now, 10),
        ("b", now - 5, 25),
        ("long silent", now - 60, 100),
        ("dead", -now, 100),
    ):
        redis.zadd(keys.REGISTRY, {identity: beat})
        redis.hset(keys.process(identity), "slots", slots)
    known = Limits(FleetSlots(granted), by_urgency=True)
    assert known.class_limit(declared(ShareLimitedWorker)) == 11  # of 35
    assert known.class_limit(declared(PlainLimitedWorker)) == 6
    assert known.may_limit(declared(PlainLimitedWorker))
    assert not limits.may_limit(declared(PlainLimitedWorker))
    assert known.class_limit(declared(FixedLimitedWorker)) == 2


def test_limits_scope_comes_from_context_or_function(limits):
    scoped = declared(TenantLimitedWorker)
    for args, scope in (([5], "5"), (["acme"], "acme"), ([None], ""), ([True], ""), ([[1]], ""), ([], "")):
        assert limits.scope(scoped, {"args": args}) == scope
    assert limits.scope_share(scoped, 4) == 2
    assert limits.scope_share(declared(FixedLimitedWorker), 4) == 0


@pytest.mark.proves("R42", "I10")
def test_limits_waiting_job_releases_slot_of_its_queue(redis, granted, limits):
    slots = LimitSlots(granted, IDENTITY)
    policies = (QueueLimit(slots, Limits(FleetSlots(granted), {"default": 5})), ClassLimit(slots, limits))
    entries = [entry(redis, FixedLimitedWorker, f"j{number}") for number in range(3)]
    outcomes = [[policy.admit(one) for policy in policies] for one in entries]
    assert [[type(outcome) for outcome in row] for row in outcomes] == [[type(None)] * 2] * 2 + [[type(None), Held]]
    assert [redis.zcard(f"{keys.limit(name)}:running") for name in ("queue/default", "FixedLimitedWorker")] == [2, 2]
    held = entries[0].unit.resources
    redis.zadd(f"{held.slots[0].base}:running", {held.slots[0].member: 1})
    renew_slots(redis, [one.unit for one in entries], 180)
    assert redis.zscore(f"{held.slots[0].base}:running", held.slots[0].member) > redis.time()[0] + 175
    assert FINISH(granted, [keys.working(IDENTITY)], [entries[0].unit.data, held.on_end()])
    assert redis.zcard(f"{keys.limit('queue/default')}:running") == 1
    waiter = redis.rpop("queue:default")
    assert decode(waiter)["jid"] == "j2"  # the released slot is reserved for it, and it is next
    assert policies[1].admit(entries[0]) == Lost()


def test_limits_unusable_keys_let_jobs_run(redis, granted, limits):
    redis.set(f"{keys.limit('FixedLimitedWorker')}:running", "no sorted set")
    policy = ClassLimit(LimitSlots(granted, IDENTITY), limits)
    with server_lines("info") as lines:
        assert policy.admit(entry(redis, FixedLimitedWorker)) is None
        (line,) = lines()
    assert (line["event_name"], line["limit"]) == ("concurrency_limit.unusable", "FixedLimitedWorker")


@pytest.mark.proves("R44")
def test_limits_sweeper_alias_is_released_unknown_is_kept(redis, granted):
    sweeper = LimitSweeper(redis, Limits(FleetSlots(granted), {"q": 1}), lambda: None)
    redis.config_resetstat()
    sweeper.sweep()
    assert set(redis.info("commandstats")) - {"cmdstat_config|resetstat"} == {"cmdstat_smembers"}  # the whole cost
    for name in ("FormerLimitedWorker", "StrangeLimitedWorker", "queue/q", "queue/unknown"):
        base = keys.limit(name)
        for number in range(3):
            redis.zadd(f"{base}:waiting:", {f'["{name}","j{number}"]\n{{}}': number})
        redis.zadd(f"{base}:turns", {"": 1})
        redis.hset(base, "limit", -1)
        redis.sadd(keys.LIMITS_WAITING, base)
    sweeper.sweep()
    counts = {name: redis.llen(keys.queue(name)) for name in ("FormerLimitedWorker", "StrangeLimitedWorker", "queue/q")}
    assert counts == {"FormerLimitedWorker": 3, "StrangeLimitedWorker": 0, "queue/q": 1}
    for name in ("StrangeLimitedWorker", "queue/unknown"):
        redis.hset(keys.limit(name), "known", redis.time()[0] - 61)
    sweeper.sweep()
    assert redis.llen("queue:StrangeLimitedWorker") == redis.llen("queue:queue/unknown") == 3
    assert redis.smembers(keys.LIMITS_WAITING) == {keys.limit("queue/q").encode()}


def test_limits_sweeper_unusable_keys_do_not_block_others(redis, limits):
    unusable, waits = keys.limit("FixedLimitedWorker"), keys.limit("FormerLimitedWorker")
    redis.set(unusable, "a string")
    redis.sadd(keys.LIMITS_WAITING, unusable, waits)
    redis.zadd(f"{waits}:waiting:", {'["q","j"]\n{}': 1})
    redis.zadd(f"{waits}:turns", {"": 1})
    redis.set(keys.LIMITS, "a string")
    with server_lines("error") as lines:
        Throttle(redis, limits, [lambda worker: "hard"]).adjust()
        LimitSweeper(redis, limits, lambda: None).sweep()
        redis.delete(keys.LIMITS)
        LimitSweeper(redis, limits, lambda: None).sweep()
        unusable_limits = [line.get("limit") for line in lines() if line["event_name"] == "concurrency_limit.unusable"]
    assert "FixedLimitedWorker" in unusable_limits
    assert redis.llen("queue:q") == 1


@pytest.mark.parametrize("invalid", ["nan", "inf", "1e999", "-inf", ""])
def test_limits_invalid_override_is_ignored(redis, granted, limits, invalid):
    policy = ClassLimit(LimitSlots(granted, IDENTITY), limits)
    redis.hset(keys.limit("FixedLimitedWorker"), "override", invalid)
    outcomes = [policy.admit(entry(redis, FixedLimitedWorker, f"j{number}")) for number in range(3)]
    assert outcomes[:2] == [None, None]
    assert outcomes[2].fields["concurrency_limit"] == 2
    redis.hset(keys.limit("FixedLimitedWorker"), "override", "3.9")
    LimitSweeper(redis, limits, lambda: None).sweep()
    assert redis.llen("queue:default") == 1


def test_limits_operators_limit_undeclared_class_and_queue(redis, granted, limits):
    reopened = []
    sweeper = LimitSweeper(redis, limits, lambda: reopened.append(limits.operator_limits))
    slots = LimitSlots(granted, IDENTITY)
    by_class, by_queue = ClassLimit(slots, limits), QueueLimit(slots, limits)
    sweeper.sweep()
    assert not by_class.applies_to(declared(PlainLimitedWorker))
    assert not by_queue.applies_to(declared(PlainLimitedWorker))
    for name in ("PlainLimitedWorker", "FixedLimitedWorker", "queue/default"):
        redis.hset(keys.limit(name), mapping={"override": -1, "override_until": redis.time()[0] + 60})
        redis.sadd(keys.LIMITS, keys.limit(name))
    sweeper.sweep()
    sweeper.sweep()
    assert reopened == [{"PlainLimitedWorker", "queue/default"}]
    assert by_class.applies_to(declared(PlainLimitedWorker))
    assert by_queue.applies_to(declared(PlainLimitedWorker))
    for number, policy in enumerate((by_class, by_queue)):
        outcome = policy.admit(entry(redis, PlainLimitedWorker, f"j{number}"))
        assert (outcome.status, outcome.fields["concurrency_limit"]) == ("concurrency_limit", -1)
    redis.hdel(keys.limit("PlainLimitedWorker"), "override")
    redis.hset(keys.limit("queue/default"), "override_until", 1)
    sweeper.sweep()
    assert reopened[1:] == [frozenset()]
    assert redis.llen("queue:default") == 2


class Load:
    def __init__(self):
        self.answers = {}

    def __call__(self, worker):
        answer = self.answers.get(worker)
        if isinstance(answer, BaseException):
            raise answer
        return answer


def current(redis, name="TenantLimitedWorker"):
    return redis.hget(keys.limit(name), "current")


def test_throttle_signal_lowers_and_raises_limit_by_steps(redis, limits, monkeypatch):
    monkeypatch.setattr(limits_module, "_LOWER_INTERVAL_S", 0)
    monkeypatch.setattr(limits_module, "_RAISE_INTERVAL_S", 0)
    ANSWER["limit"] = 0
    load = Load()
    throttle = Throttle(redis, limits, [load, lambda worker: None])

    def step(answer):
        load.answers = {"TenantLimitedWorker": answer}
        throttle.adjust()  # another process has called the signals in this period
        redis.delete(keys.LIMITS_THROTTLING)
        throttle.adjust()
        return current(redis)

    with server_lines("info") as lines:
        redis.set(keys.LIMITS_THROTTLING, 1)
        steps = ["soft", "soft", "hard", "hard", "hard", ValueError("down"), "nonsense", None, None, None]
        # Of 4: rounded up, never below 1; an error changes nothing; then one more, one more, and no throttling.
        assert [step(answer) for answer in steps] == [None, None, b"2", b"1", b"1", b"1", b"1", b"2", b"3", None]
        logged = lines()
    throttled = [
        (line["previous_concurrency_limit"], line["concurrency_limit"]) for line in logged if "strategy" in line
    ]
    assert throttled == [(4, 2), (2, 1), (1, 2), (2, 3), (3, 4)]
    assert [line["message"] for line in logged if "load signal" in line["message"]] == [
        "a load signal raised an error; the limits stay as they are. Correct the signal",
        "a load signal returned 'nonsense'; return 'hard', 'soft' or None",
    ]
    assert current(redis, "AskedLimitedWorker") is None  # it has no limit now


def test_limits_hanging_callable_delays_no_other_class(limits, monkeypatch):
    monkeypatch.setattr(limits_module, "FIRST_CALL_TIMEOUT_S", 0.05)
    asked, answer = threading.Event(), threading.Event()

    def hangs():
        asked.set()
        answer.wait()
        return 2

    body = {"wire_name": "HangingLimitWorker", "concurrency_limit": staticmethod(hangs)}
    hanging = type("HangingLimitWorker", (Base,), body).declaration()
    asking = threading.Thread(target=limits.class_limit, args=(hanging,))
    asking.start()
    asked.wait()
    assert limits.class_limit(hanging) == 0  # another job of its class
    ANSWER["limit"] = 3
    assert limits.class_limit(AskedLimitedWorker.declaration()) == 3
    answer.set()
    asking.join()
    assert limits.class_limit(hanging) == 2


def test_throttle_hanging_signal_is_awaited_once(redis, limits, monkeypatch):
    monkeypatch.setattr(limits_module, "SIGNALS_DEADLINE_S", 0.05)
    go = threading.Event()
    asked = []

    def hangs(worker):
        asked.append(worker)
        go.wait(20)

    throttle = Throttle(redis, limits, [hangs])
    try:
        throttle.adjust()
        redis.delete(keys.LIMITS_THROTTLING)
        began = time.monotonic()
        throttle.adjust()
        assert time.monotonic() - began < 15  # the signal takes 20 s
        assert len(asked) == 1
        assert current(redis) is None
    finally:
        go.set()
