"""Test the figures of a shard: what they say, that the catalogue has each, and how few commands read them."""

import json
import subprocess
import time

import pytest

from framework.admin.figures import number
from framework.all_settings import Settings
from framework.declare import registry
from framework.features.observability.catalogue import FLEET
from framework.features.observability.figure_text import exposition, read_series
from framework.features.observability.fleet import FleetReader
from framework.features.observability.redis_figures import state_of
from framework.wire import keys
from tests.admin.test_process_list import write_record
from tests.cli.test_jobs import REPORT, defer_jobs, park, take_slot
from tests.harness import ROOT, encoded, enqueue, register_process

OURS = "host:8:00000000000a"
GONE = "host:9:00000000000b"


@pytest.fixture
def reader(tmp_path):
    shards = {"main": {"url": "embedded"}}
    return FleetReader(Settings(config_dir=tmp_path, root=tmp_path, var_dir=tmp_path, shards=shards))


@pytest.fixture
def figures(reader, redis):
    """Return a function that reads the figures of the server, by series."""

    def read():
        found = reader.read("main", redis).figures
        assert all(one.labels["shard"] == "main" for one in found)
        read = {(one.name, *sorted(v for k, v in one.labels.items() if k != "shard")): one.value for one in found}
        assert len(read) == len(found)
        return read

    return read


def populate(redis):
    """Fill a shard with one of each thing that has figures."""
    now = time.time()
    enqueue(redis, "NoopWorker", jid="young", enqueued_at=now - 50)
    redis.rpush("queue:default", encoded("NoopWorker", jid="old", enqueued_at=now - 100))
    for name, level in (("default~low^", "low"), ("default~high^seller", "high")):
        redis.sadd(keys.QUEUES, name)
        redis.lpush(f"queue:{name}", encoded("NoopWorker", jid=name, priority=level, enqueued_at=now))
    redis.sadd(keys.PAUSED, "reports")
    defer_jobs(redis, 3)
    redis.zadd(keys.SCHEDULE, {encoded("NoopWorker", jid="overdue"): now - 7})
    redis.zadd(keys.RETRY, {encoded("NoopWorker", jid="failed"): now + 600})
    redis.zadd(keys.DEAD, {"a": now, "b": now})
    redis.zadd(keys.INTERRUPTED, {"c": now})
    redis.mset({keys.STAT_PROCESSED: 1_000, keys.STAT_FAILED: 30})
    write_record(redis)
    for identity, beat in ((OURS, now - 4), (GONE, now - 90)):
        redis.sadd(keys.PROCESSES, identity)
        redis.zadd(keys.REGISTRY, {identity: beat})
        record = {"busy": 3, "concurrency": 10, "quiet": "true", "rss": 1_000, "aw_runs": json.dumps({"default": 7})}
        record |= {"aw_busy": json.dumps({"default": 3}), "aw_clock_s": -1.5, "aw_lost_at": now - 4}
        redis.hset(identity, mapping=record)
        redis.hset(keys.process(identity), mapping={"slots": 10, "capsule:slow": 2})
        redis.lpush(keys.working(identity), "x")
        redis.lpush(keys.working(f"{identity}/slow"), "y", "z")
    redis.set(keys.lease(OURS), 1)
    for jid in ("a", "b", "c"):
        take_slot(redis, jid, 1)
    park(redis, "MailWorker", "m")
    redis.hset(keys.lock("one"), "jid", "one")
    redis.zadd("aw:exclusive_leases", {"lease": now + 60, "ended": now - 60})
    redis.zadd("aw:limiters", {"limiter": now + 60})
    redis.zadd(keys.TASK_EVENTS, {"event": now - 11})
    for bid, ended in (("open", {}), ("ended", {"finished_at": now})):
        redis.zadd("aw:batches", {bid: now + 600})
        redis.hset(f"aw:batch:{bid}", mapping={"pending": 1, "created_at": now - 33, **ended})
    redis.set("aw:leader:default", "host")
    redis.hset(keys.COUNTERS, 'sidekiq_jobs_skipped_total{action="dropped",reason="operator",worker="A"}', 4)
    redis.hset(
        keys.COUNTERS,
        'sidekiq_load_balancing_count{data_consistency="delayed",load_balancing_strategy="replica",worker="A"}',
        5,
    )
    redis.hset(keys.COUNTERS, mapping={"no series": 1, 'batch_events_total{event="created"}': "x"})
    for key, _ in keys.metrics(8, time.gmtime(now))[:1]:
        redis.hset(key, mapping={"NoopWorker|p": 4, "NoopWorker|ms": 8_000, "NoopWorker|f": 1})


