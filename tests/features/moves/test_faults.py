"""Kill movers and producers, or cut them off, at each call of the scripts for locks, for jobs set aside, and for refused jobs."""

import pytest
from redis.exceptions import ConnectionError as CutError

from framework.errors import ShardUnavailableError, TargetRefusedError
from framework.features.moves.mover import MoveProgress
from framework.store.steps import UNPACED
from framework.wire import keys
from framework.wire.sub_queues import aside_list
from tests.features.moves.test_equal_jobs import Movable, movable
from tests.features.moves.test_mover import (
    MOVED,
    QUEUE,
    begin,
    job,
    jobs_of,
    moves_away,
    opened_moves,
    run,
    small_pages,
    waiting,
)
from tests.harness import forked
from tests.migrate.ways import EACH_WAY
from tests.proofs.crash_points.wire import Fault, Line, install

__all__ = ["movable", "small_pages"]

CUT = (OSError, CutError)


class Faults:
    """Run a step in a process of its own, once for each first call of some scripts, with a fault at the call."""

    def __init__(self, folder, way, scripts):
        self._sent, self._way, self._scripts = folder / "sent", way, scripts

    def run(self, act, fault=None):
        def child():
            with self._sent.open("w", buffering=1) as file:
                install(Line(fault, lambda _number, name: file.write(f"{name}\n"), lambda: False, greetings=False))
                act()

        status = forked(child)
        assert (status != 0) == (fault is not None and fault.kills), status

    def cases(self, case):
        """Call ``case`` with a function that runs an act with each fault."""
        for _ in range(2):  # the servers know the scripts from the second time on
            case(self.run)
        sent = self._sent.read_text().split()
        assert self._scripts <= set(sent), sent
        for number in sorted(sent.index(name) + 1 for name in self._scripts):
            case(lambda act, number=number: self.run(act, Fault(number, self._way)))


def guarded_run(urls, errors):
    """Carry a move on; a cut connection or a refusal ends it."""
    moves = opened_moves(*urls)
    try:
        moves.run(moves.records[0], MoveProgress(), UNPACED)
    except errors:
        return


@pytest.mark.proves("I1", "I2", "F1")
@pytest.mark.parametrize("way", EACH_WAY)
def test_fault_of_a_mover_of_locks_and_jobs_aside(
    redis, second_redis, redis_url, second_redis_url, small_pages, tmp_path, way
):
    urls = (redis_url, second_redis_url)
    locked = [job(serial, idempotency_key=keys.lock(str(serial))) for serial in range(7)]
    aside = [job(serial, "StayWorker" if serial == 103 else MOVED) for serial in range(100, 107)]
    beside = aside_list("old", MOVED)

    def case(act):
        redis.flushall()
        second_redis.flushall()
        for serial in range(7):
            redis.hset(keys.lock(str(serial)), mapping={"v": 1, "jid": f"{serial:024x}", "class": MOVED, "since": "1"})
            redis.pexpire(keys.lock(str(serial)), 500_000)
        redis.lpush(QUEUE, *locked)
        redis.sadd(keys.QUEUES, "old", beside)
        redis.sadd(keys.ASIDE, beside)
        redis.lpush(keys.queue(beside), *aside)
        moves = opened_moves(*urls)
        begin(moves)
        act(lambda: guarded_run(urls, CUT))
        moves.read()
        run(moves, moves.records[0])
        assert waiting(second_redis) == [*filter(moves_away, aside), *locked]
        assert waiting(redis, keys.queue(beside)) == [aside[3]]
        for serial in range(7):
            name = keys.lock(str(serial))
            assert second_redis.hget(name, "jid") == f"{serial:024x}".encode()
            assert redis.hgetall(name) == {b"moved": b""}
            assert not second_redis.hexists(name, "moved")

    Faults(tmp_path, way, {"moves/take_aside", "moves/mark_locks", "moves/page", "moves/receive"}).cases(case)


@pytest.mark.proves("I1", "I2", "F1")
@pytest.mark.parametrize("way", EACH_WAY)
def test_fault_of_a_mover_whose_target_refuses(
    redis, second_redis, redis_url, second_redis_url, small_pages, tmp_path, way
):
    urls, jobs = (redis_url, second_redis_url), jobs_of(14)

    def case(act):
        redis.flushall()
        second_redis.flushall()
        redis.lpush(QUEUE, *jobs)
        second_redis.set(QUEUE, "no list")
        moves = opened_moves(*urls)
        begin(moves)
        act(lambda: guarded_run(urls, (*CUT, TargetRefusedError)))
        second_redis.delete(QUEUE)
        moves.read()
        run(moves, moves.records[0])
        assert waiting(second_redis) == [*filter(moves_away, jobs)]
        assert waiting(redis) == [data for data in jobs if not moves_away(data)]

    Faults(tmp_path, way, {"migrate", "moves/page", "moves/receive", "moves/restore"}).cases(case)


@pytest.mark.proves("I1", "F1")
@pytest.mark.parametrize("way", EACH_WAY)
def test_fault_of_a_push_to_the_new_shard(movable: Movable, redis, redis_url, tmp_path, way):
    """A caller that hears of no write repeats its push: of equal jobs one waits, here or there."""
    urls = (redis_url, f"{redis_url}?db=1")

    def push():
        client = movable._producer(urls)
        movable.learn(client)
        for number in (1, 2):
            while True:
                try:
                    movable.push(client, number)
                    break
                except ShardUnavailableError:
                    continue

    def case(act):
        redis.flushall()
        movable.moves._records.clear()
        movable.old._known_moves, movable.new._known_moves = (
            type(movable.old._known_moves)(),
            type(movable.new._known_moves)(),
        )
        first = movable.push(movable.old, 1)
        movable.begin()
        act(push)
        assert movable.push(movable.new, 1) is None
        movable.push(movable.new, 2)
        assert movable.jids("main") == [first]
        assert len(movable.jids("second")) == 1

    Faults(tmp_path, way, {"find_owners", "push_unique"}).cases(case)
