"""Kill movers and workers while jobs move, go back, and are pushed: every job runs, and only a killed worker runs one twice."""

import itertools
from collections import Counter

import pytest

from framework.features.batches.keys import BATCHES
from framework.features.flags.flag import Flag, pause_flag
from framework.features.flags.redis_flags import set_flag, unset_flag
from framework.features.moves.keys import MOVED_COUNTS, MOVES
from framework.wire import keys
from tests.harness import encoded, until

JOBS, PUSHED = 5_000, 50
ITERATIONS, ITEMS, MEMBERS = 20, 60, 200
TO_SECOND = ("move", "--queue", "default", "--to", "second", "--rate", "1000")

CLASSES = ("NoopWorker",) * 3 + ("LimitedWorker", "HeldWorker")
"""The classes of the jobs in turn: some wait at a limit of one slot, some are held by a pause."""

MORE_JOBS = """
from framework import IterableWorker


class LimitedWorker(NoopWorker):
    concurrency_limit = 1

    def perform(self, *args: object) -> None:
        time.sleep(0.02)
        super().perform()


class HeldWorker(NoopWorker): ...


class ItemsWorker(IterableWorker):
    feature_category = "not_owned"
    queue = "default"
    flush_interval = 0.1
    max_iteration_runtime = 0.2

    def build_enumerator(self, name: str, items: int, *, cursor: int | None):
        return ((item, item) for item in range(cursor or 0, items))

    def each_iteration(self, item: int, name: str, items: int) -> None:
        prove("items", f"{name} {item}")
        time.sleep(0.02)


class MemberWorker(Base):
    def perform(self) -> None:
        prove("members", self.jid)


class BatchEndWorker(Base):
    def perform(self) -> None:
        prove("batch", self.jid)
"""

PUSH_BATCH = f"""
from framework.batches import Batch
from jobs import BatchEndWorker, ItemsWorker, MemberWorker
batch = Batch()
batch.on_success(BatchEndWorker)
with batch.jobs():
    MemberWorker.perform_bulk([()] * {MEMBERS})
ItemsWorker.perform_bulk([(str(number), {ITEMS}) for number in range({ITERATIONS})])
"""


class Field:
    """Two shards with a worker process each, and jobs that are pushed to both, the newest id last."""

    def __init__(self, site, redis, second_redis):
        self.site, self.redis = site, redis
        self.shards = {"main": redis, "second": second_redis}
        self.names = [f"{number:024}" for number in range(JOBS)]
        self._serials = iter(self.names)
        self.workers = {}
        self.kills = 0
        self.most_held = {"limit": 0, "pause": 0}

    def push(self, count, shard="main"):
        names = itertools.islice(self._serials, count)
        jobs = [encoded(CLASSES[int(name) % len(CLASSES)], jid=name) for name in names]
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

    def note_held(self):
        """Note how many jobs are held on the shard that they leave, to see that movers meet some."""
        for what, key in (
            ("limit", keys.limit("LimitedWorker") + ":waiting:"),
            ("pause", keys.paused_jobs("HeldWorker")),
        ):
            self.most_held[what] = max(self.most_held[what], self.redis.zcard(key))

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
            until(lambda goal=goal: self.note_held() or self.runs >= goal, "jobs run", timeout_s=180)
            self.kill(mover)
            shard = ("main", "second")[number % 2]
            self.kill(self.workers[shard])
            self.start(shard)


@pytest.mark.campaign
@pytest.mark.timeout(1_200)
@pytest.mark.proves("I1", "I2")
def test_kills_of_movers_and_workers_lose_no_job(two_shards, redis, second_redis, record_property):
    code = two_shards.folder / "jobs.py"
    code.write_text(code.read_text() + MORE_JOBS)
    field = Field(two_shards, redis, second_redis)
    for name, shard in field.shards.items():
        shard.sadd(keys.PAUSED, "default")
        set_flag(shard, Flag(pause_flag("HeldWorker"), 100), None)
        field.start(name)
    field.push(JOBS // 2)
    pushed = two_shards.run("-c", PUSH_BATCH)
    assert pushed.returncode == 0, pushed.stderr
    field.kill_movers_of_waiting_jobs()
    for shard in field.shards.values():
        shard.srem(keys.PAUSED, "default")
    field.kill_all_while_jobs_run()
    for shard in field.shards.values():
        unset_flag(shard, pause_flag("HeldWorker"))
    field.push(JOBS)
    done = two_shards.run("-m", "framework", "shards", *TO_SECOND[:-2], "--json", "-r", "jobs", timeout_s=400)
    # The move is under way back, or has come back: it ends first, then another one may begin.
    assert done.returncode in (0, 1), done.stderr
    until(lambda: len(set(redis.lrange("proof:noop", 0, -1))) == JOBS, "all jobs ran", timeout_s=300)
    counts = Counter(redis.lrange("proof:noop", 0, -1))
    assert {name.decode() for name in counts} == set(field.names)
    doubled = sum(counts.values()) - JOBS
    # The members have stayed where their batch is, and every iteration has gone on where it was.
    until(lambda: redis.llen("proof:batch"), "the callback of the batch ran", timeout_s=300)
    wanted = {f"{name} {item}".encode() for name in range(ITERATIONS) for item in range(ITEMS)}
    until(lambda: set(redis.lrange("proof:items", 0, -1)) == wanted, "all items ran", timeout_s=300)
    members, items = (redis.lrange(f"proof:{name}", 0, -1) for name in ("members", "items"))
    facts = {"jobs": JOBS, "kills": field.kills, "doubled": doubled, "moved": field.moved, **field.most_held}
    for name, value in {**facts, "items": len(items) - len(wanted), "members": len(members) - MEMBERS}.items():
        record_property(name, value)
    assert len(set(members)) == MEMBERS
    assert all(field.most_held.values())
    # A killed worker runs again at most what it had fetched and not acknowledged, and of an iteration a part of a second.
    assert doubled <= 6 * 100
    assert len(items) - len(wanted) <= 6 * 3 * 20
    left = ("queue:default", keys.DEAD, keys.LIMITS_WAITING, keys.PAUSED_CLASSES)
    until(lambda: not any(one.exists(*left) for one in field.shards.values()), "nothing waits", timeout_s=60)
    assert not any(one.keys("it-*") for one in field.shards.values())
    assert redis.zcard(BATCHES) == 1
