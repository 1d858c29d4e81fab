"""Test the command ``simulate``: scenarios of an installation, recorded jobs, the page, and bad input."""

import json

import pytest

from tests.conftest import short_folder
from tests.features.deployment.test_deploy import Installation

SCENARIO = """
seconds: 60
classes:
  PayWorker: {rate: 20, duration: {p50: 0.02, p95: 0.1}}
  MailWorker: {rate: 2, duration: 0.5}
limits: {MailWorker: 1}
processes: {main-web: {count: 2, slots: 4}}
changes: [{at: 20, lasts: 10, away: [main]}]
"""
WIDE = """
from framework import ApplicationWorker, spread


class WideWorker(ApplicationWorker):
    feature_category = "not_owned"
    shard = spread("main", "exports_a")

    def perform(self) -> None: ...
"""


@pytest.fixture(scope="module")
def installed():
    with short_folder() as folder:
        yield Installation(folder)


def test_scenario_of_an_installation_is_simulated(installed):
    installed.write("load.yml", SCENARIO)
    done = installed.run("simulate", "load.yml", "--page", "load.html")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("load: 1 min, 1,")
    assert any(line.startswith("PayWorker") and "main/urgent" in line for line in lines)
    assert any(line.startswith("MailWorker") and "main/mail" in line for line in lines)
    assert any("pushes fail while its shard is away" in line for line in lines)
    page = (installed.folder / "load.html").read_text()
    assert page.count("<svg") == page.count("<details>") == 6
    assert ("<script" in page, "http" in page) == (False, False)


def test_rules_of_a_scenario_route_its_jobs(installed):
    installed.write("load.yml", SCENARIO)
    installed.write(
        "moved.yml",
        SCENARIO.replace("main-web: {count", "exports-a-rest: {count") + 'routing_rules: [["*", all, exports_a]]\n',
    )
    both = json.loads(installed.run("simulate", "load.yml", "moved.yml", "--json").stdout)["scenarios"]
    assert [one["name"] for one in both] == ["load", "moved"]
    assert {one["queue"] for one in both[1]["classes"]} == {"all"}
    assert {one["shard"] for one in both[1]["classes"]} == {"exports_a"}
    pay = {one["name"]: one for one in both[0]["classes"]}["PayWorker"]
    assert pay["in_time"] > 0.5
    assert set(pay["waits"]) == {"p50", "p95", "p99", "longest"}


def test_recorded_jobs_run_again(installed):
    lines = [
        {
            "class": "PayWorker",
            "enqueued_at": f"2026-11-30T10:00:{at // 10:02}.{at % 10}00Z",
            "duration_s": 0.5,
            "cpu_s": 0.01,
            "scheduling_latency_s": 0.25,
            "job_status": "done",
        }
        for at in range(100)
    ]
    installed.write("worker.log", "no JSON\n" + "\n".join(map(json.dumps, lines)))
    installed.write("fleet.yml", "processes: {main-web: {count: 1, slots: 4}}")
    found = json.loads(installed.run("simulate", "fleet.yml", "--logs", "worker.log", "--json").stdout)["scenarios"][0]
    (pay,) = found["classes"]
    # Ten jobs a second of half a second need five slots: the last one waits until 80 jobs have ended in 10 s.
    assert (pay["started"], pay["recorded"]["p95"]) == (100, 0.25)
    assert 2.0 < pay["waits"]["longest"] < 3.0


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("[]", ["must hold a scenario"]),
        ("classes: {PayWorkr: {rate: 1}}", ["classes: there is no class 'PayWorkr'", "PayWorker"]),
        ("classes: {PayWorker: {rate: 1, duration: {p95: 1}}}", ["give mean, or p50"]),
        ("classes: {PayWorker: {rate: -1}}", ["classes.PayWorker.rate: must be greater than or equal to 0"]),
        ("classes: {PayWorker: {}}", ["no class has jobs"]),
        ("classes: {PayWorker: {rate: 1}}\nprocesses: {web: {}}", ["processes: there is no set of processes 'web'"]),
        (
            "classes: {PayWorker: {rate: 1}}\nchanges: [{at: 1, away: [nowhere]}]",
            ["changes[0].away: there is no shard"],
        ),
        ("classes: {PayWorker: {rate: 1}}\nrouting_rules: [[a]]", ["routing_rules[0]: must be [query, queue]"]),
        ("classes: {PayWorker: {rate: 1}}\nsecond: 5", ["second: unknown key"]),
    ],
)
def test_wrong_scenario_is_refused_with_the_place(installed, text, messages):
    installed.write("wrong.yml", text)
    told = installed.run("simulate", "wrong.yml", status=78).stderr
    assert "wrong" in told
    for message in messages:
        assert message in told


def test_class_on_several_shards_is_simulated_on_each(installed):
    installed.write("wide_jobs.py", WIDE)
    installed.write("wide.yml", "classes: {WideWorker: {rate: 1}}")
    done = installed.run("simulate", "wide.yml", "-r", "workers", "-r", "wide_jobs", "--json")
    (found,) = json.loads(done.stdout)["scenarios"]
    assert {one["name"] for one in found["shards"] if one["store"] > 0} == {"main", "exports_a"}
    # No set of this installation has its queue.
    unserved = {one.partition(" on shard ")[2] for one in found["remarks"] if "WideWorker: no set of processes" in one}
    assert unserved == {"main.", "exports_a."}


def test_simulate_without_jobs_is_refused(installed):
    assert "give a SCENARIO" in installed.run("simulate", status=2).stderr
    installed.write("empty.log", "{}\n")
    assert "has no line of an ended job" in installed.run("simulate", "--logs", "empty.log", status=78).stderr
