"""Test what worker processes do while memory is short: jobs that cannot start are set aside, and others get through."""

import pytest

from framework import ApplicationWorker
from framework.admin.queue_actions import clear_queue
from framework.declare import registry
from framework.execute.admission import AdmissionRequest
from framework.features.backlog.aside import MOST_WAITING, AsidePolicy, AsideReturn
from framework.features.backlog.pressure import MemoryPressure, pressure_word
from framework.fetch.unit_of_work import UnitOfWork
from framework.finish.outcome import Held, Lost
from framework.store.absent_keys import AbsentKeys
from framework.wire import keys
from framework.wire.job import BUFFERED_AT
from framework.wire.sub_queues import aside_list, level_of, parent_of
from tests.harness import IDENTITY, encoded, full_memory

ASIDE = "flood~aside^Flood"
WORKING = keys.working(IDENTITY)


def job(number, cls="Flood", **fields):
    return encoded(cls, jid=f"j{number}", **fields)


def pressure(client, *, short=True):
    made = MemoryPressure(client, AbsentKeys(), lambda: None)
    made.note(b"short" if short else b"")
    return made


@pytest.fixture
def flood():
    with registry.isolated():

        class FloodWorker(ApplicationWorker):
            feature_category = "not_owned"
            wire_name = "Flood"

            def perform(self): ...

        yield FloodWorker


def ask(policy, flood, data, **payload):
    return policy.admit(AdmissionRequest(UnitOfWork("flood", data), payload, flood.declaration(), flood))


def policy_of(granted, *, stops=True):
    return AsidePolicy(granted, IDENTITY, pressure(granted), lambda _: stops)


def aside(redis, name=ASIDE):
    return redis.lrange(keys.queue(name), 0, -1)[::-1]


@pytest.mark.parametrize(
    ("used", "was_short", "word"),
    [(74, False, b""), (80, False, b"near"), (90, False, b"short"), (86, True, b"short"), (84, True, b"near")],
)
def test_pressure_ends_below_where_it_begins(used, was_short, word):
    assert pressure_word(used, 100, was_short=was_short) == word
    assert pressure_word(used, 0, was_short=was_short) == b""


def test_name_of_list_beside_a_queue_is_no_sub_queue_of_a_key():
    assert aside_list("mail", "Chaos::Flood") == "mail~aside^Chaos::Flood"
    name = aside_list("mail", "x" * 200)
    assert (parent_of(name), level_of(name), len(name)) == ("mail", "normal", 56)


def test_job_is_set_aside_with_those_of_its_class_behind_it(redis, granted, flood):
    fetched, *waiting = [job(number) for number in range(4)]
    other, last = job(9, "Other"), job(5)
    redis.lpush(WORKING, fetched)
    redis.lpush("queue:flood", *waiting, other, last)
    with full_memory(redis):
        assert ask(policy_of(granted), flood, fetched) == Held("paused")
        assert isinstance(ask(policy_of(granted), flood, fetched), Lost)
    assert aside(redis) == [fetched, *waiting]
    assert redis.lrange("queue:flood", 0, -1) == [last, other]
    assert not redis.exists(WORKING)
    assert redis.smembers(keys.ASIDE) == {ASIDE.encode()} <= redis.smembers(keys.QUEUES)
    assert clear_queue(granted, "flood", lambda *_: None) == 6


def test_jobs_return_in_their_order(redis, granted):
    jobs = [job(number) for number in range(5)]
    redis.lpush(f"queue:{ASIDE}", *jobs)
    redis.sadd(keys.ASIDE, ASIDE)
    redis.lpush("queue:flood", job(9, "Other"))
    returned = AsideReturn(granted, AbsentKeys())
    with full_memory(redis):
        assert returned.step(short=True)
        assert not returned.step(short=True)
    assert redis.lrange("queue:flood", 1, -1)[::-1] == jobs
    assert not redis.exists(keys.ASIDE, f"queue:{ASIDE}")


def test_fewer_jobs_return_while_they_come_back(redis, granted):
    redis.lpush(f"queue:{ASIDE}", *[job(number) for number in range(400)])
    redis.sadd(keys.ASIDE, ASIDE)
    returned = AsideReturn(granted, AbsentKeys())

    def step(*, come_back):
        returned._lists = {name: one._replace(due=0.0) for name, one in returned._lists.items()}
        before = redis.llen("queue:flood")
        returned.step(short=True)
        back = redis.rpop("queue:flood", redis.llen("queue:flood") - before)
        if come_back:
            redis.rpush(f"queue:{ASIDE}", *back)
        return len(back)

    sizes = [step(come_back=True) for _ in range(6)]
    assert sizes == [200, 50, 12, 3, 1, 1]
    assert [step(come_back=False) for _ in range(4)][1:] == [2, 4, 8]


def test_limit_keeps_enough_jobs_for_its_slots(redis, granted, flood):
    policy = policy_of(granted, stops=False)
    redis.zadd(f"{keys.limit('Flood')}:turns", {"": 1})
    waiting = f"{keys.limit('Flood')}:waiting:"
    redis.zadd(waiting, {str(number): number for number in range(MOST_WAITING - 200)})
    jobs = [job(number) for number in range(202)]
    redis.lpush(WORKING, *jobs)
    held = [ask(policy, flood, one) for one in jobs[:201]]
    # As if none of those that passed has come to the limit yet: the room is used up, then it is looked at again.
    assert held == [None] * 201
    redis.zadd(waiting, {str(number): number for number in range(MOST_WAITING + 1)})
    policy._rooms.clear()
    assert ask(policy, flood, jobs[201]) == Held("concurrency_limit")
    assert ask(policy, flood, jobs[0], **{BUFFERED_AT: 1.0}) is None
    assert aside(redis) == [jobs[201]]


def test_policy_applies_only_while_memory_is_short(redis, granted, flood):
    state = pressure(granted, short=False)
    policy = AsidePolicy(granted, IDENTITY, state, lambda _: True)
    assert not policy.applies_to(flood.declaration())
    redis.set(keys.MEMORY_PRESSURE, "short")
    state.refresh()
    assert policy.applies_to(flood.declaration())
    redis.set(keys.MEMORY_PRESSURE, "near")
    state.refresh()
    assert state.near
    assert not policy.applies_to(flood.declaration())
