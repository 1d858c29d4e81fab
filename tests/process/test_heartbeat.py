"""Check leases, periodic tasks, the watchdog, and two processes whose Redis is away for longer than their leases."""

import os
import signal
import threading
import time
from dataclasses import replace

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ReadOnlyError, ResponseError

from framework.declare import registry
from framework.process.heartbeat import PeriodicTask, ProcessLease, Watchdog
from framework.recover.reaper import FailureDetector, Reaper
from framework.store.script import RENEW_CHILDREN
from framework.timings import STANDARD
from framework.wire import keys
from framework.wire.keys import SetLimits
from tests.harness import IDENTITY, encoded, hold, opened, until


class RecordedEvents:
    """Record the failures, recoveries and deaths that tasks report."""

    def __init__(self):
        self.failed, self.back, self.dead = [], [], []

    def redis_failed(self, component, error):
        self.failed.append(error)

    def redis_answered(self, component):
        self.back.append(component)

    def component_died(self, component, error):
        self.dead.append(error)


@pytest.fixture
def events():
    return RecordedEvents()


@pytest.fixture
def loop(events):
    made = []

    def make(step, period_s=60.0, **options):
        made.append(PeriodicTask("test", step, period_s, events, **options))
        made[-1].start()
        return made[-1]

    yield make
    for one in made:
        one.request_stop()


# --- periodic tasks --------------------------------------------------------------------------------------------------


def test_periodic_task_run_now_steps_at_once_and_stop_ends(loop):
    steps = []
    one = loop(lambda: steps.append(1))
    until(lambda: len(steps) == 1)
    one.run_now()
    until(lambda: len(steps) == 2)
    one.stop()
    assert not one._thread.is_alive()
    assert len(steps) == 2


def test_periodic_task_step_may_set_the_next_period(loop):
    steps = []
    loop(lambda: steps.append(1) or 0.001)
    until(lambda: len(steps) > 5)


@pytest.mark.parametrize("error", [RedisConnectionError("gone"), ReadOnlyError("replica"), OSError(104, "reset")])
def test_periodic_task_redis_error_is_reported_and_retried(loop, events, error):
    left = [error, error, error]

    def step():
        if left:
            raise left.pop()

    loop(step)  # its period is a minute
    until(lambda: events.back == ["test"])
    assert events.failed == [error] * 3
    assert not events.dead


@pytest.mark.proves("R4")
def test_periodic_task_other_error_ends_it(loop, events):
    def step():
        raise ValueError("a bug")

    loop(step)
    until(lambda: events.dead)
    assert str(events.dead[0]) == "a bug"


@pytest.mark.proves("R10")
def test_periodic_task_refusal_resolves_the_address_again(loop, events, redis, redis_url):
    shard = opened(redis_url)
    name = []

    def step():
        name.append(shard.client.client_id())
        if len(name) < 3:
            raise ReadOnlyError("You can't write against a read only replica.")

    loop(step, client=shard.client)
    until(lambda: len(name) == 3)
    assert len(set(name)) == 3  # another connection each time
    shard.close()


# --- the watchdog ---------------------------------------------------------------------------------------------------


@pytest.fixture
def hang():
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.proves("R1", "R72")
def test_watchdog_finds_a_task_over_its_limit(loop, hang):
    fine = loop(lambda: None, period_s=0.001)
    stuck = loop(hang.wait, limit_s=0.05)
    until(lambda: stuck.steps % 2)
    watchdog = Watchdog([fine, stuck], period_s=0.02)
    assert until(watchdog.check) is stuck


def test_watchdog_accepts_waiting_and_running_tasks(loop):
    resting = loop(lambda: None, limit_s=0.01)
    stepping = loop(lambda: 0.0, limit_s=0.01)
    watchdog = Watchdog([resting, stepping], period_s=0.005)
    until(lambda: stepping.steps > 10)
    for _ in range(60):
        assert watchdog.check() is None
        seen = stepping.steps
        until(lambda seen=seen: stepping.steps > seen + 2)


