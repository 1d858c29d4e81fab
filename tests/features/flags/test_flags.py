"""Read flags from Redis and from an OpenFeature provider."""

import random
import threading

import pytest
from openfeature import api
from openfeature.provider.in_memory_provider import InMemoryFlag, InMemoryProvider
from redis.exceptions import ConnectionError as RedisConnectionError

from framework.features.flags.flag import Flag, LayeredFlags, check_flag_name, decode_flag
from framework.features.flags.openfeature import OpenFeatureFlags
from framework.features.flags.redis_flags import RedisFlags, read_flags, set_flag, unset_flag
from framework.wire import keys
from tests.harness import server_lines, until
from tests.tables import each_row

GARBAGE = {
    "no_json": b"{",
    "no_object": b"[]",
    "newer": b'{"v":2,"percentage":0}',
    "text": b'{"v":1,"percentage":"all"}',
    "too_much": b'{"v":1,"percentage":101}',
    "truth": b'{"v":1,"percentage":true}',
    "no_time": b'{"v":1,"percentage":1,"expires_at":"soon"}',
    "endless_time": b'{"v":1,"percentage":1,"expires_at":%b}' % (b"9" * 400),
    b"no \xff name": b"\xff",
}


@pytest.fixture
def provider():
    made = InMemoryProvider({})
    api.set_provider(made, "application-worker")
    yield made
    api.clear_providers()


def switch(on):
    return InMemoryFlag("on" if on else "off", {"on": True, "off": False})


def test_redis_flags_flag_ends_by_clock_of_redis(redis, granted):
    flags = RedisFlags(granted, "main")
    assert flags.read() is False
    made = set_flag(redis, Flag("a", 25, "why", "me"), 60)
    set_flag(redis, Flag("b", 100), 0.0)
    set_flag(redis, Flag("c", 100), None)
    assert made.expires_at - made.set_at == 60
    assert flags.find("a") is None
    assert flags.read() is True
    assert (flags.find("a"), flags.names()) == (made, {"a", "c"})
    assert flags.read() is False
    assert read_flags(redis).keys() == {"a", "b", "c"}
    assert unset_flag(redis, "a")
    assert not unset_flag(redis, "a")
    assert flags.find("a") == made
    assert flags.read() is True
    assert flags.find("a") is None
    assert not flags.enabled("a")


def test_flag_sampled_share_is_drawn_each_time():
    draws = random.Random(7).random
    assert sum(Flag("f", 20).sampled(draws) for _ in range(5_000)) == 1_044
    assert not any(Flag("f", 0).sampled(draws) for _ in range(100))
    assert all(Flag("f", 100).sampled(draws) for _ in range(100))


def test_redis_flags_malformed_flag_hides_no_other(redis, granted):
    redis.hset(keys.FLAGS, mapping=GARBAGE)
    set_flag(redis, Flag("good", 100), None)
    flags = RedisFlags(granted, "main")
    with server_lines("info") as lines:
        flags.read()
        flags.read()
        logged = [line["flag"] for line in lines() if line["event_name"] == "flags.unreadable"]
    assert flags.names() == {"good"} == read_flags(redis).keys()
    assert sorted(logged) == sorted([*(name for name in GARBAGE if isinstance(name, str)), "no \\xff name"])


@each_row("data", GARBAGE.values())
def test_decode_flag_malformed_value_says_why(data):
    with pytest.raises(ValueError, match=r"\w"):
        decode_flag("f", data)


def test_redis_flags_failed_read_keeps_known_flags(redis, granted):
    set_flag(redis, Flag("a", 100), None)
    flags = RedisFlags(granted, "main")
    flags.read()
    redis.delete(keys.FLAGS)
    redis.set(keys.FLAGS, "no hash")
    with server_lines("info") as lines:
        assert flags.read() is False
        assert flags.enabled("a")
        assert [line["event_name"] for line in lines()] == ["flags.read_failed"]


def test_redis_flags_too_many_keep_known_flags(redis, granted, monkeypatch):
    monkeypatch.setattr("framework.features.flags.redis_flags._MOST_FLAGS", 1_000)
    flags = RedisFlags(granted, "main")
    redis.hset(keys.FLAGS, "known", Flag("known", 100).encode())
    flags.read()
    redis.hset(keys.FLAGS, mapping={f"flag {number}": Flag("x", 100).encode() for number in range(5_000)})
    with server_lines("info") as lines:
        assert flags.read() is False
        assert "more than 1,000 flags" in lines()[0]["exception.message"]
    assert flags.find("known") is not None
    assert flags.find("flag 1") is None


def test_redis_flags_server_away_keeps_known_flags(make_server):
    server = make_server()
    client = server.open()
    set_flag(client, Flag("a", 100), None)
    flags = RedisFlags(client, "main")
    flags.read()
    server.stop()
    with pytest.raises(RedisConnectionError):
        flags.read()
    assert flags.enabled("a")
    client.close()


