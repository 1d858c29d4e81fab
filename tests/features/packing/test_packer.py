"""Pack and unpack queues on a real server, while jobs arrive and leave."""

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from framework.features.packing import packer as packer_module
from framework.features.packing.packer import QueuePacker
from framework.features.packing.store import PACK
from framework.fetch import blocks as blocks_module
from framework.fetch.blocks import expand, packed_jobs, unpack
from framework.store.block_store import IN_REDIS
from framework.store.script import FETCH, UNPACK
from framework.wire import blocks, keys
from tests.harness import IDENTITY, encoded, examples
from tests.tables import each_row

QUEUE = keys.queue("default")
DEPTH, RUN = 10, 4


def waiting(redis):
    """Return the jobs of the queue, the newest first, wherever they are, and check their counts."""
    # One transaction: a command of a process that was stopped a moment ago may still arrive.
    pipeline = redis.pipeline()
    pipeline.lrange(QUEUE, 0, -1).hget(keys.PACKED, "default").hget(keys.PACKED_BLOCKS, "default")
    elements, *counts = pipeline.execute()
    found, packed, count = [], 0, 0
    for element in elements:
        jobs = expand(redis, element)
        if blocks.is_block(element):
            packed, count = packed + len(jobs), count + 1
        found += jobs
    assert [int(one or 0) for one in counts] == [packed, count]
    assert packed_jobs(redis).get("default", 0) == packed - count
    return found


def fetched(redis, wanted):
    """Fetch as a process does; return the jobs, the oldest first, and the block that is next."""
    redis.set(keys.lease(IDENTITY), 1, px=60_000)
    reply = FETCH(redis, [keys.lease(IDENTITY), keys.working(IDENTITY), QUEUE], [60_000, wanted, 0, wanted])
    pairs = dict(zip(reply[3::2], reply[4::2], strict=True))
    return pairs.get(1, []), pairs.get(-1)


def drained(redis):
    """Return all jobs in the order in which a process gets them."""
    found = []
    while True:
        jobs, block = fetched(redis, 7)
        found += jobs
        if block is not None:
            unpack(redis, "default", block)
        elif not jobs:
            return found


def packed(redis, numbers, depth=DEPTH, run=RUN, step=RUN, store=IN_REDIS):
    """Push so many jobs and pack all that may be; return the jobs, the oldest first."""
    jobs = [encoded(jid=f"{number:024}") for number in range(numbers)]
    redis.lpush(QUEUE, *jobs)
    one = QueuePacker(redis, "default", depth, run, step, store)
    while one.pack():
        pass
    return jobs


def test_pack_leaves_the_oldest_jobs_and_keeps_the_order(redis):
    jobs = packed(redis, 30)
    elements = redis.lrange(QUEUE, 0, -1)
    assert [blocks.is_block(one) for one in elements] == [True] * 5 + [False] * 10
    assert waiting(redis) == jobs[::-1]
    assert drained(redis) == jobs
    assert not redis.exists(keys.PACKED, keys.PACKED_BLOCKS)


def test_pack_of_a_short_queue_does_nothing(redis):
    packed(redis, DEPTH + RUN - 1)
    assert redis.llen(QUEUE) == DEPTH + RUN - 1


def test_pack_of_large_jobs_makes_small_blocks(redis):
    jobs = [encoded(jid=f"{number:024}", args=["x" * 300_000]) for number in range(8)]
    redis.lpush(QUEUE, *jobs)
    one = QueuePacker(redis, "default", 0, 6)
    assert one.pack()
    (block,) = filter(blocks.is_block, redis.lrange(QUEUE, 0, -1))
    assert blocks.count(block) == 3
    assert waiting(redis) == jobs[::-1]


def test_new_packer_continues_the_row_of_another(redis):
    jobs = packed(redis, 200, run=2)
    newer = [encoded(jid=f"new{number:021}") for number in range(9)]
    redis.lpush(QUEUE, *newer)
    one = QueuePacker(redis, "default", DEPTH, 2)
    while one.pack():
        pass
    elements = redis.lrange(QUEUE, 0, -1)
    assert [blocks.is_block(element) for element in elements[:6]] == [False, *[True] * 5]
    assert waiting(redis) == newer[::-1] + jobs[::-1]