@pytest.mark.proves("F6")
def test_watchdog_after_a_frozen_process_reports_no_task(loop, hang, monkeypatch):
    stuck = loop(hang.wait, limit_s=60)
    until(lambda: stuck.steps % 2)
    watchdog = Watchdog([stuck])
    now = time.monotonic()
    watchdog.check()
    monkeypatch.setattr("framework.process.heartbeat.time.monotonic", lambda: now + 3600)
    assert watchdog.check() is None  # an hour went by with one check


# --- the lease ------------------------------------------------------------------------------------------------------


def test_lease_heartbeat_reports_whether_it_had_expired(redis, granted):
    lease = ProcessLease(granted, IDENTITY, 2, FailureDetector(15.0, 3.0))
    assert not lease.renew()  # it is new
    assert lease.renew()
    redis.delete(keys.lease(IDENTITY))
    assert not lease.renew()
    assert redis.hget(keys.process(IDENTITY), "slots") == b"2"


@pytest.mark.proves("F6", "R22")
def test_lease_frozen_process_counts_as_lost_despite_parent(redis, granted):
    lease = ProcessLease(granted, IDENTITY, 2, FailureDetector(0.05, 0.01), replace(STANDARD, lease_s=60.0))
    lease.renew()
    seconds = redis.zscore(keys.REGISTRY, IDENTITY)
    until(lambda: float(redis.time()[0]) + redis.time()[1] / 1e6 > seconds + 0.1)
    RENEW_CHILDREN(granted, [keys.REGISTRY, keys.lease(IDENTITY)], [60_000, 0, 120, 0, 0, IDENTITY])
    assert not lease.renew()
    assert lease.renew()


@pytest.mark.proves("R6")
def test_lease_without_registration_registers_again(redis, granted):
    lease = ProcessLease(granted, IDENTITY, 2, FailureDetector(15.0, 3.0))
    lease.renew()
    redis.flushall()
    assert not lease.renew()
    assert redis.zscore(keys.REGISTRY, IDENTITY)
    assert redis.hgetall(keys.process(IDENTITY)) == {b"slots": b"2"}


def unregistered_after(redis, lease, silent_s):
    """Return whether a process reports data loss after this silence and the loss of its lease and registration."""
    lease._failure_detector.record_heartbeat(float(redis.time()[0]) - silent_s, lease_held=True)
    redis.delete(keys.lease(IDENTITY))
    redis.zrem(keys.REGISTRY, IDENTITY)
    lease.renew()
    return lease.data_loss is not None


@pytest.mark.proves("F8", "R61")
def test_lease_lost_registration_is_data_loss(redis, granted):
    lease = ProcessLease(granted, IDENTITY, 2, FailureDetector(15.0, 3.0))
    for _ in range(2):
        lease.renew()
        assert lease.data_loss is None  # not registered before the first heartbeat
    redis.flushall()
    lease.renew()
    assert lease.data_loss is not None
    assert lease.data_loss.restored_at is None
    lease.renew()
    assert lease.data_loss is None  # reported once
    ProcessLease(
        granted, "host:2:000000000def", 2, FailureDetector(15.0, 3.0)
    ).renew()  # heartbeats of another process arrive
    assert unregistered_after(redis, lease, STANDARD.unregister_after_s - 2)
    assert not unregistered_after(redis, lease, STANDARD.unregister_after_s + 2)  # in order
    redis.delete(keys.STEADY_SINCE)
    assert unregistered_after(redis, lease, STANDARD.unregister_after_s + 2)  # no other process could have removed it


@pytest.mark.proves("F8", "R61")
def test_lease_of_an_older_snapshot_is_data_loss(redis, granted):
    lease = ProcessLease(granted, IDENTITY, 2, FailureDetector(15.0, 3.0))
    lease.renew()
    now = float(redis.zscore(keys.REGISTRY, IDENTITY))
    redis.zadd(keys.REGISTRY, {IDENTITY: now - 11})  # as a snapshot of eleven seconds ago
    lease.renew()
    assert lease.data_loss is not None
    assert (lease.data_loss.written_at, lease.data_loss.restored_at) == pytest.approx((now, now - 11), abs=0.01)
    lease.renew()
    assert lease.data_loss is None  # reported once
    redis.zadd(keys.REGISTRY, {IDENTITY: -now})  # its parent took it for dead
    lease.renew()
    assert lease.data_loss is None
    redis.zadd(keys.REGISTRY, {IDENTITY: now + 60})  # the clock of Redis was set back
    for _ in range(2):
        lease.renew()
        assert lease.data_loss is None


