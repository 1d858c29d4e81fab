import threading
from types import SimpleNamespace

import pytest
from redis import Redis
from redis.exceptions import RedisError

from framework.execute.stats import BUCKETS_MS, ClassMetrics, RunningJobs
from framework.finish.outcome import SUCCEEDED, Failed
from framework.process import metrics
from framework.process.metrics import SidekiqMetrics
from framework.wire.urgency_counts import CLASS_COUNT_BITS, CLASS_COUNTS, SLOW_AT, SUCCEEDED_AT
from tests.harness import full_memory

AT = 1_795_284_241.0  # 2026-11-21 18:04:01 UTC
MINUTE_7, MINUTE_8, TEN_8 = b"j|20261121|18:4", b"j|261121|18:04", b"j|261121|18:0"
HISTOGRAM_7, HISTOGRAM_8 = b"Shop::BillWorker-21-18:4", b"h|Shop::BillWorker-21-18:4"
URGENCIES = [b"aw:urgencies:261121|18:04", b"aw:urgencies:261121|18:0"]
NAME = "Shop::BillWorker"
WAITS = f"aw:waits:{NAME}|261121|18:0".encode()


@pytest.fixture
def bench(redis, granted, set_clock):
    runs = RunningJobs()
    set_clock.now, set_clock.monotonic = AT, 0.0
    made = SidekiqMetrics(granted, runs, (7, 8))
    return SimpleNamespace(runs=runs, counts=runs.new_thread_counts(), metrics=made, clock=set_clock)


def numbers(redis, key):
    return {name.decode(): int(value) for name, value in redis.hgetall(key).items()}


def buckets(redis, key, count=26, bits=16):
    return redis.execute_command(
        "BITFIELD", key, *[word for index in range(count) for word in ("GET", f"u{bits}", f"#{index}")]
    )


def class_counts(redis, key):
    """Return the counts of ``keys.class_waits`` by position, without zeros."""
    return {at: count for at, count in enumerate(buckets(redis, key, CLASS_COUNTS, CLASS_COUNT_BITS)) if count}


def test_flush_writes_the_keys_of_both_sidekiqs(redis, bench):
    for seconds in (0.001, 0.02, 0.1, 999.0):
        bench.counts.for_class(NAME).record_run(seconds)
    bench.counts.for_class(NAME).record_failure()
    bench.metrics.flush()
    assert set(redis.keys()) == {MINUTE_7, MINUTE_8, TEN_8, HISTOGRAM_7, HISTOGRAM_8, WAITS, *URGENCIES}
    for key in (MINUTE_7, MINUTE_8, TEN_8):
        assert numbers(redis, key) == {f"{NAME}|p": 5, f"{NAME}|f": 1, f"{NAME}|ms": 999_121}
    for key in (HISTOGRAM_7, HISTOGRAM_8):
        assert buckets(redis, key) == [1, 1, 0, 0, 0, 1, *[0] * 19, 1]
    ttls = {key: redis.ttl(key) for key in redis.keys("*")}
    assert all(259_190 < ttls.pop(key) <= 259_200 for key in (TEN_8, URGENCIES[1]))
    assert all(28_790 < ttl <= 28_800 for ttl in ttls.values())


def test_flush_adds_new_counts_of_all_threads(redis, bench):
    bench.counts.for_class(NAME).record_run(0.0015)
    bench.metrics.flush()
    thread = threading.Thread(target=lambda: bench.runs.new_thread_counts().for_class(NAME).record_run(0.0015))
    thread.start()
    thread.join()
    bench.counts.for_class("Other").record_failure()
    bench.metrics.flush()
    bench.metrics.flush()
    expected = {f"{NAME}|p": 2, f"{NAME}|ms": 3, "Other|p": 1, "Other|f": 1}
    assert numbers(redis, MINUTE_8) == numbers(redis, MINUTE_7) == expected
    assert buckets(redis, HISTOGRAM_8)[0] == 2
    assert not redis.exists("h|Other-21-18:4")


def test_metrics_flush_each_period_and_not_when_idle(redis, bench):
    def sent():
        before = redis.info("stats")["total_commands_processed"]
        bench.metrics.flush_if_due()
        return redis.info("stats")["total_commands_processed"] - before - 1

    assert sent() == 0
    bench.counts.for_class(NAME).record_run(0.1)
    bench.clock.monotonic = 9.9
    assert sent() == 0
    bench.clock.monotonic = 10.0
    # Of a class with successes: two of three words in three hashes, three bit fields; of its urgency one word in two; eight TTLs.
    assert sent() == 19
    bench.clock.monotonic = 20.0
    assert sent() == 0