def test_many_new_jobs_begin_a_row_that_meets_the_other(redis, monkeypatch):
    jobs = packed(redis, 60)
    newer = [encoded(jid=f"new{number:021}") for number in range(30)]
    redis.lpush(QUEUE, *newer)
    monkeypatch.setattr(packer_module, "_MAX_MOVED", 6)
    one = QueuePacker(redis, "default", DEPTH, RUN)
    assert one.pack()
    assert [blocks.is_block(element) for element in redis.lrange(QUEUE, 0, 26)] == [True, *[False] * 26]
    while one.pack():
        assert waiting(redis) == newer[::-1] + jobs[::-1]
    assert sum(not blocks.is_block(element) for element in redis.lrange(QUEUE, 0, -1)) == DEPTH + 2
    assert drained(redis) == jobs + newer


def test_block_grows_by_steps_on_both_sides(redis):
    jobs = packed(redis, 30, step=2)
    sizes = [blocks.count(one) for one in redis.lrange(QUEUE, 0, -1) if blocks.is_block(one)]
    assert (sizes, waiting(redis)) == ([4, 4, 4, 4, 2], jobs[::-1])
    newer = [encoded(jid=f"new{number:021}") for number in range(2)]
    redis.lpush(QUEUE, *newer)
    one = QueuePacker(redis, "default", DEPTH, 6, 2)
    assert one.pack()
    assert blocks.count(redis.lindex(QUEUE, 0)) == 6
    assert waiting(redis) == newer[::-1] + jobs[::-1]
    assert drained(redis) == jobs + newer


@pytest.mark.parametrize("most_moved", [10, -1])
def test_block_that_was_unpacked_meanwhile_does_not_grow(redis, most_moved):
    jobs = packed(redis, 14)[::-1]
    old = redis.lindex(QUEUE, 0)
    neighbours = [encoded(jid=f"new{number:021}") for number in range(2)]
    redis.lpush(QUEUE, *neighbours[::-1])
    if most_moved < 0:
        redis.ltrim(QUEUE, 2, -1)
        redis.linsert(QUEUE, "AFTER", old, neighbours[1])
        redis.linsert(QUEUE, "AFTER", old, neighbours[0])
    before = waiting(redis)
    assert set(before) == {*jobs, *neighbours}
    assert unpack(redis, "default", old, behind=redis.llen(QUEUE) - 1 - redis.lpos(QUEUE, old))
    new = blocks.pack("default", neighbours)
    arguments = ["default", 100, most_moved, new, old, *neighbours]
    assert not PACK(redis, [QUEUE, keys.PACKED, keys.PACKED_BLOCKS, "none"], arguments)
    assert waiting(redis) == before


def test_unpack_near_the_end_keeps_the_order(redis):
    jobs = packed(redis, 30)
    one = QueuePacker(redis, "default", DEPTH, RUN)
    while one.unpack():
        waiting(redis)
    assert redis.lrange(QUEUE, 0, -1) == jobs[::-1]


def test_fetch_leaves_a_block_and_what_is_newer(redis):
    jobs = packed(redis, 30)
    assert fetched(redis, 12) == (jobs[:10], redis.lindex(QUEUE, -1))
    assert waiting(redis) == jobs[:9:-1]


def test_unreadable_block_moves_to_the_dead_set(redis):
    jobs = packed(redis, 14)
    block = redis.lindex(QUEUE, 0)
    damaged = block.replace(b'"aw_jobs":"', b'"aw_jobs":"AAAA')
    redis.lset(QUEUE, 0, damaged)
    assert drained(redis) == jobs[:10]
    assert redis.zrange(keys.DEAD, 0, -1) == [damaged]
    assert not redis.exists(keys.PACKED, keys.PACKED_BLOCKS)
    assert [name for name in redis.hkeys(keys.COUNTERS) if b"malformed" in name]


