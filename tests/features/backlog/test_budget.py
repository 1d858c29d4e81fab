"""Test the memory budget of a shard: what is measured, which classes are held back, and what their pushes say."""

import math

import pytest

from framework.admin.explain_reader import ShardSnapshot, ShownFacts
from framework.admin.figures import Figure
from framework.application_worker import ApplicationWorker
from framework.declare import port, registry
from framework.errors import BacklogFullError, BulkPushError, ShardUnavailableError
from framework.features.backlog.explain import BacklogReader
from framework.features.backlog.figures import BacklogFigures
from framework.features.backlog.push import DROPPED, limit_pushes
from framework.features.backlog.worker import BudgetWatch
from framework.features.deduplication.push import Deduplicator
from framework.features.reliable_push.reliable_push import KeepLimits, ReliablePush
from framework.push.client import Client
from framework.route.router import Router
from framework.settings.base import SettingsBase
from framework.settings.model import SizeLimitSettings
from framework.shard import held_back as held_back_module
from framework.shard.memory_report import (
    OTHER,
    HeldClass,
    MemoryPart,
    MemoryReport,
    ShardMemory,
    budget_of,
    classes_above_fair_share,
    read_report,
)
from framework.shard.shards import Shards
from framework.wire import keys
from framework.wiring.client import bind_default
from tests.harness import encoded, full_memory, opened, until

MB = 1_000_000


def measured(**classes):
    parts = [MemoryPart(name, "queue", 10, size) for name, size in classes.items()]
    return ShardMemory(sum(classes.values()) + 10, 0, "noeviction", 0, [*parts, MemoryPart("", OTHER, 0, 10)], False)


@pytest.mark.parametrize(
    ("classes", "held"),
    [
        ({"Flood": 900, "Small": 40}, {"Flood"}),
        ({"Flood": 500, "Other": 480, "Small": 40}, {"Flood", "Other"}),
        ({"Flood": 500, "Middle": 300, "Small": 40, "Tiny": 1}, set()),
        ({"Flood": 700, "Middle": 200, "Small": 40, "Tiny": 1}, {"Flood"}),
        ({f"Small{number}": 40 for number in range(30)}, set()),
        ({}, set()),
    ],
)
def test_fair_share_holds_back_those_who_fill_memory(classes, held):
    one = measured(**classes)
    found = classes_above_fair_share(one.used, one.by_class(), 980)
    assert found.keys() == held
    assert all(one == HeldClass(10, classes[name]) for name, one in found.items())


def test_budget_is_bytes_or_a_share_of_what_is_known():
    assert budget_of(5 * MB, 10, 20) == 5 * MB
    assert budget_of(0.5, 10 * MB, 20 * MB) == 5 * MB
    assert budget_of(0.5, 0, 20 * MB) == 10 * MB
    assert budget_of(0.5, 0, 0) == 0


def test_report_is_read_as_it_was_written():
    report = MemoryReport(9, 10, {"Mail": HeldClass(1, 2)}, [MemoryPart("Mail", "queue", 1, 2)])
    assert read_report(report.encode()) == report
    for garbage in (None, b"", b"no", b"[]", b"{}", b'{"used":"x","budget":1}', b'{"used":1,"budget":1,"parts":[1]}'):
        assert read_report(garbage) is None
    assert read_report(b'{"used":1,"budget":1,"held":[1]}') == MemoryReport(1, 1, {}, [])


def watch(client, budget, identity="me"):
    made = BudgetWatch(client, "main", identity, budget, SizeLimitSettings())
    made._measured_at = -math.inf
    made.step()
    return made


@pytest.fixture
def flooded(granted, redis):
    """Fill the shard with two thousand large jobs of a class and a few of another; return what Redis uses."""
    redis.sadd("queues", "flood", "mail")
    for _ in range(20):
        redis.lpush("queue:flood", *[encoded("Flood", jid="j", text="x" * 4_000)] * 100)
    redis.lpush("queue:mail", *[encoded("Mail", jid="j")] * 50)
    return int(redis.info("memory")["used_memory"])


