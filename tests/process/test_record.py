import json
from types import SimpleNamespace

import pytest
from redis.exceptions import RedisError

from framework.execute.execution import Execution
from framework.execute.stats import RunningJobs
from framework.fetch.queues import QueueOrder
from framework.fetch.unit_of_work import UnitOfWork
from framework.process.own_queues import CapsulePlan
from framework.process.record import ProcessRecord, default_tag, display_payload, read_processes, served_queues
from framework.store.absent_keys import AbsentKeys
from framework.timings import STANDARD
from framework.wire import keys
from tests.harness import IDENTITY, encoded, full_memory, payload, register_process
from tests.tables import each_row


def process_of(client):
    plan = CapsulePlan("default", QueueOrder.of([("default", 0)]), 1)
    return SimpleNamespace(
        upkeep=client, identity=IDENTITY, plans=[plan], absent=AbsentKeys(), timings=STANDARD, quiet=False
    )


def test_record_at_maxmemory_keeps_signals_and_counts(redis, granted):
    runs = RunningJobs()
    record = ProcessRecord(process_of(granted), "1", runs)
    runs.new_thread_counts().uncounted = 3
    redis.rpush(keys.signals(IDENTITY), "TSTP")
    with full_memory(redis):
        assert record.heartbeat() == ["TSTP"]
        with pytest.raises(RedisError):
            record.heartbeat()
    assert record.heartbeat() == []
    assert redis.get(keys.STAT_PROCESSED) == b"3"


@pytest.mark.parametrize(
    "info",
    [b"[" * 5_000, b'{"queues":' + b"[" * 5_000, b"\xff", b"null", b'{"queues":5}', b'{"queues":[1e999,NaN]}', b""],
)
def test_record_malformed_queues_are_ignored(redis, info):
    redis.sadd(keys.PROCESSES, "odd", "good")
    redis.hset("odd", mapping={"info": info, "quiet": "false"})
    redis.hset("good", mapping={"info": '{"queues":["default"]}', "quiet": "false"})
    assert served_queues(redis) == {"default"}


# --- statistics -----------------------------------------------------------------------------------------------------


@pytest.fixture
def runs():
    return RunningJobs()


@pytest.fixture
def record(redis, granted, runs):
    return ProcessRecord(process_of(granted), "1", runs)


def test_record_failed_counter_keeps_the_other_counters(redis, runs, record):
    counts = runs.new_thread_counts()
    counts.uncounted, counts.failed = 3, 1
    counts.processed = 90  # the others are counted by their acknowledgement
    redis.lpush(keys.STAT_FAILED, "no number")
    for _ in range(3):
        with pytest.raises(RedisError, match="WRONGTYPE"):
            record.heartbeat()
    assert redis.get(keys.STAT_PROCESSED) == b"3"
    redis.delete(keys.STAT_FAILED)
    counts.uncounted += 2
    record.heartbeat()
    record.heartbeat()
    record.remove()
    assert (redis.get(keys.STAT_PROCESSED), redis.get(keys.STAT_FAILED)) == (b"5", b"1")
    days = {key: redis.get(key) for key in redis.keys("stat:*:*")}
    assert sorted(days.values()) == [b"1", b"5"]
    assert all(redis.ttl(key) > 86_400 for key in days)


# --- the record -----------------------------------------------------------------------------------------------------


def test_record_heartbeat_returns_all_requested_signals(redis, record):
    redis.lpush(keys.signals(IDENTITY), "TSTP")
    redis.lpush(keys.signals(IDENTITY), "TERM")
    assert record.heartbeat() == ["TSTP", "TERM"]
    assert record.heartbeat() == []


@pytest.mark.proves("R57")
def test_record_two_idle_heartbeats_cost_four_commands(redis, record):
    record.heartbeat()
    before = redis.info("stats")["total_commands_processed"]
    for _ in range(10):
        record.heartbeat()
    assert redis.info("stats")["total_commands_processed"] - before <= 21  # one is an INFO


def written(redis, record):
    """Return whether a heartbeat writes the record."""
    redis.hset(IDENTITY, "beat", "0")
    record.heartbeat()
    return redis.hget(IDENTITY, "beat") != b"0"


def test_record_without_changes_writes_every_second_heartbeat(redis, record):
    assert [written(redis, record) for _ in range(5)] == [True, False, True, False, True]