def test_load_is_read_without_figures(reader, redis):
    populate(redis)
    whole, load_ = reader.read("main", redis), reader.read("main", redis, only_load=True)
    assert load_.figures == []
    names = ("sizes", "paused", "processes", "classes", "limits")
    assert [getattr(load_, one) for one in names] == [getattr(whole, one) for one in names]
    assert load_.sizes
    assert load_.processes


def test_figures_of_a_populated_shard(figures, redis):
    populate(redis)
    found = figures()
    exact = {
        ("sidekiq_queue_size", "default"): 4,
        ("sidekiq_queue_paused", "default"): 0,
        ("sidekiq_queue_size", "reports"): 0,
        ("sidekiq_queue_paused", "reports"): 1,
        ("application_worker_waiting_size", "default", "low"): 1,
        ("application_worker_waiting_size", "default", "high"): 1,
        ("application_worker_waiting_size", "default", "normal"): 2,
        ("sidekiq_jobs_enqueued_size",): 4,
        ("sidekiq_jobs_scheduled_size",): 4,
        ("sidekiq_jobs_retry_size",): 1,
        ("sidekiq_jobs_dead_size",): 2,
        ("application_worker_interrupted_size",): 1,
        ("application_worker_deferred_size",): 3,
        ("sidekiq_jobs_processed_total",): 1_000,
        ("application_worker_shard_jobs_failed_total",): 30,
        # A Ruby process without a lease counts; one of ours without its lease is dead, and its jobs are orphans.
        ("sidekiq_processes_size",): 2,
        ("sidekiq_workers_size",): 5,
        ("application_worker_slots",): 15,
        ("application_worker_quiet_processes",): 1,
        ("application_worker_orphaned_size",): 3,
        ("application_worker_clock_skew_max_seconds",): 1.5,
        ("application_worker_scheduler_lag_seconds", "retry"): 0,
        ("sidekiq_concurrency_limit_current_concurrent_jobs", "", REPORT): 1,
        ("sidekiq_concurrency_limit_queue_jobs", "", REPORT): 2,
        ("sidekiq_concurrency_limit_max_concurrent_jobs", "", REPORT): 1,
        ("sidekiq_concurrency_limit_current_limit", "", REPORT): 1,
        ("application_worker_held_size", REPORT, "waiting"): 2,
        ("application_worker_held_size", "MailWorker", "paused"): 1,
        ("application_worker_locks",): 1,
        ("application_worker_exclusive_leases",): 1,
        ("application_worker_rate_limiters",): 1,
        ("application_worker_task_events_waiting",): 1,
        ("application_worker_batches_open",): 1,
        ("application_worker_leader",): 1,
        ("application_worker_shard_jobs_skipped_total", "A", "dropped", "operator"): 4,
        ("application_worker_shard_load_balancing_total", "A", "delayed", "replica"): 5,
        ("application_worker_figures_incomplete",): 0,
        ("application_worker_shard_state", "closed"): 1,
        ("application_worker_shard_state", "oom"): 0,
        ("application_worker_redis_role", "master"): 1,
    }
    assert {name: found[name] for name in exact} == exact
    ages = {
        ("sidekiq_queue_latency_seconds", "default"): 100,
        ("application_worker_scheduler_lag_seconds", "schedule"): 7,
        ("application_worker_heartbeat_age_max_seconds",): 4,
        ("application_worker_task_events_oldest_age_seconds",): 11,
        ("application_worker_batches_oldest_age_seconds",): 33,
    }
    assert {name: found[name] for name in ages} == pytest.approx(ages, abs=30)
    assert time.time() - found["application_worker_data_loss_timestamp_seconds",] == pytest.approx(4, abs=30)
    assert not [name for name in found if "batch_events" in name[0]]
    # A paused job of the test is held since 1970.
    assert found["application_worker_held_oldest_age_seconds", "MailWorker", "paused"] > 1e9


