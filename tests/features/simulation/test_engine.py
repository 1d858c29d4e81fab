"""Test the simulation against what queueing theory and arithmetic say."""

from collections import Counter
from math import exp, factorial

import pytest

from framework.features.simulation.recorded import RecordedJob
from framework.features.simulation.report import report_of, waits_of
from framework.timings import current
from tests.features.simulation.fleets import job_class, process_set, simulated


def erlang_waits(load, slots):
    """Return the share of the jobs that wait (Erlang's delay formula)."""
    waiting = load**slots / factorial(slots) * slots / (slots - load)
    return waiting / (sum(load**k / factorial(k) for k in range(slots)) + waiting)


def test_random_jobs_wait_as_erlang_says():
    result = simulated([job_class("A", rate=10, duration={"mean": 0.1})], [process_set(slots=2)], seconds=3_000)
    waits = result.classes["A"].waits
    assert len(waits) == pytest.approx(30_000, rel=0.02)
    share = erlang_waits(1, 2)
    assert sum(one > 0 for one in waits) / len(waits) == pytest.approx(share, rel=0.05)
    assert sum(waits) / len(waits) == pytest.approx(share * 0.1, rel=0.1)
    # The wait of those that wait is exponential.
    assert sum(one > 0.1 for one in waits) / len(waits) == pytest.approx(share * exp(-1), rel=0.1)


def test_full_limit_hands_its_slots_to_the_oldest_jobs():
    classes = [
        job_class("A", limit=5, burst={"jobs": 20, "every": 1_000}, duration=1),
        job_class("B", burst={"jobs": 5, "every": 1_000}, duration=1),
    ]
    found = simulated(classes, seconds=100).classes
    assert Counter(map(round, found["A"].waits)) == {0: 5, 1: 5, 2: 5, 3: 5}
    assert (found["A"].most_held, set(found["B"].waits)) == (15, {0.0})


def test_weights_decide_how_often_a_queue_comes_first():
    classes = [job_class(name, name, burst={"jobs": 20_000, "every": 1_000}, duration=0.1) for name in ("a", "b")]
    found = simulated(classes, [process_set((("a", 3), ("b", 1)))], seconds=100).classes
    started = {name: len(one.waits) for name, one in found.items()}
    assert started["a"] / started["b"] == pytest.approx(3, rel=0.1)


def test_strict_order_starts_the_second_queue_last():
    classes = [job_class(name, name, burst={"jobs": 1_000, "every": 1_000}, duration=0.1) for name in ("b", "a")]
    found = simulated(classes, [process_set((("a", 0), ("b", 0)))], seconds=100).classes
    # The first ten jobs of b found all slots free.
    assert sorted(found["b"].waits)[10] >= max(found["a"].waits) - 0.1


def test_keys_of_a_fair_class_take_turns():
    jobs = {"burst": {"jobs": 1_000, "every": 1_000}, "duration": 0.1, "tenants": 2}
    fair = simulated([job_class("A", is_fair=True, **jobs)], seconds=100)
    plain = simulated([job_class("A", **jobs)], seconds=100)
    assert len(fair.classes["A"].waits) == len(plain.classes["A"].waits) == 1_000
    several = [job_class("A", is_fair=True, **{**jobs, "tenants": 8}), job_class("B", rate=1, duration=0.1)]
    # A plain job is one key among those that wait: it does not wait behind the jobs of the others.
    assert waits_of(simulated(several, seconds=100).classes["B"].waits).longest < 0.3


@pytest.mark.parametrize("keeps", [True, False])
def test_shard_that_is_away_starts_nothing(keeps):
    away = {"at": 10, "lasts": 20, "away": ["main"]}
    result = simulated([job_class("A", rate=10, duration=0.1)], keeps_pushes=keeps, seconds=100, changes=[away])
    found, waits = result.classes["A"], result.classes["A"].waits
    assert found.refused == pytest.approx(0 if keeps else 200, abs=50)
    assert max(waits) == pytest.approx(20, abs=1) if keeps else max(waits) < 1
    assert len(waits) + found.refused == pytest.approx(1_000, rel=0.1)


def test_deploy_restarts_each_process_and_loses_no_job():
    recorded = [RecordedJob(at / 10, "A", 5.0, 0.0, 0, 0.0) for at in range(1_000)]
    sets = [process_set(slots=20, count=4, timeout_s=2.0)]
    result = simulated(
        [job_class("A")], sets, recorded=recorded, seconds=300, changes=[{"at": 50, "restart": ["main-all"]}]
    )
    found = result.classes["A"]
    assert found.ended == 1_000
    # Jobs of 5 s do not end within the timeout of 2 s: they start a second time.
    assert len(found.waits) > 1_000
    counts = [one.processes["main-all"] for one in result.samples]
    assert (min(counts), counts[0], counts[-1]) == (3, 4, 4)


