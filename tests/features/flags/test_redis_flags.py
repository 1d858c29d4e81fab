"""Keep flags fresh in a process without periodic tasks."""

import gc
import threading

import pytest

from framework.features.flags import redis_flags
from framework.features.flags.flag import Flag
from framework.features.flags.redis_flags import RedisFlags, RefreshedFlags, set_flag
from tests.harness import forked, server_lines, until

PERIOD_S = 0.02


def readers():
    return [thread for thread in threading.enumerate() if thread.name == "flags"]


class NoFlags:
    """Count the reads of a source without flags."""

    reads = 0

    def read(self):
        self.reads += 1


@pytest.fixture
def flags(redis, granted):
    before = set(readers())
    made = RefreshedFlags(RedisFlags(granted, "main"), "main", period_s=PERIOD_S)
    yield made
    # The reader lives as long as pytest keeps the flags: it must not use a client that is being closed.
    made._source = none = NoFlags()
    if set(readers()) - before:
        until(lambda: none.reads, "the end of the last read")


def test_refreshed_flags_first_use_reads_and_later_ones_follow(redis, flags):
    set_flag(redis, Flag("a", 100), None)
    assert not flags.ready
    assert flags.enabled("a")
    assert flags.ready
    set_flag(redis, Flag("b", 100), None)
    until(lambda: flags.enabled("b"), "the next read")
    assert flags.names() == {"a", "b"}


def test_refreshed_flags_many_first_users_start_one_reader(flags):
    before = set(readers())
    threads = [threading.Thread(target=flags.enabled, args=("a",)) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(readers()) - before) == 1


def test_refreshed_flags_unused_flags_end_their_reader(redis, granted):
    before = set(readers())
    made = RefreshedFlags(RedisFlags(granted, "main"), "main", period_s=PERIOD_S)
    made.enabled("a")
    (reader,) = set(readers()) - before
    del made
    gc.collect()
    until(lambda: not reader.is_alive(), "the end of the reader")


def test_refreshed_flags_forked_child_reads_for_itself(redis, flags):
    assert not flags.enabled("a")
    set_flag(redis, Flag("a", 100), None)

    def ask_in_child():
        assert not flags.ready
        assert flags.enabled("a")

    assert forked(ask_in_child) == 0


def test_refreshed_flags_redis_away_last_values_and_one_line(make_server):
    server = make_server()
    client = server.open()
    set_flag(client, Flag("a", 100), None)
    source = RedisFlags(client, "main")
    flags = RefreshedFlags(source, "main", period_s=3_600)
    assert flags.enabled("a")
    server.stop()
    with server_lines("info") as lines:
        flags.refresh()
        flags.refresh()
        assert flags.enabled("a")
        server.start()
        flags.refresh()
        server.stop()
        flags.refresh()
        assert [line["event_name"] for line in lines()] == ["flags.unavailable"] * 2
    client.close()


def test_refreshed_flags_silent_redis_only_first_use_waits(monkeypatch):
    monkeypatch.setattr(redis_flags, "FIRST_READ_TIMEOUT_S", 0.05)
    silent = threading.Event()

    class Silent(RedisFlags):
        def read(self):
            silent.wait(30)
            return False

    flags = RefreshedFlags(Silent(None, "main"), "main")
    assert not flags.ready
    assert not flags.enabled("a")
    assert flags.ready
    silent.set()