def test_redis_flags_own_write_counts_until_a_later_read(redis, granted):
    flags = RedisFlags(granted, "main")
    flags.read()
    flags.note_written("a", written := set_flag(redis, Flag("a", 100), 60))
    set_flag(redis, Flag("b", 100), None)
    assert flags.find("a") == written
    assert flags.names() == {"a"}
    assert flags.read() is True
    assert flags.names() == {"a", "b"}
    unset_flag(redis, "a")
    flags.note_written("a", None)
    assert not flags.enabled("a")
    assert flags.read() is True
    set_flag(redis, Flag("a", 100), None)
    assert flags.read() is True
    assert flags.enabled("a")


def test_redis_flags_read_that_was_under_way_hides_no_own_write(redis, granted, monkeypatch):
    """A reply that was sent before the write must not bring back the value from before it."""
    flags = RedisFlags(granted, "main")
    read = flags._read_from_redis

    def read_slowly():
        found = read()
        flags.note_written("a", set_flag(redis, Flag("a", 100), None))
        return found

    monkeypatch.setattr(flags, "_read_from_redis", read_slowly)
    assert flags.read() is True
    assert flags.enabled("a")


def test_flag_includes_stable_and_growing_share_of_keys():
    shares = {
        percent: {key for key in range(2_000) if Flag("f", percent).includes(key)} for percent in (0, 10, 30, 100)
    }
    assert {percent: len(keys) for percent, keys in shares.items()} == {0: 0, 10: 219, 30: 628, 100: 2_000}
    assert shares[10] < shares[30]
    assert Flag("f", 30).includes("7") is Flag("f", 30).includes(7)
    assert {key for key in range(2_000) if Flag("other", 10).includes(key)} != shares[10]
    assert Flag("f", 50).includes("\udc80") in (True, False)


@each_row("name", ["", " ", "a b", "-a", "ä", "a" * 201, 7, None, "run_jobs_A", "drop_jobs_A", "pause_jobs_A"])
def test_check_flag_name_refused_name_says_why(name):
    with pytest.raises(ValueError, match="flag"):
        check_flag_name(name)


def test_openfeature_provider_is_read_in_background(provider):
    provider._flags.update({"on": switch(True), "off": switch(False)})
    flags = OpenFeatureFlags(lambda: ["on", "off", "unknown"], "here")
    assert flags.names() == frozenset()
    assert flags.read()
    assert {name: flags.find(name).percentage for name in flags.names()} == {"on": 100, "off": 0}
    provider._flags["off"] = switch(True)
    until(flags.read, "the news")
    assert flags.enabled("off")


def test_openfeature_failing_provider_keeps_last_values(provider, monkeypatch):
    provider._flags["on"] = switch(True)
    flags = OpenFeatureFlags(lambda: ["on"], "here")
    flags.read()
    asked, go_on = threading.Event(), threading.Event()

    def fail(*_, **__):
        raise OSError("no network")

    def hang(*_, **__):
        asked.set()
        go_on.wait(30)
        return found("on", False)

    found = provider.resolve_boolean_details
    with server_lines("info") as lines:
        monkeypatch.setattr(provider, "resolve_boolean_details", fail)
        flags.read()
        until(lambda: flags._flags._started_at is None)
        monkeypatch.setattr(provider, "resolve_boolean_details", hang)
        flags.read()
        assert asked.wait(30)
        monkeypatch.setattr("framework.features.flags.flag.DEADLINE_S", 0.0)
        flags.read()
        assert flags.enabled("on")
        logged = {line["event_name"] for line in lines() if "event_name" in line}
    assert logged == {"flags.provider_error", "callback.timeout"}
    provider._flags["on"] = switch(False)
    go_on.set()
    until(flags.read, "what came late")
    assert not flags.enabled("on")


def test_openfeature_watched_flag_is_read_at_its_first_use(provider):
    provider._flags["late"] = switch(True)
    flags = LayeredFlags(OpenFeatureFlags(list, "here"))
    flags.read()
    assert not flags.enabled("late")
    flags.watch("late")
    assert flags.enabled("late")
    flags.watch("late")


def test_openfeature_without_provider_sets_no_flag():
    flags = OpenFeatureFlags(lambda: ["on"], "here")
    flags.read()
    assert flags.names() == frozenset()


def test_layered_flags_first_source_decides(redis, granted, provider):
    provider._flags.update({"both": switch(True), "theirs": switch(True)})
    set_flag(redis, Flag("both", 0), None)
    flags = LayeredFlags(RedisFlags(granted, "main"), OpenFeatureFlags(lambda: ["both", "theirs"], "here"))
    assert flags.read()
    assert not flags.enabled("both")
    assert flags.enabled("theirs")
    assert flags.names() == {"both", "theirs"}