def test_jobs_of_a_lost_process_run_again_after_its_lease():
    recorded = [RecordedJob(0.0, "A", 30.0, 0.0, 0, 0.0) for _ in range(20)]
    sets = [process_set(count=2)]
    result = simulated(
        [job_class("A", limit=20)], sets, recorded=recorded, seconds=200, changes=[{"at": 5, "count": {"main-all": 1}}]
    )
    waits = sorted(result.classes["A"].waits)
    assert result.classes["A"].ended == 20
    assert len(waits) == 30
    # The other process is full until 30 s: then the lost jobs are back.
    assert waits[20:] == [max(30.0, 5 + current().alive_within_s)] * 10


def test_autoscaler_follows_the_load_up_and_down():
    changes = [{"at": 100, "lasts": 200, "rate": {"A": 100}}]
    sets = [process_set(at_most=20)]
    result = simulated([job_class("A", rate=2, duration=1, urgency="high")], sets, seconds=1_200, changes=changes)
    counts = [one.processes["main-all"] for one in result.samples]
    assert counts[0] == counts[-1] == 1
    # 100 busy slots are ten processes.
    assert 10 <= max(counts) <= 20
    assert report_of(result).remarks == []


def test_failed_jobs_are_retried_and_die():
    result = simulated(
        [job_class("A", retries=2, failures=1.0, burst={"jobs": 10, "every": 10_000}, duration=0.1)], seconds=600
    )
    found = result.classes["A"]
    assert (found.ended, found.failed, found.dead) == (30, 30, 10)
    # A retry waits from when it is due.
    assert max(found.waits) < 1


def test_class_that_is_off_starts_again_in_order():
    result = simulated(
        [job_class("A", rate=10, duration=0.1)], seconds=100, changes=[{"at": 10, "lasts": 30, "off": ["A"]}]
    )
    assert max(result.classes["A"].waits) == pytest.approx(30, abs=1)
    assert result.classes["A"].most_held == pytest.approx(300, rel=0.2)
    assert result.samples[-1].held == {"main": 0}


def test_lower_limit_holds_what_starts_from_then_on():
    changes = [{"at": 20, "lasts": 50, "limit": {"A": 1}}]
    result = simulated([job_class("A", rate=5, duration=1.0)], seconds=200, changes=changes)
    assert result.classes["A"].most_held == pytest.approx(200, rel=0.2)
    assert report_of(result).shards[0].most_waiting >= 190


def test_threads_of_a_process_share_its_interpreter():
    jobs = {"rate": 60, "duration": 0.02, "processor": 0.02}
    alone = simulated([job_class("A", **jobs)], seconds=200)
    shared = simulated([job_class("A", **jobs)], [process_set(count=4)], seconds=200)
    # 1.2 interpreters are needed: ten threads of one process do not help.
    assert waits_of(alone.classes["A"].waits).p50 > 10
    assert waits_of(shared.classes["A"].waits).p95 < 0.1
    assert any("the slots do not suffice" in one for one in report_of(alone).remarks)


def test_seed_repeats_a_result():
    first, second = (
        simulated([job_class("A", rate=50, duration={"p50": 0.1, "p95": 1})], seconds=50) for _ in range(2)
    )
    assert first.classes["A"].waits == second.classes["A"].waits
    other = simulated([job_class("A", rate=50, duration={"p50": 0.1, "p95": 1})], seconds=50, seed=2)
    assert other.classes["A"].waits != first.classes["A"].waits


def test_class_without_a_process_is_named():
    result = simulated([job_class("A", "forgotten", rate=1)], seconds=20)
    report = report_of(result)
    assert any("no set of processes serves its queue forgotten" in one for one in report.remarks)


def test_load_of_redis_is_that_of_its_jobs():
    result = simulated([job_class("A", rate=1_000, duration=0.001)], seconds=20)
    # 1 us of a push and 4 of a run, a thousand times a second.
    assert report_of(result).shards[0].store == pytest.approx(0.005, rel=0.1)
    slow = simulated([job_class("A", rate=1_000, duration=0.001)], seconds=20, redis=200)
    assert any("would use" in one for one in report_of(slow).remarks)


def test_class_on_two_shards_has_one_limit_and_each_slot_is_used():
    """Most jobs of the first shard wait; a process of each shard would have slots for all."""
    sets = [process_set(name=name, shard=name, count=1) for name in ("main", "second")]
    wide = job_class("Wide", limit=4, shards=("main", "second"), rate=100, duration=0.1)
    result = simulated([wide], sets, seconds=100)
    assert result.classes["Wide"].ended == pytest.approx(4 / 0.1 * 100, rel=0.02)
    assert max(sum(one.busy.values()) for one in result.samples) == 4
    assert min(sum(us) for us in result.store_us.values()) > 0.4 * max(sum(us) for us in result.store_us.values())
