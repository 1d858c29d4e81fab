"""Test jobs that a rate limiter does not admit, in ``perform`` or by the attribute ``limiter``."""

from datetime import timedelta
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from framework import limiter
from framework.declare import port, registry
from framework.errors import DeclarationError, OverLimit
from framework.execute.outcomes import over_limit_outcome
from framework.features.limiters import keys as limiter_keys
from framework.features.limiters.store import LimiterStore
from framework.fetch.unit_of_work import UnitOfWork
from framework.finish.endings import OVER_LIMIT_JOBS
from framework.finish.outcome import Discarded, Failed, Snoozed
from framework.telemetry.counters import counters
from framework.wire import keys
from framework.wire.json import loads
from tests.execute.processor_bench import ProcessorBench, worker
from tests.harness import enqueue, opened, until
from tests.tables import each_row

ONE = limiter.concurrent("one", 1, wait_timeout=0, lock_timeout=600)


def outcome_of(error, count=None):
    unit = UnitOfWork(b"{}", "default")
    with patch("random.random", lambda: 0.5):
        found = over_limit_outcome(unit, {} if count is None else {"overrated": count}, error)
    return found, unit.extra_fields


def test_job_over_the_limit_is_delayed_more_each_time():
    delays = [outcome_of(OverLimit("api", "", 3), count)[0].delay_s for count in (None, 1, "odd", -4)]
    assert delays == [451, 751, 451, 451]
    assert outcome_of(OverLimit("api", "", 3), 4)[1] == {"overrated": 5, "aw_limiter": "api"}
    assert outcome_of(OverLimit("api", "", 3, retry_after_s=9_000))[0].delay_s == 9_000 + 451 / 2
    assert outcome_of(OverLimit("api", "", 3, retry_after_s=6, turn_s=12), 7)[0].delay_s == 12


@each_row(
    "backoff, delay_s",
    [
        (lambda count: 7 * count, 14),
        (lambda count: timedelta(minutes=count), 120),
        (lambda count: 1 / 0, 751),
        (lambda count: "soon", 751),
        (lambda count: float("nan"), 751),
    ],
)
def test_backoff_of_the_limiter_counts_unless_it_fails(backoff, delay_s):
    assert outcome_of(OverLimit("api", "", 3, backoff=backoff), 1)[0].delay_s == delay_s


def test_policy_and_most_reschedules_decide_the_outcome(monkeypatch):
    monkeypatch.setattr(counters, "_counts", {})
    last, _ = outcome_of(OverLimit("api", "", 3, reschedules=2), 1)
    over, fields = outcome_of(error := OverLimit("api", "", 3, reschedules=2), 2)
    assert (type(last), over, fields) == (Snoozed, Failed(error), None)
    assert outcome_of(error := OverLimit("api", "", 3, policy="raise"))[0] == Failed(error)
    skipped = Discarded("limiter api is at its limit", "limiter")
    assert outcome_of(OverLimit("api", "", 3, policy="skip", reschedules=2), 2)[0] == skipped
    # A reschedule counts by its ending.
    assert counters._counts == {f'{OVER_LIMIT_JOBS}{{worker="None"}}': 3}


@pytest.fixture
def bench(redis, redis_url, monkeypatch):
    monkeypatch.setattr(counters, "_counts", {})
    shard = opened(redis_url)
    with (
        registry.isolated(),
        port.override(
            SimpleNamespace(
                service=lambda _: LimiterStore(
                    SimpleNamespace(shards={"main": shard}, settings=SimpleNamespace(fleet_shard="main"))
                )
            )
        ),
    ):
        one = ProcessorBench(redis, redis_url, 1, ())
        yield one
        one.stop()
    shard.close()


def test_over_limit_in_perform_is_no_failure(bench, redis):
    def perform(self):
        with ONE.within():
            pass

    worker(perform)
    with ONE.within():
        enqueue(redis, "Job")
        bench.start()
        until(lambda: redis.zcard(keys.SCHEDULE))
    (stored,) = redis.zrange(keys.SCHEDULE, 0, -1)
    job = loads(stored)
    assert (job["overrated"], job.get("retry_count"), job.get("error_class")) == (1, None, None)
    (line,) = until(lambda: bench.lines(job_status="snoozed"))
    assert (line["snoozed_by"], line["limiter"], line["over_limit_count"]) == ("limiter", "one", 1)
    assert not bench.failed
    assert counters._counts == {f'{OVER_LIMIT_JOBS}{{worker="Job"}}': 1}


def test_attribute_keeps_a_run_back_without_perform(bench, redis):
    calls = []
    worker(lambda self, tenant: calls.append((tenant, ONE.used(tenant))), limiter=ONE.by(lambda args: args[0]))
    with ONE.within("ada"):
        for tenant in ("ada", "bob", None):
            enqueue(redis, "Job", args=[tenant])
        bench.start()
        until(lambda: redis.zcard(keys.SCHEDULE) and len(calls) == 2)
    # A job without a key is not limited.
    assert calls == [("bob", 1), (None, 0)]
    until(lambda: ONE.used("bob") == 0)


def test_attribute_counts_a_job_that_comes_back_once(bench, redis):
    worker(lambda self: None, limiter=ONE)
    with ONE.within():
        # As after two reschedules, and a first try.
        for fields in ({"overrated": 2, "aw_limiter": "one"}, {}):
            enqueue(redis, "Job", **fields)
        bench.start()
        until(lambda: redis.zcard(keys.SCHEDULE) == 2)
    assert redis.hget(limiter_keys.limiter("one"), "refused") == b"1"


def test_attribute_holds_the_lock_of_an_async_run(bench, redis):
    seen = []

    async def perform(self, fails):
        seen.append(await ONE.aused())
        if fails:
            raise ValueError("no")

    worker(perform, limiter=ONE, retry=False)
    for fails in (False, True):
        enqueue(redis, "Job", args=[fails])
    bench.start()
    until(lambda: len(bench.lines(job_status="fail")) + redis.zcard(keys.SCHEDULE) + len(seen) >= 2)
    until(lambda: ONE.used() == 0)
    assert set(seen) == {1}


def test_attribute_reads_a_fact_of_the_context(bench, redis):
    worker(lambda self: None, limiter=limiter.window("daily", 1, "day").by("user"))
    for user in ("ada", "ada", "bob"):
        enqueue(redis, "Job", **{"meta.user": user})
    bench.start()
    until(lambda: redis.zcard(keys.SCHEDULE) == 1 and len(bench.lines(job_status="done")) == 2)


def test_attribute_of_another_type_is_refused():
    with pytest.raises(DeclarationError, match=r"limiter = 5 is not allowed. Allowed: limiter\.bucket\(\.\.\.\)"):
        worker(lambda self: None, limiter=5)