def test_slots_of_processes_that_are_gone_are_leaked(figures, redis):
    take_slot(redis, "a", 9)
    now, slots = time.time(), f"{keys.limit(REPORT)}:running"
    redis.set(keys.lease(OURS), 1)
    redis.zadd(
        slots,
        {f"{OURS} renewed": now + 180, f"{OURS} late": now + 60, f"{GONE} young": now + 170, " reserved": now + 30},
    )
    assert figures()["application_worker_leaked_slots", REPORT] == 0
    redis.zadd(slots, {f"{OURS} expired": now - 1, f"{GONE} old": now + 140})
    assert figures()["application_worker_leaked_slots", REPORT] == 2


def test_load_of_a_shard_is_read_for_the_needed_slots(reader, redis):
    populate(redis)
    found = reader.read("main", redis)
    assert (found.sizes["default"], found.paused, found.limits) == (4, {"reports"}, {REPORT: 1})
    assert found.processes[OURS] == (3, 10, {"default": 7}, {"default": 3})
    assert found.classes == {"NoopWorker": (4, 8.0)}


def test_catalogue_has_each_figure_with_its_labels(reader, redis):
    populate(redis)
    known = {one.name: {*one.labels} for one in FLEET}
    for one in reader.read("main", redis).figures:
        assert set(one.labels) == known[one.name], one
    assert [
        name for name in known if not name.startswith(("sidekiq_", "limited_capacity_", "application_worker_"))
    ] == []


def test_page_lists_each_figure():
    page = (ROOT / "docs" / "operate" / "metrics.md").read_text()
    table = page.partition("<!-- metrics: fleet -->")[2].partition("<!-- /metrics -->")[0].strip().splitlines()[2:]
    assert table == [
        f"| `{one.name}` | {one.kind} | {', '.join(f'`{label}`' for label in one.labels) or '-'} | {one.help} | {one.origin} |"
        for one in FLEET
    ]


@pytest.mark.parametrize(("queues", "most"), [(3, 3), (5_000, 5)])
def test_scrape_takes_few_commands_for_many_queues(reader, redis, queues, most):
    redis.sadd(keys.QUEUES, *(f"q{number}" for number in range(queues)))
    with redis.monitor() as monitor:
        # The first read opens a connection, and sends the script.
        reader.read("main", redis)
        redis.echo("begin")
        while monitor.next_command()["command"] != "ECHO begin":
            pass
        found = reader.read("main", redis)
        redis.echo("end")
        commands = []
        while (command := monitor.next_command())["command"] != "ECHO end":
            commands += [command["command"].split()[0]] if command["client_type"] != "lua" else []
    assert commands == ["TIME", *["EVALSHA"] * (most - 2), "INFO"]
    assert sum(one.name == "sidekiq_queue_size" for one in found.figures) == queues


def test_queues_beyond_the_most_are_reported(reader, redis, monkeypatch):
    monkeypatch.setattr("framework.features.observability.fleet._QUEUES_AT_ONCE", 100)
    redis.sadd(keys.QUEUES, *(f"queue-with-a-long-name-{number}" for number in range(2_000)))
    found = {one.name: one.value for one in reader.read("main", redis).figures}
    assert found["application_worker_figures_incomplete"] == 1


@pytest.mark.parametrize("huge", ["9" * 400, "9" * 5_000])
def test_integers_beyond_floats_are_no_figures(reader, redis, huge):
    redis.hset(keys.COUNTERS, "sidekiq_kept_jobs_total", huge)
    register_process(redis, {}, aw_runs=f'{{"mail": {huge}}}')
    assert " 999" not in exposition(reader.read("main", redis).figures)
    assert number(10**400) == 0


