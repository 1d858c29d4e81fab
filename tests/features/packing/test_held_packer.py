"""Pack and unpack held jobs on a real server, while jobs are held and released."""

import base64
import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from framework.execute.admission import assign_free_slots
from framework.features.packing import held_packer as packer_module
from framework.features.packing.held_packer import HeldPacker
from framework.features.packing.store import PACK_HELD
from framework.features.pause.admission import resume
from framework.fetch import held_blocks
from framework.fetch.held_blocks import expand_member, packed_held, unpack_held, unpack_next
from framework.store.script import UNPACK_HELD
from framework.wire import blocks, keys
from framework.wire.json import loads_object
from tests.harness import encoded, examples

DEPTH, RUN = 10, 4
PAUSED = keys.paused_jobs("Job")
LIMIT = keys.limit("Job")
WAITING = f"{LIMIT}:waiting:"


def waiting(redis, key):
    """Return the held jobs in their order, wherever they are, and check their counts."""
    members = redis.zrange(key, 0, -1, withscores=True)
    found = [one for member, score in members for one in expand_member(redis, member, score)]
    assert packed_held(redis).get(key.encode(), 0) == len(found) - len(members)
    return [(one.data, one.score) for one in found]


def held(redis, key, numbers, ticket='["default"]'):
    members = {b"%b\n%b" % (ticket.encode(), encoded(jid=f"{number:024}")): 1_000.125 + number for number in numbers}
    if members:
        redis.zadd(key, members)
    return list(members.items())


def packed(redis, key, numbers, depth=DEPTH, ticket='["default"]'):
    """Hold so many jobs and pack all that may be; return them, the oldest first."""
    jobs = held(redis, key, range(numbers), ticket)
    one = HeldPacker(redis, key.encode(), depth, RUN)
    while one.step():
        pass
    return jobs


def test_pack_leaves_the_oldest_jobs_and_the_newest(redis):
    jobs = packed(redis, PAUSED, 30)
    assert [blocks.is_block(one) for one in redis.zrange(PAUSED, 0, -1)] == [False] * 10 + [True] * 4 + [False] * 4
    assert waiting(redis, PAUSED) == jobs


def test_new_packer_continues_behind_the_blocks_of_another(redis):
    jobs = packed(redis, PAUSED, 200) + held(redis, PAUSED, range(200, 230))
    one = HeldPacker(redis, PAUSED.encode(), DEPTH, RUN)
    while one.step():
        pass
    assert waiting(redis, PAUSED) == jobs
    assert sum(map(blocks.is_block, redis.zrange(PAUSED, 0, -1))) == 54


@pytest.mark.parametrize("at", [0, 1, 3])
def test_jobs_of_one_score_beside_a_block_stay(redis, at):
    members = [b'["default"]\n%d' % number for number in range(9)]
    scores = [1.0, 2.0, 3.0, *[4.0] * 5, 5.0] if at else [4.0] * 9
    redis.zadd(PAUSED, dict(zip(members, scores, strict=True)))
    run = [blocks.HeldMember(*one) for one in redis.zrange(PAUSED, at, at + 3, withscores=True)]
    before = waiting(redis, PAUSED)
    pairs = [word for one in run for word in (repr(one.score), one.data)]
    assert PACK_HELD(redis, [PAUSED, keys.PACKED_HELD, "none"], [blocks.pack_members(run), *pairs])
    assert redis.zcard(PAUSED) == 6
    assert sorted(waiting(redis, PAUSED)) == before


def test_end_of_pause_releases_packed_jobs_in_their_order(redis):
    jobs = packed(redis, PAUSED, 50)
    redis.sadd(keys.PAUSED_CLASSES, "Job")
    result = resume(redis, "Job", b"", class_known=True)
    assert (result.moved, result.blocked) == (50, 0)
    assert redis.lrange(keys.queue("default"), 0, -1)[::-1] == [data.partition(b"\n")[2] for data, _ in jobs]
    assert not redis.exists(PAUSED, keys.PACKED_HELD, keys.PAUSED_CLASSES)


