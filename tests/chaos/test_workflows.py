"""Kill processes and restart Redis while workflows run: each step is started once, and each workflow ends right.

``WORKFLOWS=500`` in the environment, and ``--timeout=1500``, make it longer.
"""

import os
import random
import time
from collections import Counter, defaultdict

import pytest
from redis.exceptions import RedisError

from framework.features.workflows.store import read_workflows
from framework.wire import keys
from tests.harness import until

WORKFLOWS = int(os.environ.get("WORKFLOWS", "50"))
JOBS = 20
START = f"""
import sys
sys.path.insert(0, "")
import workflow_jobs
for number in range({WORKFLOWS}):
    print(workflow_jobs.start(number))
"""
EXPECTED = (
    ("failed", {"import": JOBS, "report": 1, "clean": JOBS}, {"validate", "publish"}),
    ("failed", {"import": JOBS, "validate": JOBS, "report": 1, "clean": JOBS}, {"publish"}),
    ("succeeded", {"import": JOBS, "validate": JOBS, "publish": 1}, {"report", "clean"}),
)
"""By the number of the workflow: its state, the jobs of its steps, and the steps that do not start."""


class Faults:
    """Kill a worker process at random moments, and at each sixth one Redis instead."""

    def __init__(self, scene, seed):
        self.scene, self.random = scene, random.Random(seed)
        self.workers = [self.worker() for _ in range(2)]
        for one in self.workers:
            one.ready()
        self.killed, self.restarts = 0, 0

    def worker(self):
        return self.scene.site.worker(
            *("-r", "workflow_jobs", "-q", "default", "-c", "3"),
            REDIS_URL=self.scene.url,
            FRAMEWORK_LOGGING__JOBS="false",
        )

    def step(self):
        time.sleep(self.random.uniform(0.05, 1.0))  # somewhere in their work
        if self.killed % 6 == 5:
            self.scene.server.kill()
            self.scene.server.start()
            self.restarts += 1
        self.workers.pop(0).kill()
        self.killed += 1
        self.workers.append(self.worker().ready())


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.proves("F1", "I1")
def test_steps_start_once_under_kills_of_processes_and_redis(scene, measured, record_property):
    scene.module("workflow_jobs")
    started = scene.site.run("-c", START, REDIS_URL=scene.url)
    assert started.returncode == 0, started.stderr
    ids = started.stdout.split()
    assert len(ids) == WORKFLOWS
    seed = os.environ.get("SEED", "1")
    record_property("workflows", WORKFLOWS)
    record_property("seed", seed)
    faults = Faults(scene, seed=seed)

    def statuses():
        try:
            return read_workflows(scene.client, "main", ids)
        except RedisError:
            return []

    def unfinished():
        return [one.id for one in statuses() if not one.ended]

    while (left := unfinished()) or len(statuses()) < WORKFLOWS:
        if len(left) > WORKFLOWS // 10 or not left:
            faults.step()
        else:
            # The last ones end without faults.
            until(lambda: not unfinished(), "the end of the workflows", 240)
    runs = defaultdict(set)
    for line in scene.proven("run"):
        *job, jid = line.split()
        runs[tuple(job)].add(jid)
    doubled = {job: jids for job, jids in runs.items() if len(jids) > 1}
    assert not doubled
    account = Counter()
    for number, status in enumerate(statuses()):
        state, jobs, others = EXPECTED[number % 3]
        ran = Counter(step for workflow, step, _ in runs if int(workflow) == number)
        assert (number, status.state, dict(ran)) == (number, state, jobs)
        assert {one.name: one.jobs for one in status.steps if one.name in jobs} == jobs
        assert {one.name for one in status.steps if one.state == "skipped"} == others
        account[status.state] += 1
    until(lambda: not scene.client.exists("queue:default", keys.RETRY), "the last callbacks", 60)
    assert not scene.client.exists(keys.INTERRUPTED)
    assert faults.killed
    for state, count in account.items():
        measured(f"{state} workflows", count)
    measured("jobs", len(runs))
    measured("second runs", len(scene.proven("run")) - len(runs))
    measured("killed processes", faults.killed)
    measured("restarts of Redis", faults.restarts)
    for one in faults.workers:
        assert one.end() == 0