def test_figures_survive_keys_of_other_types_and_garbage(figures, redis):
    for key in (
        "aw:limits",
        "aw:batches",
        "aw:exclusive_leases",
        keys.RETRY,
        keys.PROCESSES,
        keys.PAUSED,
        keys.COUNTERS,
    ):
        redis.set(key, "x")
    redis.sadd(keys.QUEUES, "broken", "words")
    redis.set("queue:broken", "x")
    redis.lpush("queue:words", b'\xff{"enqueued_at": "now"')
    redis.zadd(keys.REGISTRY, {"nobody": -1})
    redis.set(keys.STAT_PROCESSED, "many")
    found = figures()
    assert found["sidekiq_queue_size", "broken"] == 0
    assert found["sidekiq_queue_latency_seconds", "words"] == 0
    assert found["sidekiq_jobs_processed_total",] == 0
    # The part of one feature fails, and the others are there.
    assert ("application_worker_exclusive_leases",) not in found
    assert found["application_worker_rate_limiters",] == 0


@pytest.mark.parametrize("size", [10, 20_000])
def test_age_is_not_taken_from_arguments(figures, redis, size):
    """A large payload is not decoded; its last field counts, and the framework writes the arguments before it."""
    args = [{"enqueued_at": 1.5, "text": "x" * size}]
    redis.sadd(keys.QUEUES, "default")
    redis.lpush("queue:default", encoded("NoopWorker", args=args, enqueued_at=time.time() - 20))
    assert figures()["sidekiq_queue_latency_seconds", "default"] == pytest.approx(20, abs=15)


def test_limited_capacity_class_has_gitlabs_figures(figures, redis, monkeypatch):
    class Worker:
        @staticmethod
        def declaration():
            return type("D", (), {"facts": {"max_running_jobs": 5}, "feature_category": "search"})

    monkeypatch.setattr(registry, "find", lambda name: Worker if name == REPORT else None)
    take_slot(redis, "a", 5)
    found = figures()
    assert found["limited_capacity_worker_running_jobs", REPORT] == 1
    assert found["limited_capacity_worker_max_running_jobs", REPORT] == 5
    assert found["sidekiq_concurrency_limit_current_limit", REPORT, "search"] == 5


@pytest.mark.parametrize(
    ("info", "state"),
    [
        ({"role": "master"}, "closed"),
        ({"loading": 1, "role": "master"}, "loading"),
        ({"role": "slave"}, "readonly"),
        ({"maxmemory": 10, "used_memory": 10, "maxmemory_policy": "noeviction"}, "oom"),
        ({"maxmemory": 10, "used_memory": 10, "maxmemory_policy": "allkeys-lru"}, "closed"),
        ({"rdb_last_bgsave_status": "err"}, "misconf"),
        ({"aof_enabled": 1, "aof_last_write_status": "err"}, "misconf"),
        ({"aof_enabled": 0, "aof_last_write_status": "err"}, "closed"),
    ],
)
def test_state_of_a_server_follows_from_its_info(info, state):
    assert state_of(info) == state


def test_promtool_accepts_the_text_of_all_figures(reader, redis):
    populate(redis)
    redis.sadd(keys.QUEUES, 'odd "name"\\\n')
    text = exposition([*reader.read("main", redis).figures, *reader.of_host()])
    done = subprocess.run(["promtool", "check", "metrics"], input=text, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ('a_total{b="c",d="e\\"f\\\\n\\n"}', ("a_total", {"b": "c", "d": 'e"f\\n\n'})),
        ("a_total{}", ("a_total", {})),
        ("a_total", ("a_total", {})),
        ('a_total{b="c"', None),
        ("no name", None),
    ],
)
def test_series_of_a_counter_are_read(text, read):
    assert read_series(text) == read


def test_payload_store_shows_its_answer_and_its_last_sweep(tmp_path):
    settings = Settings(
        config_dir=tmp_path,
        root=tmp_path,
        var_dir=tmp_path,
        shards={"main": {"url": "embedded"}},
        payload_offload={"url": f"file://{tmp_path}/store"},
    )
    (tmp_path / "store").mkdir(mode=0o700)

    def read():
        found = {one.name: one.value for one in FleetReader(settings).of_host()}
        return {name: value for name, value in found.items() if "payload_store" in name}

    assert read() == {"application_worker_payload_store_up": 1}
    (tmp_path / "store" / "last-sweep").write_text(f"{time.time() - 100:.3f}\n")
    assert read()["application_worker_payload_store_sweep_age_seconds"] == pytest.approx(100, abs=30)
    (tmp_path / "store" / "last-sweep").unlink()
    (tmp_path / "store" / "last-sweep").mkdir()
    assert read() == {"application_worker_payload_store_up": 0}