def test_watch_holds_the_class_that_fills_the_memory(granted, redis, flooded, caplog):
    made = watch(granted, flooded - MB)
    report = read_report(redis.get(keys.MEMORY))
    assert report.held.keys() == {"Flood"}
    # If this process is killed, another one soon sees that there is room.
    assert 0 < redis.pttl(keys.MEMORY_WATCHER) <= 20_000
    assert report.held["Flood"].jobs == pytest.approx(2_000, rel=0.02)
    assert report.held["Flood"].bytes == pytest.approx(redis.memory_usage("queue:flood", samples=0), rel=0.05)
    (line,) = [
        one for one in caplog.records if getattr(one, "event_name", "") == "backlog.full" or "held back" in one.message
    ]
    assert "Flood" in line.message
    caplog.clear()
    made._measured_at = -math.inf
    made.step()
    assert caplog.text == ""
    redis.ltrim("queue:flood", 0, 99)
    made.step()
    assert read_report(redis.get(keys.MEMORY)).held == {}


def test_watch_that_passes_its_budget_again_does_not_measure(granted, redis, flooded):
    made = watch(granted, flooded - MB)
    measured_at = made._measured_at
    job = redis.lindex("queue:flood", 0)
    redis.ltrim("queue:flood", 0, 999)
    made.step()
    assert read_report(redis.get(keys.MEMORY)).held == {}
    redis.lpush("queue:flood", *[job] * 1_000)
    made.step()
    assert read_report(redis.get(keys.MEMORY)).held.keys() == {"Flood"}
    assert made._measured_at == measured_at


def test_watch_that_takes_over_measures_an_empty_shard(granted, redis):
    redis.set(keys.MEMORY, MemoryReport(9, 8, {"Flood": HeldClass(1, 1)}).encode())
    watch(granted, 10**12)
    assert read_report(redis.get(keys.MEMORY)).held == {}


def test_watch_warns_near_the_budget(granted, redis, flooded, caplog):
    watch(granted, int(flooded / 0.93))
    assert read_report(redis.get(keys.MEMORY)).held == {}
    assert "near its budget" in caplog.text
    caplog.clear()
    watch(granted, flooded * 2)
    assert "near" not in caplog.text


def test_one_process_of_a_shard_measures(granted, redis, flooded):
    first = watch(granted, flooded - MB)
    redis.delete(keys.MEMORY)
    watch(granted, flooded - MB, "other")
    assert redis.get(keys.MEMORY) is None
    first.release()
    watch(granted, flooded - MB, "other")
    assert read_report(redis.get(keys.MEMORY)).held


def test_report_is_written_to_a_full_server(granted, redis, flooded):
    with full_memory(redis):
        watch(granted, flooded - MB)
    assert read_report(redis.get(keys.MEMORY)).held.keys() == {"Flood"}


def worker(name, **attributes):
    def perform(self, number: int):
        """Accept a number."""

    body = {"feature_category": "not_owned", "wire_name": name, "queue": "flood", "perform": perform}
    return type(name, (ApplicationWorker,), {**body, **attributes})


@pytest.fixture
def pushes(redis, redis_url):
    shards = Shards({"main": opened(redis_url)})

    def connect(**options):
        port.bind(Client(shards, Router([], ["main"]), steps=[limit_pushes], **options))

    with registry.isolated():
        connect()
        yield connect, shards["main"].held_back
    port.unbind()
    bind_default()
    shards["main"].close()


def hold(redis, held_back, *names):
    report = MemoryReport(9 * MB, 8 * MB, {name: HeldClass(1_000, 5 * MB) for name in names})
    redis.set(keys.MEMORY, report.encode())
    held_back._read_at = held_back.next_at = 0.0


def test_push_of_a_held_class_is_refused_and_others_pass(redis, pushes):
    _, held_back = pushes
    flood, mail = worker("Flood"), worker("Mail")
    hold(redis, held_back, "Flood")
    with pytest.raises(
        BacklogFullError, match=r"Flood: .* 1,000 jobs \(5 MB\).*budget of 8 MB \(shards.main.memory_budget\)"
    ):
        flood.perform_async(1)
    with pytest.raises(BacklogFullError):
        flood.perform_async(1)
    assert mail.perform_async(1)
    assert redis.llen("queue:flood") == 1
    redis.delete(keys.MEMORY)
    held_back._read_at = 0.0
    assert flood.perform_async(1)


