"""Test the checks of the rounds of limits: each way to break a promise is found."""

from random import Random

import pytest

from tests.chaos.rounds.effects import ASIDE, BEGUN, ENDED, Effect
from tests.chaos.rounds.faults import Injection
from tests.chaos.rounds.policy_load import RUNNING, PolicyLoad, Push

BEGAN, S = 1_000.0, 10.0


@pytest.fixture
def policy_load(redis, short_path):
    made = PolicyLoad(None, redis, short_path, S, Random(1))
    made._limits = [(0.0, 2), (BEGAN + 4, 1)]
    made.begin(BEGAN)
    return made


def ran(serial, begun, ended=None, pid=1):
    effects = [Effect(BEGUN, serial, pid, BEGAN + begun)]
    return effects + ([Effect(ENDED, serial, pid, BEGAN + ended)] if ended is not None else [])


def found(policy_load, *effects, aside=(), injections=()):
    return policy_load.found(
        [one for own in effects for one in own], [one for own in aside for one in own], injections, 1.0
    )


def test_account_finds_more_jobs_than_the_limit(policy_load):
    seen = found(policy_load, ran(0, 1, 3), ran(1, 2, 3.5), ran(2, 3, 4))
    assert (seen.most_running, seen.over) == (2, [])
    assert seen.per_second == 3 / 8
    seen = found(policy_load, ran(0, 1, 3), ran(1, 2, 3), ran(2, 2.5, 4))
    assert (seen.most_running, len(seen.over)) == (3, 1)
    assert "3 at 1002.500 with a limit of 2" in seen.over


def test_lowered_limit_holds_after_a_delay(policy_load):
    assert not found(policy_load, ran(0, 5, 9), ran(1, 6.5, 9)).over
    assert len(found(policy_load, ran(0, 5, 9), ran(1, 7.5, 9)).over) == 1


def test_account_ends_runs_of_killed_processes(policy_load):
    injection = Injection("kill", 1, BEGAN + 2)
    assert not found(
        policy_load, ran(0, 1), ran(1, 1), ran(0, 2.1, 3, pid=2), ran(1, 2.1, 3, pid=2), injections=[injection]
    ).over
    assert found(policy_load, ran(0, 1), ran(1, 1), ran(2, 2.1, 3, pid=2)).over


def push(policy_load, key, at, *, accepted):
    made = Push(key, BEGAN + at, BEGAN + at + 0.01, accepted)
    policy_load.pushes.append(made)
    if accepted:
        policy_load.accepted.append(made)


def test_account_finds_equal_jobs_and_leaked_locks(policy_load):
    push(policy_load, 0, 1, accepted=True)
    push(policy_load, 0, 2, accepted=False)
    push(policy_load, 0, 4, accepted=True)
    push(policy_load, 1, 4, accepted=True)
    well = [ran(ASIDE, 1.1, 3), ran(ASIDE + 1, 4.1, 5), ran(ASIDE + 2, 4.2, 5)]
    seen = found(policy_load, aside=well)
    assert (seen.equal_jobs, seen.stale, seen.pushes, seen.dropped, seen.keyed.lost) == ([], [], 4, 1, [])
    assert found(policy_load, aside=[ran(ASIDE, 1.1, 4.5), *well[1:]]).equal_jobs
    assert found(policy_load, aside=well[:2]).keyed.lost == [2]
    push(policy_load, 0, 7, accepted=False)
    (stale,) = found(policy_load, aside=well).stale
    assert stale == "key 0 at 1007.000, 2.000 s after the last job of it"


def test_account_finds_leftover_keys(policy_load, redis):
    assert found(policy_load).left == []
    redis.hset("aw:lock:d", "jid", "j")
    redis.zadd(RUNNING, {"me j": 1})
    redis.zadd("aw:paused_jobs:A", {b'["q"]\n{}': 1})
    assert len(found(policy_load).left) == 3


def test_account_finds_jobs_started_in_a_pause(policy_load):
    push(policy_load, 0, 1, accepted=True)
    policy_load._pauses = [BEGAN, BEGAN + 12]
    assert not found(policy_load, aside=[ran(ASIDE, 8, 9)]).paused
    assert found(policy_load, aside=[ran(ASIDE, 10, 11)]).paused == ["0 at 1010.000"]
    assert not found(policy_load, aside=[ran(ASIDE, 12.5, 13)]).paused