# --- outages --------------------------------------------------------------------------------------------------------

LEASE_S, BEAT_S = 1.0, 0.2
TIMINGS = STANDARD.scaled(LEASE_S / STANDARD.lease_s)


class Member:
    """The lease and the reaper of one process, at a fifteenth of the usual periods."""

    def __init__(self, url, number):
        self.identity = f"host:{number}:000000000abc"
        self.shard = opened(url)
        self.grace = FailureDetector(LEASE_S, BEAT_S)
        self.recovered = []
        self.events = RecordedEvents()
        self.clients = clients = [
            self.shard.open_client(role, read_timeout_s=LEASE_S / 3) for role in ("lease", "upkeep")
        ]
        self.lease = ProcessLease(clients[0], self.identity, 2, self.grace, TIMINGS)
        self.reaper = Reaper(clients[1], self.recovered.append, self.grace, SetLimits(10, 60.0))
        self.lease.renew()
        self.tasks = [
            PeriodicTask("lease", lambda: self.lease.renew() and None, BEAT_S, self.events, client=clients[0]),
            PeriodicTask(
                "reaper", lambda: self.reaper.sweep(own=self.identity) and None, 0.01, self.events, client=clients[1]
            ),
        ]
        for loop in self.tasks:
            loop.start()

    def die(self):
        for loop in self.tasks:
            loop.stop()

    def close(self):
        self.die()
        for client in self.clients:
            client.close()


@pytest.fixture
def pair(make_server, monkeypatch):
    monkeypatch.setattr("framework.process.heartbeat._LONGEST_BACKOFF_S", 2.0 / 15)
    server = make_server()
    with registry.isolated():
        members = [Member(server.url, number) for number in (1, 2)]
        with server.open() as client:
            until(lambda: steady_s(client) > LEASE_S + BEAT_S, "heartbeats have arrived for long enough")
        yield server, members
        for member in members:
            member.close()


def clock(client):
    seconds, microseconds = client.time()
    return seconds + microseconds / 1e6


def steady_s(client):
    """Return for how long heartbeats have arrived without a gap, by the clock of Redis."""
    since = client.get(keys.STEADY_SINCE)
    return clock(client) - float(since) if since else 0.0


def freeze(server):
    """Stop the Redis process for longer than a lease; its clock goes on."""
    os.kill(server.pid, signal.SIGSTOP)
    ended = time.monotonic() + 1.4 * LEASE_S
    until(lambda: time.monotonic() > ended)
    os.kill(server.pid, signal.SIGCONT)


def restart(server):
    server.stop()
    ended = time.monotonic() + 1.4 * LEASE_S
    until(lambda: time.monotonic() > ended)
    server.start()


@pytest.mark.campaign
@pytest.mark.proves("F7", "R21")
@pytest.mark.parametrize("outage", [freeze, restart])
def test_lease_outage_beyond_lease_recovers_no_live_jobs(pair, outage):
    server, members = pair
    client = server.open()
    for member in members:
        hold(client, encoded(jid=member.identity), member.identity)
    outage(server)
    back = until(lambda: _try(lambda: clock(client)), "Redis is back")
    for member in members:
        until(lambda member=member: member.grace.steady_since > back - 0.5, "it has noticed")
        assert member.events.failed
    assert float(client.get(keys.STEADY_SINCE)) > back - 0.5  # it started again
    until(
        lambda: steady_s(client) > LEASE_S + BEAT_S + 0.1, "the steady time is long enough and both reapers have swept"
    )
    for member in members:
        assert client.llen(keys.working(member.identity)) == 1
        assert not member.recovered
        assert not member.events.dead
    first, second = members  # and recovery works again
    first.die()
    until(lambda: second.recovered, "the jobs of the dead process are recovered")
    assert [one.owner for one in second.recovered] == [first.identity]
    client.close()


def _try(ask):
    try:
        return ask()
    except (RedisConnectionError, OSError, ResponseError):
        return None
