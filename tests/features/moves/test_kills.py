"""Kill movers and workers while jobs move, go back, and are pushed: every job runs, and only a killed worker runs one twice."""

import itertools
from collections import Counter

import pytest

from framework.features.moves.keys import MOVED_COUNTS, MOVES
from framework.wire import keys
from tests.harness import encoded, until

JOBS, PUSHED = 5_000, 50
TO_SECOND = ("move", "--class", "NoopWorker", "--to", "second", "--rate", "1000")


class Field:
    """Two shards with a worker process each, and jobs that are pushed to both, the newest id last."""

    def __init__(self, site, redis, second_redis):
        self.site, self.redis = site, redis
        self.shards = {"main": redis, "second": second_redis}
        self.names = [f"{number:024}" for number in range(JOBS)]
        self._serials = iter(self.names)
        self.workers = {}
        self.kills = 0

    def push(self, count, shard="main"):
        jobs = [encoded("NoopWorker", jid=name) for name in itertools.islice(self._serials, count)]
        if jobs:
            self.shards[shard].sadd(keys.QUEUES, "default")
            self.shards[shard].lpush("queue:default", *jobs)

    def start(self, shard):
        self.workers[shard] = self.site.hurried_worker("-q", "default", "-c", "3", "--shard", shard).ready()

    def command(self, *words):
        return self.site.start("-m", "framework", "shards", *words, "-r", "jobs")

    def kill(self, process):
        process.kill()
        self.kills += 1

    @property
    def runs(self):
        return self.redis.llen("proof:noop")

    @property
    def moved(self):
        return sum(int(count) for one in self.shards.values() for count in one.hvals(MOVED_COUNTS))

    def kill_movers_of_waiting_jobs(self):
        """Nothing runs yet: each mover dies in the middle of its work, and the next one, or a worker process, goes on."""
        for _ in range(5):
            goal = min(self.moved + PUSHED, JOBS // 2)
            mover = self.command(*TO_SECOND)
            until(lambda goal=goal: self.moved >= goal, "jobs move", timeout_s=180)
            self.kill(mover)
            self.push(PUSHED)

    def kill_all_while_jobs_run(self):
        move = self.redis.hkeys(MOVES)[0].decode()
        for number in range(6):
            goal = min(self.runs + JOBS // 20, JOBS // 2)
            mover = self.command(*(("undo", move, "--rate", "1000") if number == 2 else TO_SECOND))
            self.push(PUSHED, "second" if number == 4 else "main")
            until(lambda goal=goal: self.runs >= goal, "jobs run", timeout_s=180)
            self.kill(mover)
            shard = ("main", "second")[number % 2]
            self.kill(self.workers[shard])
            self.start(shard)


@pytest.mark.campaign
@pytest.mark.timeout(1_200)
@pytest.mark.proves("I1", "I2")
def test_kills_of_movers_and_workers_lose_no_job(two_shards, redis, second_redis, record_property):
    field = Field(two_shards, redis, second_redis)
    for name, shard in field.shards.items():
        shard.sadd(keys.PAUSED, "default")
        field.start(name)
    field.push(JOBS // 2)
    field.kill_movers_of_waiting_jobs()
    for shard in field.shards.values():
        shard.srem(keys.PAUSED, "default")
    field.kill_all_while_jobs_run()
    field.push(JOBS)
    done = two_shards.run("-m", "framework", "shards", *TO_SECOND[:-2], "--json", "-r", "jobs", timeout_s=400)
    # The move is under way back, or has come back: it ends first, then another one may begin.
    assert done.returncode in (0, 1), done.stderr
    until(lambda: len(set(redis.lrange("proof:noop", 0, -1))) == JOBS, "all jobs ran", timeout_s=300)
    counts = Counter(redis.lrange("proof:noop", 0, -1))
    assert {name.decode() for name in counts} == set(field.names)
    doubled = sum(counts.values()) - JOBS
    for name, value in {"jobs": JOBS, "kills": field.kills, "doubled": doubled, "moved": field.moved}.items():
        record_property(name, value)
    # A killed worker runs again at most what it had fetched and not acknowledged.
    assert doubled <= 6 * 100
    assert not any(one.exists("queue:default", keys.DEAD) for one in field.shards.values())
