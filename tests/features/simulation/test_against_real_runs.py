"""Compare predictions with real runs: ten workloads on real processes, whose log lines are simulated."""

import json
import random
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from framework.features.simulation.report import waits_of
from tests.harness import ROOT, until

NEAR = 0.15
"""How far the 95th percentile of the waits may be from the real one."""
_FETCH_S = 0.02
"""What the simulation leaves out: a fetch, and jobs that are fetched ahead."""
JOBS = Path(__file__).with_name("timed_jobs.py")
ROUTES = [["urgency=high", "urgent"], ["*", "default"]]
PUSH = """
import json, sys, time
import timed_jobs
began = time.time()
for at, name, seconds, processor in json.load(open("plan.json")):
    while (left := began + at - time.time()) > 0:
        time.sleep(left)
    getattr(timed_jobs, name).perform_async(seconds, processor)
"""


class Workload(NamedTuple):
    """Jobs (second, class, seconds, seconds of the processor), and the processes that run them."""

    name: str
    jobs: list[tuple[float, str, float, float]]
    processes: int = 1
    slots: int = 5
    weights: tuple[tuple[str, int], ...] = (("urgent", 1), ("default", 1))
    changes: str = "[]"


def _random(dice, name, rate, mean, seconds=8.0, *, start=0.0, processor=0.0, spread=True):
    at, found = start, []
    while (at := at + dice.expovariate(rate)) < start + seconds:
        lasting = dice.expovariate(1 / mean) if spread else mean
        found.append((at, name, lasting, processor))
    return found


def _burst(name, count, lasting, *, at=0.0):
    return [(at, name, lasting, 0.0)] * count


def workloads():
    dice = random.Random(7)
    plain, urgent, limited = "PlainWorker", "UrgentWorker", "LimitedWorker"
    heavy = [(at, name, dice.choice([0.02] * 9 + [0.6]), 0.0) for at, name, _, _ in _random(dice, plain, 50, 0.1)]
    return [
        Workload("random jobs", _random(dice, plain, 42, 0.1)),
        Workload("equal jobs", _random(dice, plain, 45, 0.1, spread=False)),
        Workload("bursts", [one for at in (0.0, 3.0, 6.0) for one in _burst(plain, 60, 0.1, at=at)]),
        Workload("few long jobs among short ones", heavy),
        Workload(
            "two queues, three to one",
            [*_burst(urgent, 150, 0.05), *_burst(plain, 150, 0.05)],
            weights=(("urgent", 3), ("default", 1)),
        ),
        Workload(
            "full limit beside a class without one", [*_random(dice, limited, 22, 0.1), *_random(dice, plain, 15, 0.1)]
        ),
        Workload("two processes", _random(dice, plain, 50, 0.1), processes=2, slots=3),
        Workload("full limit over two processes", _random(dice, limited, 20, 0.12), processes=2),
        Workload("jobs that compute", _random(dice, plain, 30, 0.02, processor=0.02, spread=False)),
        Workload("surge", sorted([*_random(dice, plain, 20, 0.1), *_random(dice, plain, 80, 0.1, 2.0, start=3.0)])),
    ]


@pytest.mark.campaign
@pytest.mark.parametrize("workload", workloads(), ids=lambda one: one.name)
def test_prediction_is_near_a_real_run(site, workload, record_property):
    shutil.copy(JOBS, site.folder / "timed_jobs.py")
    site.write("routing.yml", {"routing_rules": ROUTES})
    site.write("application.yml", {"workers_module": "timed_jobs"})
    assert site.run("-m", "framework", "generate-queues").returncode == 0
    site.write("queues.yml", {"queues": [list(one) for one in workload.weights]})
    options = [part for name, weight in workload.weights for part in ("-q", f"{name},{weight}")]
    command = (str(ROOT / "scripts" / "worker"), "-r", "timed_jobs", "-c", str(workload.slots), *options)
    processes = [site.start(*command).ready() for _ in range(workload.processes)]
    (site.folder / "plan.json").write_text(json.dumps(sorted(workload.jobs)))
    producer = site.start("-c", PUSH)
    until(lambda: sum(len(one.find(job_status="done")) for one in processes) == len(workload.jobs), workload.name)
    assert producer.wait() == 0, producer.output
    real = {}
    for line in (line for one in processes for line in one.find(job_status="done")):
        real.setdefault(line["class"], []).append(line["scheduling_latency_s"])
    fleet = {"processes": {"main-all": {"count": workload.processes, "slots": workload.slots}}}
    (site.folder / "fleet.yml").write_text(json.dumps(fleet))
    logs = [part for one in processes for part in ("--logs", one.log.name)]
    done = site.run("-m", "framework", "simulate", "fleet.yml", *logs, "--json")
    assert done.returncode == 0, done.stderr
    found = {one["name"]: one["waits"]["p95"] for one in json.loads(done.stdout)["scenarios"][0]["classes"]}
    told = {name: (waits_of(waits).p95, found[name]) for name, waits in real.items()}
    record_property("waits_p95_s", {name: {"real": one, "predicted": other} for name, (one, other) in told.items()})
    for name, (one, other) in told.items():
        assert other == pytest.approx(one, rel=NEAR, abs=_FETCH_S), name
