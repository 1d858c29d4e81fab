"""Kill the leader and Redis while a schedule pushes jobs: each tick is one job."""

import os
import signal
import time
from collections import Counter
from contextlib import suppress

import pytest
from redis.exceptions import RedisError

from framework.cron.states import CronStates
from framework.wire import keys
from tests.harness import until

ENTRIES = {
    "secondly": {"cron": "* * * * * *", "class": "NoteWorker", "args": ["a"], "missed": "all"},
    "evenly": {"cron": "*/2 * * * * *", "class": "NoteWorker", "args": ["b"], "missed": "all"},
}
LEADER = keys.leader("default")
NEW_LEADER_S = 10.0
"""Promised after the death of a leader."""


def cron_worker(scene):
    """Start a process that leads, and leaves the jobs of the schedule in their queue."""
    return scene.worker("-q", "other", "-c", "1")


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


def check_ticks(scene, begun):
    """Check that every tick since the begin is one job; return the number of ticks."""
    states = CronStates(scene.client, "default").read().states
    found = pushed_ticks(scene)
    assert not {tick: count for tick, count in found.items() if count > 1}
    expected = {
        (name, tick)
        for name, step in (("secondly", 1), ("evenly", 2))
        for tick in range(begun[name] + 1, states[name].tick + 1)
        if tick % step == 0
    }
    assert found.keys() == expected
    return len(expected)


def begin(scene, processes):
    """Return the tick at which each entry began, once it has jobs."""
    scene.site.write("schedule.yml", {"schedule": ENTRIES})
    processes += [cron_worker(scene)]
    processes[0].ready()
    until(lambda: {name for name, _ in pushed_ticks(scene)} == set(ENTRIES), "the first ticks")
    return {name: min(tick for one, tick in pushed_ticks(scene) if one == name) - 1 for name in ENTRIES}


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
    assert check_ticks(scene, begun) > 5


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.proves("F43", "R48", "R49", "I11")
def test_leader_killed_again_and_again_and_redis_restarts(scene, measured):
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
            # A suspended leader wakes up later, and believes to lead.
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
    expected = check_ticks(scene, begun)
    lines = [line for one in processes for line in one.lines]
    assert not [line for line in lines if line.get("event_name") == "cron.missed"]
    measured("ticks", expected)
    measured("kills", rounds - restarts)
    measured("restarts", restarts)
    measured("latest", max(line["late_s"] for line in lines if line.get("event_name") == "cron.pushed"))