def test_block_is_unpacked_by_one_of_two_processes(redis):
    jobs = packed(redis, 30)
    _, block = fetched(redis, 10)
    assert not block
    _, block = fetched(redis, 1)
    assert [unpack(redis, "default", block) for _ in range(2)] == [True, False]
    assert waiting(redis) == jobs[:9:-1]


# --- while other clients act between the read and the script

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["push", "push", "fetch", "return", "pack", "pack", "new packer", "unpack", "delete"]),
        st.integers(1, 9),
        st.sampled_from(["", "push", "fetch", "delete", "twice"]),
    ),
    max_size=25,
)


class Model:
    """The jobs of the queue, the newest first, beside the server."""

    def __init__(self, redis, depth, step, store):
        self.redis, self.depth, self.step, self.store = redis, depth, step, store
        redis.flushdb()
        self.numbers = itertools.count()
        self.queue, self.held = [], []
        self.packer = QueuePacker(redis, "default", depth, RUN, self.step, store)

    def push(self, count):
        jobs = [encoded(jid=f"{next(self.numbers):024}") for _ in range(count)]
        self.redis.lpush(QUEUE, *jobs)
        self.queue[:0] = jobs[::-1]

    def fetch(self, count):
        jobs, block = fetched(self.redis, count)
        assert jobs == self.queue[::-1][: len(jobs)]
        assert block is not None or len(jobs) == min(count, len(self.queue))
        del self.queue[len(self.queue) - len(jobs) :]
        self.held += jobs
        if block is not None:
            unpack(self.redis, "default", block)

    def give_back(self, count):
        for job in [self.held.pop() for _ in range(min(count, len(self.held)))]:
            self.redis.rpush(QUEUE, job)
            self.queue.append(job)

    def delete(self, number):
        """Delete a job that is in no block."""
        plain = [one for one in self.redis.lrange(QUEUE, 0, -1) if not blocks.is_block(one)]
        if plain:
            job = plain[number % len(plain)]
            assert self.redis.lrem(QUEUE, 1, job)
            self.queue.remove(job)

    def act(self, name, count):
        match name:
            case "push":
                self.push(count)
            case "fetch":
                self.fetch(count)
            case "return":
                self.give_back(count)
            case "delete":
                self.delete(count)
            case "pack":
                self.packer.pack()
            case "unpack":
                self.packer.unpack()
            case _:
                self.packer = QueuePacker(self.redis, "default", self.depth, RUN, self.step, self.store)


@given(STEPS, st.sampled_from([0, 3]), st.sampled_from([2, 2000]), st.sampled_from([2, RUN]), st.booleans())
@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_every_job_stays_at_its_place_whoever_acts(redis, stored, steps, depth, most_moved, step, leaves_redis):
    model = Model(redis, depth, step, stored if leaves_redis else IN_REDIS)
    with pytest.MonkeyPatch.context() as patch:
        meanwhile = [""]

        def raced(script):
            def run(client, places, arguments):
                name, meanwhile[0] = meanwhile[0], ""
                if name == "twice":
                    script(client, places, arguments)
                elif name:
                    model.act(name, 2)
                return script(client, places, arguments)

            return run

        patch.setattr(packer_module, "PACK", raced(PACK))
        # Then a few new jobs are many: another row begins.
        patch.setattr(packer_module, "_MAX_MOVED", most_moved)
        patch.setattr(blocks_module, "UNPACK", raced(UNPACK))
        for name, count, other in steps:
            meanwhile[0] = other
            model.act(name, count)
            assert waiting(redis) == model.queue
    assert drained(redis) == model.queue[::-1]


DAMAGES = [
    ("cut short", lambda block: block[:-30]),
    ("another count", lambda block: block.replace(b'"aw_count":4', b'"aw_count":5')),
]


@each_row(("what", "damage"), DAMAGES)
def test_damaged_block_is_refused_as_a_whole(redis, what, damage):
    packed(redis, 14)
    damaged = damage(redis.lindex(QUEUE, 0))
    assert expand(redis, damaged) == [damaged], what
