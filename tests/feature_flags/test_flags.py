"""Read flags from Redis and from an OpenFeature provider."""

import random
import threading

import pytest
from openfeature import api
from openfeature.provider.in_memory_provider import InMemoryFlag, InMemoryProvider
from redis.exceptions import ConnectionError as RedisConnectionError

from framework.feature_flags import redis_flags
from framework.feature_flags.flag import Flag, LayeredFlags, decode_flag
from framework.feature_flags.openfeature import OpenFeatureFlags
from framework.feature_flags.redis_flags import RedisFlags, read_flags, set_flag, unset_flag
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
    assert flags.enabled("a", default=True)
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


def test_redis_flags_failed_read_keeps_known_flags(redis, granted, monkeypatch):
    set_flag(redis, Flag("a", 100), None)
    flags, lazy = RedisFlags(granted, "main"), RedisFlags(granted, "main", lazy=True)
    flags.read()
    assert lazy.enabled("a")
    redis.delete(keys.FLAGS)
    redis.set(keys.FLAGS, "no hash")
    with server_lines("info") as lines:
        assert flags.read() is False
        monkeypatch.setattr(redis_flags, "MAX_AGE_S", 0.0)
        assert flags.enabled("a")
        assert lazy.enabled("a")
        assert [line["event_name"] for line in lines()] == ["flags.read_failed"] * 2


def test_redis_flags_server_away_costs_only_updates(make_server, monkeypatch):
    server = make_server()
    client = server.open()
    set_flag(client, Flag("a", 100), None)
    flags, eager_flags = RedisFlags(client, "main", lazy=True), RedisFlags(client, "main")
    assert flags.enabled("a")
    eager_flags.read()
    server.stop()
    monkeypatch.setattr(redis_flags, "MAX_AGE_S", 0.0)
    with server_lines("info") as lines:
        assert flags.enabled("a")
        assert [line["event_name"] for line in lines()] == ["flags.unavailable"]
    with pytest.raises(RedisConnectionError):
        eager_flags.read()
    assert eager_flags.enabled("a")
    client.close()


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
    lazy = OpenFeatureFlags(lambda: ["on"], "here", lazy=True)
    assert lazy.enabled("on")
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
        monkeypatch.setattr("framework.feature_flags.background.DEADLINE_S", 0.0)
        flags.read()
        assert flags.enabled("on")
        logged = {line["event_name"] for line in lines() if "event_name" in line}
    assert logged == {"flags.provider_error", "callback.timeout"}
    provider._flags["on"] = switch(False)
    go_on.set()
    until(flags.read, "what came late")
    assert not flags.enabled("on")


def test_openfeature_without_provider_sets_no_flag():
    flags = OpenFeatureFlags(lambda: ["on"], "here")
    flags.read()
    assert flags.names() == frozenset()


def test_layered_flags_first_source_decides(redis, granted, provider):
    provider._flags.update({"both": switch(True), "theirs": switch(True)})
    set_flag(redis, Flag("both", 0), None)
    flags = LayeredFlags(RedisFlags(granted, "main"), OpenFeatureFlags(lambda: ["both", "theirs"], "here"))
    assert flags.read()
    assert not flags.enabled("both", default=True)
    assert flags.enabled("theirs")
    assert flags.names() == {"both", "theirs"}