def test_metrics_above_the_class_limit_rotate_classes(redis, bench, monkeypatch):
    monkeypatch.setattr(metrics, "MOST_CLASSES", 3)
    for _ in range(3):
        for number in range(8):
            bench.counts.for_class(f"W{number}").record_run(0)
        bench.metrics.flush()
    assert {name.partition("|")[0] for name in numbers(redis, MINUTE_8)} == {f"W{number}" for number in range(8)}


def test_metrics_without_a_version_write_nothing(redis, granted, bench):
    bench.counts.for_class(NAME).record_run(0)
    SidekiqMetrics(granted, bench.runs, ()).flush()
    assert redis.keys() == []


def test_flush_refused_write_counts_nothing_twice(redis, bench):
    redis.set(MINUTE_7, "no hash")
    bench.counts.for_class(NAME).record_run(0)
    bench.metrics.flush()
    assert numbers(redis, MINUTE_8) == {f"{NAME}|p": 1}
    bench.counts.for_class(NAME).record_run(0)
    with full_memory(redis):
        bench.metrics.flush()
    bench.metrics.flush()
    assert numbers(redis, MINUTE_8) == {f"{NAME}|p": 1}


def test_boot_without_redis_is_reported():
    runs = RunningJobs()
    runs.new_thread_counts().for_class(NAME).record_run(0)
    with pytest.raises(RedisError):
        SidekiqMetrics(Redis(port=1, retry=None), runs, (8,)).flush_if_due()


def test_histogram_buckets_equal_sidekiqs():
    measure = ClassMetrics()
    for bound in BUCKETS_MS:
        measure.record_run(bound / 1000 - 0.0005)
    measure.record_run(335.0)
    assert measure.buckets == [1] * 26


def ended(waited_s=0.0625, duration_s=0.1, *, enqueued="enqueued_at", failed=False, urgency="high"):
    """Return a run of a job that waited so long."""
    payload = {"created_at": AT - 1_000, enqueued: AT - waited_s} if enqueued else {}
    outcome = Failed(ValueError("x")) if failed else SUCCEEDED
    return SimpleNamespace(
        declaration=SimpleNamespace(wire_name=f"{urgency.title()}Worker", urgency=urgency),
        payload=payload,
        unit=SimpleNamespace(queue="default", started_at=AT),
        outcome=outcome,
        ending=SimpleNamespace(processed="script"),
        admitted=True,
        duration_s=duration_s,
    )


def test_runs_are_counted_by_urgency(redis, bench):
    for run in (
        ended(),
        ended(10.5, 10.0),
        # An end of the clock of the producer that is ahead.
        ended(-5.0),
        ended(61.0, 99.0, failed=True),
        ended(enqueued="failed_at"),
        ended(enqueued=None),
        ended(urgency="low", duration_s=299.0),
    ):
        bench.counts.ended(run)
    bench.metrics.flush()
    high = {"p": 6, "f": 1, "s": 1, "u": 1, "ms": 1_071_562, "w10": 1, "w60": 1, "w600": 1}
    for key in URGENCIES:
        found = numbers(redis, key)
        assert found == {**{f"high|{word}": count for word, count in high.items()}, "low|p": 1, "low|ms": 62}
    waits = "aw:waits:HighWorker|261121|18:0"
    # Two that began at once, 10 s, a minute, 10 minutes; of five without failure one was slow.
    of_class = {0: 2, 6: 1, 8: 1, 11: 1, SUCCEEDED_AT: 5, SLOW_AT: 1}
    assert class_counts(redis, waits) == of_class
    bench.counts.ended(ended(2.0))
    bench.metrics.flush()
    assert class_counts(redis, waits) == {**of_class, 4: 1, SUCCEEDED_AT: 6}
    assert numbers(redis, URGENCIES[0]) == {**found, "high|p": 7, "high|ms": found["high|ms"] + 2_000, "high|w2": 1}


def test_run_whose_wait_is_counted_after_it_is_no_second_run(redis, bench):
    counts = bench.counts.for_class(NAME)
    counts.record_run(0.1)
    bench.metrics.flush()
    # The thread of the job goes on, and another run follows.
    counts.waits[2] += 1
    counts.record_run(0.1)
    bench.metrics.flush()
    counts.record_run(0.1)
    bench.metrics.flush()
    assert class_counts(redis, WAITS) == {0: 2, 3: 1, SUCCEEDED_AT: 3}
