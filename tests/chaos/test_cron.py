"""Kill the leader and Redis while a schedule pushes jobs: each tick is one job."""

import json
import os
import signal
import time
from collections import Counter
from contextlib import suppress
from typing import NamedTuple

import pytest
from redis.exceptions import RedisError

from framework.features.cron import keys
from framework.features.cron.store import CronStates
from tests.harness import until

ENTRIES = {
    "secondly": {"cron": "* * * * * *", "class": "NoteWorker", "args": ["a"], "missed": "all"},
    "evenly": {"cron": "*/2 * * * * *", "class": "NoteWorker", "args": ["b"], "missed": "all", "spread": 7},
}
ADDED = {"cron": "*/3 * * * * *", "class": "NoteWorker", "args": ["c"], "missed": "all", "added_by": "operator"}
"""Added at run time, after the processes have started."""
STEPS = {"secondly": 1, "evenly": 2, "added": 3}
"""Seconds between the ticks of each entry."""
LEADER = keys.leader("default")
NEW_LEADER_S = 10.0
"""Promised after the death of a leader."""


def cron_worker(scene):
    """Start a process that leads, and leaves the jobs of the schedule in their queue."""
    # With all modules of the application there is one lease.
    return scene.worker("-q", "other", "-c", "1", FRAMEWORK_WORKERS_MODULE="jobs")


def leader_of(scene, processes):
    """Return the process that leads, None without one."""
    try:
        identity = scene.client.get(LEADER)
    except (RedisError, OSError):
        return None
    pid = int(identity.split(b":")[1]) if identity else 0
    return next((one for one in processes if one.pid == pid and one.popen.poll() is None), None)


def pushed_ticks(scene):
    return Counter((job["cron"]["name"], job["cron"]["tick"]) for job in scene.jobs_of("default"))


class Account(NamedTuple):
    """The ticks of a campaign: those since the start of each entry, and the result of each."""

    expected: int
    enqueued: int
    doubled: list[tuple[str, int]]
    missed: list[tuple[str, int]]
    unexpected: list[tuple[str, int]]


def account_of(scene, begun):
    """Compare the jobs with the ticks from the first one of each entry up to its last settled one."""
    states = CronStates(scene.client, "default").read().states
    found = pushed_ticks(scene)
    expected = {
        (name, tick)
        for name, first in begun.items()
        for tick in range(first + 1, states[name].tick + 1)
        if tick % STEPS[name] == 0
    }
    return Account(
        len(expected),
        found.total(),
        sorted(tick for tick, count in found.items() if count > 1),
        sorted(expected - found.keys()),
        sorted(found.keys() - expected),
    )


def check_ticks(scene, begun):
    """Check that every tick since the begin is one job; return the account."""
    account = account_of(scene, begun)
    assert account.enqueued == account.expected, account
    assert not [*account.doubled, *account.missed, *account.unexpected], account
    return account


def begin(scene, processes):
    """Return the tick at which each entry began, once it has jobs."""
    scene.site.write("schedule.yml", {"schedule": ENTRIES})
    processes += [cron_worker(scene)]
    processes[0].ready()
    scene.client.hset(keys.cron_entries("default"), "added", json.dumps(ADDED))
    until(lambda: {name for name, _ in pushed_ticks(scene)} == set(STEPS), "the first ticks", 30)
    return {name: min(tick for one, tick in pushed_ticks(scene) if one == name) - 1 for name in STEPS}


@pytest.mark.campaign
@pytest.mark.proves("F43", "R35", "R48", "I11")
def test_killed_leader_has_a_successor_and_each_tick_one_job(scene):
    processes = []
    begun = begin(scene, processes)
    processes += [cron_worker(scene).ready() for _ in range(2)]
    killed = leader_of(scene, processes)
    killed.kill()
    at = time.monotonic()
    until(lambda: leader_of(scene, processes), "a new leader", NEW_LEADER_S + 5)
    assert time.monotonic() - at < NEW_LEADER_S + 3
    # One that stops gives up the lease.
    stopped = leader_of(scene, processes)
    assert stopped.end() == 0
    until(lambda: leader_of(scene, processes), "another leader", NEW_LEADER_S)
    at_least = time.time()
    until(lambda: max(tick for _, tick in pushed_ticks(scene)) > at_least, "ticks go on")
    last = leader_of(scene, processes)
    assert last.end() == 0
    assert check_ticks(scene, begun).expected > 5


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.proves("F43", "R48", "R49", "I11")
def test_leader_killed_again_and_again_and_redis_restarts(scene, measured):
    """Run for ``CRON_CAMPAIGN_S`` seconds, 60 without the variable. ``--junitxml`` shows the account."""
    count, seconds, period_s = 20, float(os.environ.get("CRON_CAMPAIGN_S", "60")), 5
    processes = []
    begun = begin(scene, processes)
    processes += [cron_worker(scene) for _ in range(count - 1)]
    end, rounds, restarts = time.monotonic() + seconds, 0, 0
    while time.monotonic() < end:
        time.sleep(period_s)
        rounds += 1
        if rounds % 4 == 0:
            (scene.server.kill if restarts % 2 else scene.server.stop)()
            time.sleep(2)
            scene.server.start()
            restarts += 1
            continue
        killed = until(lambda: leader_of(scene, processes), "a leader", 60)
        if rounds % 4 == 3:
            # A suspended leader wakes up later, and believes that it still leads.
            killed.send(signal.SIGSTOP)
            until(lambda old=killed: leader_of(scene, processes) not in (None, old), "a new leader", 60)
            killed.send(signal.SIGCONT)
        else:
            killed.kill()
            processes.append(cron_worker(scene))
    until(lambda: leader_of(scene, processes), "a leader at the end", 60)
    now = time.time()
    until(lambda: max(tick for _, tick in pushed_ticks(scene)) >= now, "the last ticks", 90)
    for one in processes:
        with suppress(ProcessLookupError):
            one.send(signal.SIGTERM)
    for one in processes:
        one.wait()
    lines = [line for one in processes for line in one.lines]
    account = account_of(scene, begun)
    latest = max(line["late_s"] for line in lines if line.get("event_name") == "cron.pushed")
    measured("ticks", account.expected)
    measured("enqueued", account.enqueued)
    measured("doubled", len(account.doubled))
    measured("missed", len(account.missed))
    measured("kills", rounds - restarts)
    measured("restarts", restarts)
    measured("latest", latest)
    check_ticks(scene, begun)
    assert not [line for line in lines if line.get("event_name") == "cron.missed"]
