"""Test what an operator and a starting process write to a Redis that has no memory left: by that it recovers."""

import pytest
from redis.exceptions import OutOfMemoryError

from framework.admin.process_list import send_signal
from framework.admin.queue_actions import pause_ends, pause_queue, read_pause_log, unpause_queue
from framework.execute.stats import RunningJobs
from framework.features.concurrency.limit_state import LimitOverride, read_limit_states, set_override
from framework.features.flags.flag import Flag
from framework.features.flags.redis_flags import read_flags, set_flag
from framework.process.record import ProcessRecord, read_processes
from framework.store.script import write_when_full
from framework.wire import keys
from tests.harness import IDENTITY, encoded, full_memory, register_process
from tests.process.test_record import process_of


def check_valves(client):
    """Use each valve, and check that it has acted."""
    assert pause_queue(client, "mail", None, "full")
    assert pause_queue(client, "mail", 60.0, "full") is False
    assert list(pause_ends(client)) == ["mail"]
    assert unpause_queue(client, "mail")
    assert [one.action for one in read_pause_log(client)] == ["unpause-queue", "pause-queue", "pause-queue"]
    set_flag(client, Flag("drop_sidekiq_jobs_Mail", 100, "full", "me", None, None), 60.0)
    assert "drop_sidekiq_jobs_Mail" in read_flags(client)
    set_override(client, "Mail", LimitOverride(7, None, "full", "me"))
    assert read_limit_states(client, 0.0, ["Mail"])[0].limit == 7


def test_valves_work_on_a_full_server(each_redis):
    each_redis.lpush("queue:mail", b"job")
    with full_memory(each_redis):
        with pytest.raises(OutOfMemoryError):
            each_redis.hset("h", "f", "v")
        check_valves(each_redis)


def test_valves_work_on_a_redis_that_jobs_have_filled(make_server):
    server = make_server("redis-server")
    with server.open() as redis:
        redis.config_set("maxmemory", "30mb")
        job = encoded("Mail", jid="j", text="x" * 20_000)
        with pytest.raises(OutOfMemoryError):
            while True:
                redis.lpush("queue:mail", *[job] * 50)
        check_valves(redis)


def test_process_on_a_full_server_can_be_seen_and_stopped(redis, granted):
    register_process(redis, IDENTITY)
    redis.delete(IDENTITY, keys.PROCESSES)
    record = ProcessRecord(process_of(granted), "1", RunningJobs())
    with full_memory(redis):
        with pytest.raises(OutOfMemoryError):
            record.heartbeat()
        assert [one.identity for one in read_processes(redis)] == [IDENTITY]
        assert redis.ttl(IDENTITY) > 0
        assert send_signal(redis, IDENTITY, "TERM")
        assert record.heartbeat() == ["TERM"]


def test_write_when_full_returns_each_reply(redis):
    replies = write_when_full(
        redis, ("SADD", "s", "a", "b"), ("HSET", "h", "f", 1), ("HDEL", "h", "f"), ("LPUSH", "l", "x")
    )
    assert replies == [2, 1, 1, 1]
    assert (redis.smembers("s"), redis.exists("h"), redis.lrange("l", 0, -1)) == ({b"a", b"b"}, 0, [b"x"])
