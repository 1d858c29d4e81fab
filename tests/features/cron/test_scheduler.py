"""Check the scheduler against a real server: each tick once, missed ticks by policy, overlaps, duplicates and errors."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError

from framework.declare.policy_options import Deduplicate
from framework.features.cron import keys as cron_keys
from framework.features.cron.entries import Order
from framework.middleware.chain import CLIENT, Chain
from framework.telemetry import context
from framework.wire import keys
from framework.wire.waiters import awaited_job_of
from tests.features.cron.conftest import Cron, entry, worker
from tests.harness import full_memory, until

MINUTE_AGO = 61


def test_new_entry_begins_with_its_next_tick(cron):
    cron.scheduler(entry("* * * * * *")).step()
    assert cron.pushed() == []
    state = cron.states.read().states["tick"]
    assert abs(state.tick - cron.redis.time()[0]) <= 1


def test_due_tick_pushes_its_job_as_a_push_does(cron):
    made = worker(perform=lambda self, days, mode="x": None, track=True)
    one = entry("* * * * *", args=(30, "full"), made=made)
    recorded = []
    cron.client.recorder = SimpleNamespace(written=lambda _, batch: recorded.extend(batch.jids))
    settled = cron.settled(one, MINUTE_AGO)
    with context.bound("chain", user="ada"):
        cron.scheduler(one).step()
    (job,) = cron.pushed()[-1:]
    tick = (settled // 60 + 1) * 60
    assert (job["class"], job["args"], job["retry"]) == ("TickWorker", [30, "full"], False)
    assert job["cron"]["name"] == "tick"
    assert job["cron"]["tick"] >= tick
    assert job["meta.caller_id"] == job["meta.root_caller_id"] == "Cronjob"
    assert "meta.user" not in job
    assert b"cronjob:tick" in cron.redis.smembers("queues")
    assert cron.states.read().states["tick"].jid == job["jid"]
    assert cron.states.last_ticks("tick")[0][1:] == (job["cron"]["tick"], "pushed", job["jid"])
    assert cron.events.of("pushed")[-1] == ["tick", job["cron"]["tick"], job["jid"]]
    assert recorded == [one["jid"] for one in cron.pushed()]


@pytest.mark.proves("R39", "R48", "I11")
def test_two_leaders_push_a_tick_once(cron, redis, redis_url):
    one = entry("*/2 * * * * *", missed="all")
    other = Cron(redis_url, redis, "host:2:b")
    settled = cron.settled(one, 30)
    # Both have read the same state, and both believe to lead.
    first, second = cron.scheduler(one), other.scheduler(one)
    for scheduler in (first, second):
        scheduler._note_leadership(leads=True)
        scheduler._fresh_snapshot()
    first._lead()
    second._lead()
    ticks = [job["cron"]["tick"] for job in cron.pushed()]
    assert ticks == sorted(set(ticks))
    assert ticks[0] == (settled // 2 + 1) * 2
    assert set(range(ticks[0], ticks[-1] + 2, 2)) == set(ticks)
    other.shard.close()


@pytest.mark.proves("I11")
@pytest.mark.parametrize(("missed", "jobs"), [("skip", 0), ("once", 1), ("all", 3)])
def test_missed_ticks_are_caught_up_by_policy(cron, missed, jobs):
    # The last of three ticks is more than a minute old.
    now = cron.redis.time()[0] // 60 * 60
    minutes = [(now // 60 - ago) % 60 for ago in (5, 4, 3)]
    one = entry(f"{','.join(map(str, minutes))} * * * *", missed=missed)
    cron.settled(one, 7 * 60)
    scheduler = cron.scheduler(one)
    scheduler.step()
    assert len(cron.pushed()) == jobs
    assert cron.states.read().states["tick"].tick == now - 180
    reported = cron.events.of("missed")
    assert [len(facts[1]) for facts in reported] == ([3 - jobs] if jobs < 3 else [])
    scheduler.step()
    assert len(cron.pushed()) == jobs


def test_offset_delays_the_job_and_keeps_the_tick(cron):
    early, late = (entry("* * * * *", missed="all", offset_s=one) for one in (0, 100))
    # At least one tick is due without the offset, and none with it.
    settled = cron.settled(late, 90)
    waits_s = cron.scheduler(late).step()
    assert cron.pushed() == []
    assert 0 < waits_s <= 6
    # The offset is no part of the fingerprint: another release with another spread goes on at the same state.
    cron.scheduler(early).step()
    ticks = [job["cron"]["tick"] for job in cron.pushed()]
    assert ticks[0] == (settled // 60 + 1) * 60
    assert [pushed[1] for pushed in cron.events.of("pushed")] == ticks
    cron.scheduler(late).step()
    cron.scheduler(early).step()
    again = [job["cron"]["tick"] for job in cron.pushed()]
    assert sorted(set(again)) == again
    # A new entry begins with the first tick that is not due yet, which may be a tick that has passed.
    cron.redis.flushall()
    rare = entry("* * * * *", offset_s=3_600)
    cron.scheduler(rare).step()
    assert 3_600 - 1 <= cron.redis.time()[0] - cron.states.read().states["tick"].tick <= 3_600 + 1


def test_overlap_skip_waits_for_the_last_job(cron):
    one = entry("* * * * * *", overlap="skip")
    cron.settled(one, 1)
    scheduler = cron.scheduler(one)
    until(lambda: scheduler.step() is not None and cron.pushed(), "the first job")
    (job,) = cron.pushed()
    status = keys.status(job["jid"])
    assert cron.redis.get(status) == b"queued"
    # Ticks look for its state on this shard, so no move and no rule takes it away.
    assert awaited_job_of(job).stays
    assert not awaited_job_of(job).may_move
    assert awaited_job_of(job).told("dead") == {}
    until(lambda: scheduler.step() is not None and cron.events.of("overlap"), "a skipped tick")
    cron.redis.set(status, "running")
    count = len(cron.events.of("overlap"))
    until(lambda: scheduler.step() is not None and len(cron.events.of("overlap")) > count, "another skipped tick")
    assert cron.events.of("overlap")[-1][2] == job["jid"]
    assert cron.pushed() == [job]
    cron.redis.set(status, "completed")
    until(lambda: scheduler.step() is not None and len(cron.pushed()) == 2, "the second job")
    # A job that was cancelled before its start will not run, so no tick waits for it.
    cron.redis.zadd(keys.CANCELLED, {cron.pushed()[-1]["jid"]: 1.0})
    until(lambda: scheduler.step() is not None and len(cron.pushed()) == 3, "the third job")


def test_overlap_queue_pushes_one_run_after_the_last_job(cron, redis, redis_url):
    one = entry("* * * * * *", overlap="queue")
    cron.settled(one, 1)
    scheduler = cron.scheduler(one)
    until(lambda: scheduler.step() is not None and cron.events.of("overlap"), "a tick that joins the waiting run")
    (job,) = cron.pushed()
    assert len(cron.events.of("waits")) == 1
    assert cron.states.read().states["tick"].waits
    # The entry has no tick for a long time, and another process leads: what waits is in the state.
    rare = entry("0 0 1 1 *", overlap="queue")
    other = Cron(redis_url, redis, "host:2:b")
    state = cron.states.read().states["tick"]
    cron.redis.hset(
        cron_keys.cron_states("default"), "tick", state.raw.replace(one.fingerprint.encode(), rare.fingerprint.encode())
    )
    cron.redis.delete(cron_keys.leader("default"))
    successor = other.scheduler(rare)
    successor.step()
    assert other.events.of("pushed") == []
    cron.redis.set(keys.status(job["jid"]), "completed")
    until(lambda: successor.step() is not None and len(cron.pushed()) == 2, "the run that waited")
    last = cron.pushed()[-1]
    assert last["cron"]["tick"] == state.tick
    found = cron.states.read().states["tick"]
    assert (found.jid, found.waits, found.tick) == (last["jid"], False, state.tick)
    cron.redis.set(keys.status(last["jid"]), "completed")
    successor._snapshot = None
    successor.step()
    assert len(cron.pushed()) == 2
    assert cron.states.last_ticks("tick")[0].outcome == "pushed"
    other.shard.close()


def test_changed_entry_keeps_the_run_that_waits(cron):
    one = entry("* * * * *", overlap="queue")
    cron.redis.hset(cron_keys.cron_states("default"), "tick", "1700000000 before last +")
    scheduler = cron.scheduler(one)
    scheduler.step()
    assert cron.states.read().states["tick"].waits
    until(
        lambda: scheduler.step() is not None and cron.pushed(), "the run that waited: the state of the last job is gone"
    )
    assert not cron.states.read().states["tick"].waits


def test_duplicate_of_a_waiting_job_is_not_pushed(cron):
    made = worker(idempotent=True, deduplicate=Deduplicate("until_executed"))
    one = entry("* * * * * *", made=made)
    cron.settled(one, 1)
    scheduler = cron.scheduler(one)
    until(lambda: scheduler.step() is not None and cron.events.of("duplicate"), "a duplicate")
    (job,) = cron.pushed()
    assert cron.events.of("duplicate")[0][2] == job["jid"]
    assert cron.redis.hget(job["idempotency_key"], "jid") == job["jid"].encode()


def test_middleware_that_drops_settles_the_tick(redis, redis_url):
    class DropTicks:
        def call(self, worker, job, queue, pool):
            if "cron" not in job:
                yield

    chain = Chain(CLIENT)
    chain.add(DropTicks)
    cron = Cron(redis_url, redis, middleware=chain.compile())
    one = entry("* * * * *")
    cron.settled(one, MINUTE_AGO)
    cron.scheduler(one).step()
    assert cron.pushed() == []
    assert cron.events.of("dropped")
    assert cron.states.last_ticks("tick")[0].outcome == "dropped"
    cron.shard.close()


@pytest.mark.proves("R35")
def test_error_of_one_entry_does_not_stop_the_others(cron):
    bad, good = entry(name="bad", args=(1, 2)), entry(name="good")
    for one in (bad, good):
        cron.settled(one, MINUTE_AGO)
    scheduler = cron.scheduler(bad, good)
    scheduler.step()
    assert {job["cron"]["name"] for job in cron.pushed()} == {"good"}
    (failed,) = cron.events.of("failed")
    assert failed[0] == "bad"
    scheduler.step()
    assert len(cron.events.of("failed")) == 1


def test_queue_of_another_type_keeps_the_tick_due(cron):
    one = entry()
    settled = cron.settled(one, MINUTE_AGO)
    cron.redis.set("queue:cronjob:tick", "text")
    cron.scheduler(one).step()
    assert cron.events.of("failed")
    assert cron.states.read().states["tick"].tick == settled
    cron.redis.delete("queue:cronjob:tick")
    cron.scheduler(one).step()
    assert cron.pushed()


def test_full_server_refuses_the_push_and_keeps_the_tick(cron, redis):
    one = entry()
    settled = cron.settled(one, MINUTE_AGO)
    scheduler = cron.scheduler(one)
    with full_memory(redis), pytest.raises(OutOfMemoryError):
        scheduler.step()
    assert cron.states.read().states["tick"].tick == settled
    scheduler.step()
    assert cron.pushed()


def test_unreadable_state_begins_again(cron):
    one = entry("* * * * *")
    cron.redis.hset(cron_keys.cron_states("default"), "tick", b"\xff nonsense")
    cron.scheduler(one).step()
    assert cron.states.read().states["tick"].fingerprint == one.fingerprint
    assert cron.pushed() == []


def test_changed_entry_begins_with_its_next_tick(cron):
    cron.settled(entry("@hourly"), 3_600)
    cron.scheduler(entry("* * * * *")).step()
    assert cron.pushed() == []


def test_clock_that_was_set_back_repeats_no_tick(cron):
    one = entry("* * * * *")
    tick = cron.settled(one, -600)
    cron.scheduler(one).step()
    cron.scheduler(entry("*/2 * * * *")).step()
    assert cron.pushed() == []
    assert cron.states.read().states["tick"].tick == tick


def test_two_orders_at_once_both_count(cron):
    def slow(order, now):
        if order.enabled is None:
            # Another operator is faster.
            cron.states.change_order("tick", lambda order, _: replace(order, enabled=False))
        return replace(order, args=["fast"], set_at=now)

    cron.states.change_order("tick", slow)
    order = cron.states.read().orders["tick"]
    assert (order.enabled, order.args, order.set_at > 1e9) == (False, ["fast"], True)


def test_orders_disable_and_override_an_entry(cron):
    one = entry("* * * * * *", made=worker(perform=lambda self, mode="x": None))
    scheduler = cron.scheduler(one)
    cron.states.change_order("tick", lambda *_: Order(enabled=False, set_at=1.0))
    scheduler.step()
    begun = cron.states.read().states["tick"]
    scheduler.step()
    assert cron.states.read().states["tick"] == begun
    # The ticks while it was disabled are not missed.
    cron.states.change_order("tick", lambda *_: Order(args=["fast"], set_at=2.0))
    cron.redis.hset(
        cron_keys.cron_states("default"), "tick", begun.raw.replace(str(begun.tick).encode(), b"1700000000")
    )
    cron.scheduler(one).step()
    assert cron.pushed() == []
    again = cron.scheduler(one)
    until(lambda: again.step() is not None and cron.pushed(), "a job with other arguments")
    assert cron.pushed()[0]["args"] == ["fast"]
    assert not cron.events.of("missed")


def test_unreadable_order_counts_as_not_given(cron):
    one = entry()
    cron.settled(one, MINUTE_AGO)
    cron.redis.hset(cron_keys.cron_orders("default"), "tick", json.dumps({"cron": "nonsense"}))
    cron.scheduler(one).step()
    assert cron.pushed()
    assert cron.events.of("unreadable_order") == [["tick"]]


def test_only_the_leader_pushes(cron, redis, redis_url):
    one = entry()
    cron.settled(one, MINUTE_AGO)
    other = Cron(redis_url, redis, "host:2:b")
    leader, follower = cron.scheduler(entry(name="else")), other.scheduler(one)
    leader.step()
    assert follower.step() > 1
    assert cron.pushed() == []
    assert (leader.leadership.leads, follower.leadership.leads) == (True, False)
    leader.release()
    follower.step()
    assert cron.pushed()
    assert redis.get(cron_keys.leader("default")) == b"host:2:b"
    # The lease of another process is not released.
    leader.leadership._until = float("inf")
    leader.release()
    assert redis.get(cron_keys.leader("default")) == b"host:2:b"
    other.shard.close()


def test_ending_process_gives_up_the_lease(cron, redis):
    scheduler = cron.scheduler(entry())
    scheduler.step()
    scheduler.may_lead = False
    scheduler.step()
    assert not redis.exists(cron_keys.leader("default"))
    assert cron.events.of("leader") == [[True], [False]]


def test_process_without_entries_leads_only_when_asked(cron, redis):
    scheduler = cron.scheduler()
    scheduler.step()
    assert not redis.exists(cron_keys.leader("default"))
    assert scheduler.leadership.ask() is False
    scheduler.step()
    assert scheduler.leadership.ask() is True


def test_lease_is_taken_on_a_full_server(cron, redis):
    with full_memory(redis):
        assert cron.scheduler().leadership.renew()


def test_outage_is_raised_and_states_are_read_again(cron):
    one = entry()
    cron.settled(one, MINUTE_AGO)
    scheduler = cron.scheduler(one)

    def outage(entry, tick):
        raise RedisConnectionError("gone")

    scheduler._jobs = SimpleNamespace(make=outage)
    with pytest.raises(RedisConnectionError):
        scheduler.step()
    assert scheduler._snapshot is None