def test_record_has_the_ended_runs_of_each_queue(redis, runs, record):
    for counts, queues in ((runs.new_thread_counts(), ("mail", "mail")), (runs.new_thread_counts(), ("mail", "slow"))):
        for queue in queues:
            counts.ended(Execution(UnitOfWork(queue, b"{}")))
    record.heartbeat()
    assert json.loads(redis.hget(IDENTITY, "aw_runs")) == {"mail": 3, "slow": 1}
    assert json.loads(redis.hget(IDENTITY, "aw_busy")) == {}
    assert runs.totals().processed == 4


def test_record_has_the_clock_of_its_host(redis, record):
    record.clock_s = -2.5
    record.heartbeat()
    assert redis.hmget(IDENTITY, "aw_clock_s", "aw_lost_at") == [b"-2.5", b"0.0"]


def test_record_change_is_written_at_once(redis, record):
    units = []
    record.runs = RunningJobs()
    record.runs.show(SimpleNamespace(running=lambda: units))
    assert written(redis, record)
    record.process.quiet = True
    assert written(redis, record)
    record.runs.new_thread_counts().processed = 1
    assert written(redis, record)
    unit = UnitOfWork("default", encoded())
    unit.thread = 7
    units.append(unit)
    assert written(redis, record)
    assert written(redis, record)  # work hashes live as long as the record
    units.clear()
    assert written(redis, record)
    assert not redis.exists(*keys.work(IDENTITY))
    assert not written(redis, record)


def test_record_refused_write_is_repeated_by_next_heartbeat(redis, record):
    redis.set(IDENTITY, "no hash")
    with pytest.raises(RedisError):
        record.heartbeat()
    redis.delete(IDENTITY)
    assert written(redis, record)


@pytest.mark.proves("R6", "R70")
def test_record_deleted_from_the_list_is_listed_again(redis, record):
    record.heartbeat()
    redis.delete(IDENTITY, keys.PROCESSES)  # Sidekiq removes processes whose record has expired
    record.heartbeat()
    record.heartbeat()
    assert redis.smembers(keys.PROCESSES) == {IDENTITY.encode()}


@pytest.mark.proves("R58")
@each_row(
    ("data", "shown"),
    [
        (encoded(args=["x" * 9_000], bid="kept"), payload(bid="kept")),
        (
            encoded("Job" * 200, args=[1], error_message="x" * 9_000),
            {"class": "Job" * 85 + "J", "jid": "ab" * 12, "queue": "default"},
        ),
        (b"x" * 9_000, {"class": "", "jid": ""}),
        (encoded(args=[1]), payload()),
    ],
    ids=["arguments", "other fields", "unreadable", "small"],
)
def test_record_large_payload_shows_a_note_for_arguments(data, shown):
    text = display_payload(data)
    assert len(text) <= 4_096
    note = f"{len(data)} bytes, not shown" if len(data) > 4_096 else 1
    assert json.loads(text) == {**shown, "args": [note]}


# --- reading of records -----------------------------------------------------------------------------------------------

CAPSULES = {
    "default": {"concurrency": 3, "mode": "strict", "weights": {"default": 0, "low": 0}},
    "serial": {"concurrency": 1, "mode": "random", "weights": {"one": 1}},
}


@pytest.mark.parametrize(
    ("info", "fields", "queues", "slots"),
    [
        ({"queues": ["default"], "concurrency": 7}, {}, {"default"}, 7),
        ({"queues": ["default"], "capsules": CAPSULES}, {"concurrency": 4}, {"default", "low", "one"}, 4),
        ({"capsules": CAPSULES}, {}, {"default", "low", "one"}, 4),
        ({"capsules": {"odd": 5, "more": {"weights": 5, "concurrency": "x"}}, "queues": {}}, {}, set(), 0),
        ({"queues": ["default"]}, {"concurrency": "9" * 5_000}, {"default"}, 0),
    ],
    ids=["6.4 to 8.1.1", "8.1.2", "9", "odd", "endless"],
)
def test_seen_processes_reads_every_sidekiqs_record(redis, info, fields, queues, slots):
    register_process(redis, info, busy=1, **fields)
    (seen,) = read_processes(redis)
    assert (seen.queues, seen.slots, seen.busy) == (queues, slots, 1)


@pytest.mark.parametrize(
    ("folder", "tag"), [("shop", "shop"), ("shop/releases/20261122", "shop"), ("shop/20261122", "20261122")]
)
def test_default_tag_is_the_folder_of_the_project(tmp_path, monkeypatch, folder, tag):
    (tmp_path / folder).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / folder)
    assert default_tag() == tag
