"""Move classes that are paused, dropped, deferred, or whose breaker is open: nothing of it ends because the jobs move."""

import pytest

from framework.errors import TargetRefusedError
from framework.features.breaker.keys import breaker
from framework.features.breaker.store import close_breaker, open_breaker, read_breaker
from framework.features.flags.flag import Flag, drop_flag, pause_flag, run_flag
from framework.features.flags.redis_flags import read_flags, set_flag, unset_flag
from framework.features.moves import class_controls as module
from framework.features.moves.mover import MoveProgress
from framework.features.results.keys import result_facts
from framework.store.steps import UNPACED
from framework.wire import keys
from tests.features.moves.test_mover import MOVED, QUEUE, begin, job, moves, run, small_pages, waiting
from tests.harness import full_memory

__all__ = ["moves", "small_pages"]


@pytest.fixture(autouse=True)
def waits(monkeypatch):
    """The waits until processes follow a flag; each wait has its time, and no job may have come before."""
    seen = []
    monkeypatch.setattr(module.time, "sleep", seen.append)
    return seen


def test_move_takes_flags_of_its_classes_first(moves, redis, second_redis, waits):
    flag = Flag(pause_flag(MOVED), 50, "slow", "ann")
    set_flag(redis, flag, 600)
    set_flag(redis, Flag(drop_flag(MOVED), 100), None)
    set_flag(redis, Flag(pause_flag("StayWorker"), 100), None)
    # What the target has decided itself stays.
    set_flag(second_redis, Flag(drop_flag(MOVED), 1), None)
    redis.lpush(QUEUE, *[job(serial) for serial in range(12)], job(13, "StayWorker"))
    record = begin(moves)
    run(moves, record)
    found = read_flags(second_redis)
    assert found.keys() == {pause_flag(MOVED), drop_flag(MOVED)}
    assert (found[flag.name].percentage, found[flag.name].reason, found[flag.name].set_by) == (50, "slow", "ann")
    assert found[flag.name].expires_at == read_flags(redis)[flag.name].expires_at
    assert found[drop_flag(MOVED)].percentage == 1
    assert len(waiting(second_redis)) == 12
    assert waits == [module.FOLLOWED_S]
    # Later an operator ends the pause on the target: what still arrives meets no pause.
    unset_flag(second_redis, flag.name)
    redis.lpush(QUEUE, job(50))
    run(moves, moves.end(record))
    assert flag.name not in read_flags(second_redis)
    assert len(waiting(second_redis)) == 13


def test_move_of_a_queue_takes_flags_of_each_of_its_classes(moves, redis, second_redis, monkeypatch):
    monkeypatch.setattr("framework.features.moves.plan.registry.find", lambda _name: None)
    set_flag(redis, Flag(run_flag("One"), 0), None)
    set_flag(redis, Flag(run_flag("Two"), 0), None)
    set_flag(redis, Flag(run_flag("Three"), 0), None)
    controls = module.ClassControls(begin(moves, "queue", "old"), *moves._shards.values())
    assert controls.carry([job(1, "One"), job(2, "One"), b"\xff", b'{"class": 1}'])
    assert read_flags(second_redis).keys() == {run_flag("One")}
    assert not controls.carry([job(3, "One")])
    assert controls.carry([job(4, "Two")])
    assert read_flags(second_redis).keys() == {run_flag("One"), run_flag("Two")}


def test_move_takes_an_open_breaker(moves, redis, second_redis):
    open_breaker(redis, MOVED, "three deaths", 300)
    redis.lpush(QUEUE, job(1))
    record = begin(moves)
    run(moves, record)
    found = read_breaker(second_redis, MOVED)
    assert (found.state, found.reason) == ("open", "open on main: three deaths")
    assert found.probes_at == pytest.approx(read_breaker(redis, MOVED).probes_at, abs=30)
    # One that is closed there later stays closed, and a breaker of the target is left alone.
    close_breaker(second_redis, MOVED)
    redis.lpush(QUEUE, job(2))
    run(moves, moves.end(record))
    assert read_breaker(second_redis, MOVED).state == "closed"


def test_damaged_flags_and_breakers_stop_no_move(moves, redis, second_redis):
    redis.set(keys.FLAGS, "no hash")
    redis.set(breaker(MOVED), "no hash")
    redis.lpush(QUEUE, job(1))
    run(moves, begin(moves))
    assert waiting(second_redis) == [job(1)]


def test_full_target_refuses_the_jobs_of_a_broken_class(moves, redis, second_redis):
    open_breaker(redis, MOVED, "three deaths", 300)
    redis.lpush(QUEUE, job(1))
    with full_memory(second_redis), pytest.raises(TargetRefusedError, match="maxmemory"):
        moves.run(begin(moves), MoveProgress(), UNPACED)
    assert waiting(redis) == [job(1)]


def test_move_takes_the_facts_of_a_call(moves, redis, second_redis):
    redis.lpush(QUEUE, job(1, aw_result=[60, "caller"]))
    redis.set(result_facts(f"{1:024x}"), "facts", ex=500)
    run(moves, begin(moves))
    assert second_redis.get(result_facts(f"{1:024x}")) == b"facts"
    assert 400 < second_redis.ttl(result_facts(f"{1:024x}")) <= 500
    assert not redis.exists(result_facts(f"{1:024x}"))