def test_raised_limit_releases_packed_jobs_in_their_order(redis):
    jobs = packed(redis, WAITING, 50, ticket='["default","j"]')
    redis.sadd(keys.LIMITS_WAITING, LIMIT)
    redis.hset(LIMIT, "limit", 0)
    redis.zadd(f"{LIMIT}:turns", {"": 1})
    assert assign_free_slots(redis, "Job")[0] == 50
    assert redis.lrange(keys.queue("default"), 0, -1)[::-1] == [data.partition(b"\n")[2] for data, _ in jobs]
    assert not redis.exists(WAITING, keys.PACKED_HELD, keys.LIMITS_WAITING)


def test_unreadable_block_moves_to_the_dead_set(redis):
    packed(redis, PAUSED, 15)
    ((block, score),) = redis.zrange(PAUSED, 10, 10, withscores=True)
    damaged = block[:-5]
    redis.zrem(PAUSED, block)
    redis.zadd(PAUSED, {damaged: score})
    assert unpack_next(redis, PAUSED, DEPTH + 1)
    (entry,) = redis.zrange(keys.DEAD, 0, -1)
    assert base64.b64decode(loads_object(entry)["aw_raw"]) == damaged
    assert [name for name in redis.hkeys(keys.COUNTERS) if b"malformed" in name]
    assert not redis.exists(keys.PACKED_HELD)


def test_unpacked_job_stays_beside_one_of_the_same_bytes(redis):
    jobs = packed(redis, PAUSED, 15)
    data, _ = jobs[11]
    redis.zadd(PAUSED, {data: 5_000})
    assert unpack_next(redis, PAUSED, DEPTH + 1)
    payload = data.partition(b"\n")[2]
    assert redis.zcard(PAUSED) == 16
    assert [one for one in redis.zrange(PAUSED, 0, -1) if payload in one] == [b'["default",2]\n' + payload, data]


# --- while other clients act between the read and the script


class Model:
    """The held jobs, the oldest first, beside the server."""

    def __init__(self, redis, depth):
        self.redis, self.depth = redis, depth
        redis.flushdb()
        self.numbers = itertools.count()
        self.jobs = []
        self.packer = HeldPacker(redis, PAUSED.encode(), depth, RUN)

    def act(self, name, count):
        match name:
            case "hold":
                self.jobs += held(self.redis, PAUSED, itertools.islice(self.numbers, count))
            case "hold again":
                # It waits since earlier than the others.
                number = next(self.numbers)
                job = (b'["default"]\n%b' % encoded(jid=f"{number:024}"), 1_000.5 + count + number / 1_000)
                self.redis.zadd(PAUSED, dict([job]))
                self.jobs.append(job)
            case "release":
                self.jobs.sort(key=lambda one: one[1])
                for member, _ in self.redis.zrange(PAUSED, 0, count - 1, withscores=True):
                    if blocks.is_block(member):
                        unpack_held(self.redis, PAUSED, member)
                        break
                    assert member == self.jobs.pop(0)[0]
                    self.redis.zrem(PAUSED, member)
            case "pack":
                self.packer.step()
            case "unpack":
                unpack_next(self.redis, PAUSED, 2 * count)
            case _:
                self.packer = HeldPacker(self.redis, PAUSED.encode(), self.depth, RUN)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["hold", "hold", "hold again", "release", "pack", "pack", "new packer", "unpack"]),
        st.integers(1, 9),
        st.sampled_from(["", "hold", "release", "twice"]),
    ),
    max_size=25,
)


@given(STEPS, st.sampled_from([0, 3]))
@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_every_held_job_stays_whoever_acts(redis, steps, depth):
    model = Model(redis, depth)
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

        patch.setattr(packer_module, "PACK_HELD", raced(PACK_HELD))
        patch.setattr(held_blocks, "UNPACK_HELD", raced(UNPACK_HELD))
        for name, count, other in steps:
            meanwhile[0] = other
            model.act(name, count)
            assert sorted(waiting(redis, PAUSED), key=lambda one: one[1]) == sorted(model.jobs, key=lambda one: one[1])
