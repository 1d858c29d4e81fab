"""Test the signal for autoscalers: what one reading says, and simulated loads whose slots follow it."""

import math
import signal

import pytest

from framework.all_settings import Settings
from framework.features.observability import slots_needed
from framework.features.observability.fleet import ClassRuns, FleetReader, FleetReading
from framework.features.observability.settings import FleetSettings
from framework.features.observability.shard_watch import RoutedClass, RoutedClasses, ShardWatch
from framework.features.observability.slots_needed import (
    TARGETS,
    LoadSample,
    QueueLoad,
    ShardLoad,
    group_slots,
    slots_for,
)
from framework.shard.shards import open_shards
from tests.features.observability.autoscaling import Load, ramp, simulate, step
from tests.harness import enqueue, until


def sample(at, size, runs=0, busy=0, seconds=1.0, paused=(), queue="q", identity="p"):
    return LoadSample(at, {queue: size}, frozenset(paused), {identity: {queue: runs}}, {queue: busy}, {queue: seconds})


def needed(*samples, urgency="high", limits=None):
    load = ShardLoad()
    loads = [load.note(one) for one in samples][-1]
    return group_slots(loads, {"q": urgency}, {}, limits or {})["q"]


@pytest.mark.parametrize(
    ("arrivals", "seconds", "waiting", "urgency", "slots"),
    [
        (0, 1, 0, "low", 0),
        (0.01, 1, 0, "low", 1),
        # At 50 busy slots one more is enough for short jobs; for jobs of a minute the next end is too far away.
        (50, 1, 0, "high", 51),
        (5 / 60, 60, 0, "high", 12),
        (5 / 60, 60, 0, "low", 8),
        # 1,000 waiting jobs of a second within half of the target.
        (0, 1, 1_000, "high", 200),
        (0, 1, 1_000, "low", 34),
        (0, 1, 1_000, "throttled", 2),
        # A waiting job takes one slot, however long it runs.
        (0, 3_600, 3, "high", 3),
    ],
)
def test_slots_for_a_load_keep_its_target(arrivals, seconds, waiting, urgency, slots):
    assert slots_for(QueueLoad(arrivals, seconds, waiting), TARGETS[urgency]) == slots


def test_first_reading_has_only_the_waiting_jobs():
    assert needed(sample(0, 40)) == 8
    assert needed(sample(0, 0)) == 0


def test_rate_of_arrival_is_that_of_ended_runs_and_of_growth():
    """600 runs ended in a minute, and the queue has grown by 300: 15 jobs arrive a second."""
    assert needed(sample(0, 0, 5_000), sample(60, 30, 5_600), urgency="low") == 11
    assert needed(sample(0, 0, 5_000), sample(60, 300, 5_600), urgency="low") == 16


def test_runs_of_a_new_process_count_those_of_a_first_read_not():
    first, new = sample(0, 0, 9_000), sample(60, 0, 600, identity="new")
    assert needed(first, new, urgency="low") == 11


def test_process_whose_record_was_away_counts_once():
    away = LoadSample(30, {"q": 0}, frozenset(), {}, {}, {"q": 1.0})
    assert needed(sample(0, 0, 5_000), away, sample(60, 0, 5_600), urgency="low") == 11


def test_running_jobs_that_have_not_ended_need_their_slots():
    """The autoscaler asks for no fewer slots than jobs run, although none waits and no run has ended."""
    assert needed(sample(0, 0, busy=20), urgency="low") == 21


def test_paused_queue_needs_no_slots():
    before = sample(0, 0, 0)
    assert needed(before, sample(60, 10_000, 600, paused=("q",))) == 0


def test_limits_of_all_classes_cap_the_slots():
    assert needed(sample(0, 10_000), limits={"q": 5}) == 5


def test_queues_of_a_group_are_added_and_others_stand_alone():
    loads = {name: QueueLoad(0, 1.0, 50) for name in ("a", "b", "c")}
    assert group_slots(loads, {"a": "high"}, {"g": ("a", "b"), "empty": ("z",)}, {}) == {"g": 12, "c": 2, "empty": 0}


