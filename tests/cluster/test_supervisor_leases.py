"""Test a parent's renewal of its children's leases, on a real Redis with real processes."""

import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from framework.cluster.supervisor import ChildLeases, can_run
from framework.process.heartbeat import ProcessLease
from framework.process.signals import SWEEP
from framework.recover.reaper import FailureDetector
from framework.store.connect import Endpoint, open_client
from framework.timings import STANDARD
from framework.wire import keys
from tests.harness import until

IDENTITY = "host:1:000000000abc"
SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]


class Reports:
    def __init__(self):
        self.failed, self.back, self.dead = [], [], []

    def redis_failed(self, component, error):
        self.failed.append(component)

    def redis_answered(self, component):
        self.back.append(component)

    def component_died(self, component, error):
        self.dead.append(error)


class ChildrenRecorder:
    """Stand for the supervisor: hold the children, and record kills and signals."""

    def __init__(self):
        self.children, self.killed, self.signals = {}, [], []

    def live_pids(self, shard):
        assert shard == "main"
        return self.children

    def kill_stuck(self, identity, silent_s):
        self.killed.append((identity, silent_s))

    def forward(self, number, shard):
        self.signals.append((number, shard))


@pytest.fixture
def group():
    return ChildrenRecorder()


@pytest.fixture
def reports():
    return Reports()


SHORT_PERIODS = replace(STANDARD, child_renewal_period_s=0.02, heartbeat_period_s=0.025, silence_limit_s=60.0)


@pytest.fixture
def start_leases(redis, group, reports):
    made = []

    def make(client=redis, **options):
        made.append(ChildLeases("main", client, reports, replace(SHORT_PERIODS, **options)))
        made[-1].start(group)
        return made[-1]

    yield make
    for one in made:
        one.stop()
    assert not reports.dead


@pytest.fixture
def sleeper(group):
    process = subprocess.Popen(SLEEPER)
    group.children[IDENTITY] = process.pid
    yield process
    process.kill()
    process.wait()


def registered(redis, silent_s=10.0, lease_ms=9_000):
    """Register a child whose last heartbeat is old and whose lease expires soon."""
    ProcessLease(redis, IDENTITY, 2, FailureDetector(15.0, 3.0), replace(STANDARD, lease_s=lease_ms / 1000)).renew()
    redis.zadd(keys.REGISTRY, {IDENTITY: redis.time()[0] - silent_s})


@pytest.mark.proves("R23")
def test_child_leases_late_child_keeps_its_lease(redis, granted, start_leases, sleeper):
    registered(granted)
    start_leases()
    until(lambda: redis.pttl(keys.lease(IDENTITY)) > 10_000)


@pytest.mark.proves("F6")
def test_child_leases_stopped_child_expires_and_is_not_killed(redis, granted, start_leases, group, sleeper):
    sleeper.send_signal(signal.SIGSTOP)
    until(lambda: not can_run(sleeper.pid))
    registered(granted, lease_ms=300)
    start_leases(silence_limit_s=0.0)
    until(lambda: not redis.exists(keys.lease(IDENTITY)), "the lease runs out")
    assert not group.killed
    sleeper.send_signal(signal.SIGCONT)
    until(lambda: group.killed)  # the child runs, but its silence exceeds the limit


@pytest.mark.proves("R69")
def test_child_leases_silent_child_is_killed_not_renewed(redis, granted, start_leases, group, sleeper):
    registered(granted, lease_ms=60_000)
    # After two missed renewals the parent begins to observe again: short periods miss some all the time on a loaded machine.
    start_leases(silence_limit_s=1.0, child_renewal_period_s=0.5)
    until(lambda: group.killed)
    assert group.killed[0] == (IDENTITY, 1)  # the silence counts from the parent's first answer of Redis
    assert redis.pttl(keys.lease(IDENTITY)) <= 60_000


@pytest.mark.proves("F7")
def test_child_leases_after_an_outage_are_renewed(make_server, start_leases, group, reports, sleeper):
    server = make_server()
    # A short time-out for the calls that shall fail, and not for those of the test.
    keeper, client = (open_client(Endpoint(server.url), name="keeper", read_timeout_s=limit) for limit in (0.2, 20.0))
    registered(client, lease_ms=400)
    start_leases(keeper)
    os.kill(server.pid, signal.SIGSTOP)
    until(lambda: len(reports.failed) > 3)
    os.kill(server.pid, signal.SIGCONT)
    until(lambda: reports.back)
    assert client.pttl(keys.lease(IDENTITY)) > 10_000
    keeper.close()
    client.close()


def test_child_leases_lease_expired_with_redis_up_stays_gone(redis, granted, start_leases, sleeper):
    registered(granted)
    redis.delete(keys.lease(IDENTITY))
    start_leases()

    def checks():
        return redis.info("commandstats").get("cmdstat_zmscore", {"calls": 0})["calls"]

    before = checks()
    until(lambda: checks() > before + 3, "the parent has checked the leases")
    assert not redis.exists(keys.lease(IDENTITY))


def test_child_leases_death_is_marked_and_siblings_sweep(redis, granted, start_leases, group):
    registered(granted, lease_ms=60_000)
    redis.sadd(keys.PROCESSES, IDENTITY)
    one = start_leases(child_renewal_period_s=60.0)
    until(lambda: one._task.steps == 2, "the renewal thread waits")
    one.mark_dead(IDENTITY)
    until(lambda: group.signals)
    assert group.signals == [(SWEEP, "main")]
    assert not redis.exists(keys.lease(IDENTITY), keys.PROCESSES)
    assert redis.zscore(keys.REGISTRY, IDENTITY) < 0


def test_child_leases_death_in_outage_is_marked_afterwards(make_server, start_leases, group, reports):
    server = make_server()
    client = open_client(Endpoint(server.url), name="keeper")
    registered(client, lease_ms=60_000)
    one = start_leases(client)
    server.stop()
    one.mark_dead(IDENTITY)
    until(lambda: reports.failed)
    server.start()
    until(lambda: group.signals)
    assert client.zscore(keys.REGISTRY, IDENTITY) < 0
    client.close()


def test_child_leases_stop_marks_the_last_death(redis, granted, start_leases):
    registered(granted, lease_ms=60_000)
    one = start_leases(child_renewal_period_s=60.0)
    until(lambda: one._task.steps == 2)
    one.stop()
    one.mark_dead(IDENTITY)  # the renewal thread has ended
    one.stop()
    assert not redis.exists(keys.lease(IDENTITY))


def test_sweep_signal_without_handler_is_ignored(sleeper):
    sleeper.send_signal(SWEEP)
    sleeper.send_signal(signal.SIGTERM)
    assert sleeper.wait(10) == -signal.SIGTERM


def test_can_run_is_false_for_stopped_and_dead_processes(sleeper):
    assert can_run(sleeper.pid)
    sleeper.send_signal(signal.SIGSTOP)
    until(lambda: not can_run(sleeper.pid))
    sleeper.kill()
    until(lambda: not can_run(sleeper.pid))
    assert can_run(0)  # an unknown process counts as running