def test_push_reads_the_report_once_in_a_period(redis, pushes):
    _, held_back = pushes
    mail = worker("Mail")
    mail.perform_async(1)
    held_back._read_at = held_back.next_at = 0.0
    before = redis.info("commandstats").get("cmdstat_get", {}).get("calls", 0)
    for _ in range(3):
        mail.perform_async(1)
    assert redis.info("commandstats")["cmdstat_get"]["calls"] - before == 1


def test_fast_producer_holds_back_what_it_pushed_itself(redis, pushes):
    _, held_back = pushes
    used = int(redis.info("memory")["used_memory"])
    # A report from before the flood: it knows of no class, and holds none back.
    redis.set(keys.MEMORY, MemoryReport(used, used + MB, {}).encode())
    held_back._read_at = held_back.next_at = 0.0
    flood, mail = worker("Flood"), worker("Mail")
    mail.perform_async(1)
    # Nothing below is decided by a clock.
    held_back._read_at = held_back.next_at = math.inf
    with pytest.raises(BulkPushError) as caught:
        flood.perform_bulk([(1,)] * 40_000)
    assert isinstance(caught.value.__cause__, BacklogFullError)
    assert int(redis.info("memory")["used_memory"]) < used + 2 * MB
    with pytest.raises(BacklogFullError):
        flood.perform_async(1)
    assert mail.perform_async(1)
    redis.delete("queue:flood")
    # The server frees a long list in a thread of its own.
    until(lambda: int(redis.info("memory")["used_memory"]) < used + MB // 2, "the memory is free")
    held_back._read_at = 0.0
    assert flood.perform_async(1)


def test_held_class_drops_or_keeps_as_it_declares(redis, redis_url, pushes, tmp_path):
    connect, held_back = pushes
    shard = opened(redis_url)
    keeper = ReliablePush(tmp_path / "kept", KeepLimits(100, MB), {"main": shard}, period_s=60)
    connect(fallback=keeper)
    hold(redis, held_back, "Drop", "Keep")
    assert worker("Drop", on_full="drop").perform_async(1) is None
    assert redis.hget(keys.COUNTERS, f'{DROPPED}{{worker="Drop"}}') == b"1"
    assert worker("Keep", on_full="keep").perform_async(1)
    shard.held_back._read_at = shard.held_back.next_at = 0.0
    keeper.replay()
    assert (redis.llen("queue:flood"), keeper.kept[0]) == (0, 1)
    redis.delete(keys.MEMORY)
    shard.held_back._read_at = 0.0
    keeper.replay()
    assert (redis.llen("queue:flood"), keeper.kept[0]) == (1, 0)
    shard.close()


@pytest.fixture
def full(redis, pushes):
    """Fill the server to its maxmemory, by one class as the report says; return the function that sets how far it is above it."""
    connect, held_back = pushes
    connect(locks=Deduplicator())
    parts = [
        MemoryPart("Flood", "queue", 9, 5 * MB),
        MemoryPart("Middle", "queue", 9, MB),
        MemoryPart("Mail", "retry", 9, 9_000),
    ]
    redis.set(keys.MEMORY, MemoryReport(9 * MB, 8 * MB, {}, parts).encode())

    def above(size):
        redis.config_set("maxmemory", int(redis.info("memory")["used_memory"]) - size)
        held_back._reserve_until = 0.0

    above(100_000)
    yield above
    redis.config_set("maxmemory", 0)


def test_small_class_is_pushed_to_a_full_redis(redis, full):
    mail = worker("Mail", status_expiration=60)
    jid = mail.perform_async(1)
    assert redis.get(keys.status(jid)) == b"queued"
    assert len(mail.perform_bulk([(2,), (3,)])) == 2
    once = worker("Once", idempotent=True)
    assert once.perform_async(1)
    assert once.perform_async(1) is None
    assert (redis.llen("queue:flood"), redis.smembers(keys.QUEUES)) == (4, {b"flood"})
    with pytest.raises(ShardUnavailableError, match="OOM"):
        mail.perform_in(60, 1)


def test_reserve_of_a_full_redis_is_for_small_classes_only(redis, full, pushes):
    _, held_back = pushes
    for name in ("Flood", "Middle"):
        with pytest.raises(ShardUnavailableError, match=r"OOM.* Flood fills most of it: 5 MB in 9 jobs"):
            worker(name).perform_async(1)
    held_report = MemoryReport(9 * MB, 8 * MB, {"Mail": HeldClass(9, MB)}).encode()
    for report in (held_report, b"no report"):
        redis.config_set("maxmemory", 0)
        redis.set(keys.MEMORY, report)
        full(100_000)
        held_back._small_at = 0.0
        with pytest.raises(ShardUnavailableError):
            worker("Mail").perform_async(1)
    assert not redis.exists("queue:flood")


def test_reserve_of_a_full_redis_ends(redis, full, pushes, monkeypatch):
    _, held_back = pushes
    monkeypatch.setattr(held_back_module, "LEAST_RESERVE", MB // 4)
    mail = worker("Mail")
    assert mail.perform_async(1)
    full(MB // 2)
    with pytest.raises(ShardUnavailableError):
        mail.perform_async(1)
    full(MB // 8)
    before = redis.info("commandstats")["cmdstat_info"]["calls"]
    monkeypatch.setattr(held_back_module, "_RESERVE_S", math.inf)
    # A part of the reserve is used without another look: 12,500 bytes.
    assert [held_back.has_reserve("Mail", 6_000) for _ in range(4)] == [True] * 4
    assert held_back.has_reserve("Mail", 50_000)
    assert not held_back.has_reserve("Mail", MB)
    # Those of this test included, the looks at 1, 3, 5 and 6.
    assert redis.info("commandstats")["cmdstat_info"]["calls"] - before == 5


def test_figures_are_those_of_the_report():
    report = MemoryReport(9, 10, {}, [MemoryPart("Mail", "queue", 1, 7), MemoryPart("", OTHER, 0, 2)])
    figures = list(BacklogFigures(SettingsBase.model_construct()).read("main", report.encode(), 0.0))
    assert figures == [
        Figure("application_worker_redis_memory_bytes", {"class": "Mail", "place": "queue"}, 7),
        Figure("application_worker_redis_memory_bytes", {"class": "", "place": OTHER}, 2),
        Figure("application_worker_redis_memory_budget_bytes", {}, 10),
    ]
    assert list(BacklogFigures(SettingsBase.model_construct()).read("main", b"", 0.0)) == []


def test_explain_shows_the_backlog_of_a_class(redis, granted):
    with registry.isolated():
        worker("Flood", max_waiting=5)
        redis.hset(keys.ACCEPTED_JOBS, "Flood", 3)
        redis.hset(keys.ACCEPTED_BYTES, "Flood", 1_000)
        redis.set(keys.MEMORY, MemoryReport(9, 8, {"Flood": HeldClass(3, 9)}).encode())
        shown = BacklogReader(ShardSnapshot(granted, "main")).of_class("Flood")
        assert shown.fields == {"accepted_jobs": 3, "accepted_bytes": 1_000, "held_back": True}
        assert next(text for _, text in shown.lines) == "3 jobs of 5 accepted and not ended (1 kB)"
        other = BacklogReader(ShardSnapshot(granted, "main")).of_class("Other")
        assert other == ShownFacts([], {"accepted_jobs": 0, "accepted_bytes": 0, "held_back": False})


def test_error_of_a_full_redis_names_the_class_that_fills_it(redis, pushes):
    flood = worker("Flood")
    parts = [
        MemoryPart("Flood", "queue", 500, 5 * MB),
        MemoryPart("Flood", "waiting", 500, 4 * MB),
        MemoryPart("", OTHER, 0, 9 * MB),
    ]
    redis.set(keys.MEMORY, MemoryReport(9 * MB, 8 * MB, {}, parts).encode())
    with (
        full_memory(redis),
        pytest.raises(ShardUnavailableError, match=r"Flood fills most of it: 9 MB in 1,000 jobs; .*jobs memory"),
    ):
        flood.perform_async(1)


def test_error_of_a_full_redis_without_a_report_says_so(redis, pushes):
    redis.set(keys.MEMORY, b'{"parts":[1]}')
    with full_memory(redis), pytest.raises(ShardUnavailableError, match="it is full") as caught:
        worker("Mail").perform_async(1)
    assert "fills most" not in str(caught.value)
