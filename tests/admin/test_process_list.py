"""Test the list of processes, their signals and their running jobs, with a real process and records as Ruby writes them."""

import json
import time

import pytest

from framework import admin
from framework.errors import ReadOnlyError, UnknownNameError
from framework.wire import keys
from tests.harness import encoded, until

RUBY = "host:7:aabbccddeeff"


def write_record(redis, identity=RUBY, **fields):
    """Write the record of a Ruby process of version 6.4."""
    facts = {"hostname": "host", "pid": 7, "tag": "shop", "queues": ["mail"], "labels": ["reliable"], "concurrency": 5}
    redis.sadd(keys.PROCESSES, identity)
    redis.hset(
        identity,
        mapping={
            "info": json.dumps({**facts, "identity": identity, "started_at": 1_700_000_000.5, **fields}),
            "busy": 2,
            "beat": time.time(),
            "quiet": "false",
            "rss": 20_000,
            "rtt_us": 300,
        },
    )


def test_process_of_ruby_is_listed_with_its_facts(shard, redis):
    write_record(redis)
    (found,) = admin.processes()
    assert (found.identity, found.hostname, found.pid, found.tag) == (RUBY, "host", 7, "shop")
    assert (found.labels, found.queues, found.slots, found.busy) == (("reliable",), ("mail",), 5, 2)
    assert (found.is_quiet, found.started_at, found.rss_kb, found.rtt_us) == (False, 1_700_000_000.5, 20_000, 300)


def test_process_shows_its_ended_runs_by_queue(shard, redis):
    write_record(redis)
    assert admin.processes()[0].runs is None
    for written, found in ((b'{"mail": 7, "odd": "x"}', {"mail": 7}), (b"[" * 9, {})):
        redis.hset(RUBY, "aw_runs", written)
        assert admin.processes()[0].runs == found


def test_process_shows_the_clock_of_its_host(shard, redis):
    write_record(redis)
    assert admin.processes()[0].clock_s is None
    redis.hset(RUBY, "aw_clock_s", "-2.5")
    assert admin.processes()[0].clock_s == -2.5


def test_dead_process_is_not_listed(shard, redis):
    """Its record outlives it by a minute, but its lease has expired; a Ruby process that died has no record any more."""
    write_record(redis)
    redis.zadd(keys.REGISTRY, {RUBY: 1})
    redis.sadd(keys.PROCESSES, "gone:1:aabbccddeeff")
    assert admin.processes() == []
    redis.set(keys.lease(RUBY), 1)
    assert [one.identity for one in admin.processes()] == [RUBY]


def test_record_with_invalid_fields_is_listed(shard, redis):
    write_record(redis, pid="x", tag=None, labels="none", queues={"a": 1}, started_at=[])
    redis.hset(RUBY, mapping={"busy": "x", "beat": "never", "rss": "9" * 5_000})
    (found,) = admin.processes()
    assert (found.pid, found.tag, found.labels, found.started_at, found.busy, found.beat) == (0, "", (), None, 0, None)


def test_signals_wait_a_minute_for_their_process(shard, redis):
    write_record(redis)
    (process,) = admin.processes()
    process.quiet()
    process.dump()
    admin.processes().stop()
    assert redis.lrange(keys.signals(RUBY), 0, -1) == [b"TERM", b"TTIN", b"TSTP"]
    assert 0 < redis.ttl(keys.signals(RUBY)) <= 60


def test_signal_to_an_ended_or_embedded_process_is_refused(shard, redis):
    write_record(redis)
    (process,) = admin.processes()
    with admin.read_only(), pytest.raises(ReadOnlyError):
        process.stop()
    redis.delete(RUBY)
    with pytest.raises(UnknownNameError, match="has ended: there is nothing to stop"):
        process.stop()
    write_record(redis, embedded=True)
    with pytest.raises(ValueError, match="embedded in another program"):
        admin.processes()[0].quiet()
    admin.processes().quiet()
    assert redis.exists(keys.signals(RUBY)) == 0


def test_find_refuses_an_unknown_identity(shard, redis):
    write_record(redis)
    assert admin.processes().find(RUBY).pid == 7
    with pytest.raises(UnknownNameError, match=f"did you mean '{RUBY}'"):
        admin.processes().find("host:7:aabbccddeef")


@pytest.mark.parametrize("key", [0, 1], ids=["work", "workers"])
def test_running_job_of_ruby_is_listed(shard, redis, key):
    write_record(redis)
    entry = {"queue": "mail", "payload": encoded("Mail", jid="j1", args=[1]).decode(), "run_at": 1_700_000_000}
    redis.hset(keys.work(RUBY)[key], "t1", json.dumps(entry))
    redis.hset(keys.work(RUBY)[key], "t0", json.dumps({**entry, "payload": {"class": "Two", "jid": "j2", "args": []}}))
    redis.hset(keys.work(RUBY)[key], "t2", "no JSON")
    odd, two, mail = admin.work()
    assert (mail.process, mail.thread, mail.queue, mail.since) == (RUBY, "t1", "mail", 1_700_000_000)
    assert (mail.jid, mail.worker, mail.job.args) == ("j1", "Mail", [1])
    assert (two.jid, two.worker) == ("j2", "Two")
    assert (odd.jid, odd.queue, odd.since) == ("", "", None)


def test_real_process_is_listed_runs_a_job_and_becomes_quiet(shard, redis, site):
    process = site.hurried_worker("-q", "default", "-c", "2").ready()
    (found,) = admin.processes()
    assert (found.identity, found.queues, found.slots, found.is_quiet) == (process.identity, ("default",), 2, False)
    assert "python" in found.labels
    found.quiet()
    until(lambda: admin.processes()[0].is_quiet, "the process is quiet")
    admin.processes().stop()
    assert process.wait() == 0
    assert admin.processes() == []