def test_queue_has_the_target_of_its_most_urgent_class():
    found = RoutedClasses([RoutedClass("A", "q", "high"), RoutedClass("B", "q", "low"), RoutedClass("C", "c", "low")])
    reading = FleetReading(
        "main", 0.0, classes={"A": ClassRuns(3, 9.0), "B": ClassRuns(1, 1.0)}, limits={"A": 2, "C": 4}
    )
    assert (found.urgencies, found.seconds(reading), found.limits(reading)) == (
        {"q": "high", "c": "low"},
        {"q": 2.5},
        {"c": 4},
    )


STEPS = [
    Load("step", step(900, 10, 25), 25, 1.0, 1_800),
    Load("step of urgent jobs", step(900, 10, 20), 20, 1.0, 1_800, "high", period_s=5, start_s=3),
    Load("step down", step(900, 25, 10), 25, 1.0, 1_800),
    Load("long jobs", step(900, 0.2, 0.5), 0.5, 60, 7_200),
    Load("long urgent jobs", step(900, 0.2, 0.5), 0.5, 60, 7_200, "high", period_s=5, start_s=3),
    Load("throttled", step(900, 10, 25), 25, 1.0, 1_800, "throttled"),
    Load("ramp", ramp(300, 1_500, 5, 40), 40, 1.0, 1_800),
    Load("ramp of urgent jobs", ramp(300, 1_500, 5, 40), 40, 1.0, 1_800, "high", period_s=5, start_s=3),
]


@pytest.mark.parametrize("load", STEPS, ids=lambda one: one.name)
def test_simulated_load_keeps_its_target_with_few_slots(load):
    result = simulate(load)
    assert result.jobs > 1_000
    assert result.in_time >= TARGETS[load.urgency].share
    assert result.surplus <= 0.1


DAYS = [
    Load(urgency, lambda at: 4 + 3.5 * math.sin(2 * math.pi * at / 86_400), 8, 5, 86_400, urgency, period_s, start_s)
    for urgency, period_s, start_s in (("low", 15, 10), ("high", 5, 3), ("throttled", 60, 60))
]


@pytest.mark.campaign
@pytest.mark.parametrize("load", DAYS, ids=lambda one: one.name)
@pytest.mark.parametrize("seed", range(3))
def test_simulated_day_keeps_its_target_with_few_slots(load, seed):
    result = simulate(load, seed)
    assert result.in_time >= TARGETS[load.urgency].share
    assert result.surplus <= 0.1


def test_simulation_notices_a_signal_without_the_waiting_jobs(monkeypatch):
    """The judge of the simulations: without the drain, a step leaves a backlog behind."""
    monkeypatch.setattr(slots_needed, "_PART", 1e9)
    assert simulate(STEPS[1]).in_time < TARGETS["high"].share


def test_scaling_down_ends_no_running_job(site, redis, proofs, release):
    """Two processes with a job each: the signal counts running jobs, and a process that must go ends its job first."""
    fleet = open_shard_watch(site)
    for name in ("one", "two"):
        enqueue(redis, "LongWorker", args=[name], jid=name)
    workers = {}
    for _ in range(2):
        process = site.hurried_worker("-q", "default", "-c", "1", "-t", "60").ready()
        workers[process.pid] = process
    begun = {name: int(proofs(f"begun:{name}")[0]) for name in ("one", "two")}
    until(lambda: fleet.read().slots["default"] >= 2, "the running jobs in the records of their processes")
    leaving = workers[begun["one"]]
    leaving.send(signal.SIGTERM)
    leaving.line(event_name="process.stopping")
    release("one")
    assert leaving.wait() == 0
    assert leaving.line(event_name="process.stopped")["returned"] == 0
    release("two")
    assert [proofs(f"ended:{name}") for name in ("one", "two")] == [[str(begun[name])] for name in ("one", "two")]
    assert redis.llen("proof:begun:one") == redis.llen("proof:begun:two") == 1
    fleet.close()


def open_shard_watch(site):
    settings = Settings(
        config_dir=site.folder, root=site.folder, var_dir=site.folder, shards={"main": {"url": site.proofs_url}}
    )
    shard = open_shards(settings, role="exporter")["main"]
    return ShardWatch(shard, FleetReader(settings), RoutedClasses(()), FleetSettings())
