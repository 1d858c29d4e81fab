"""Warn about environment variables that look like settings but are unknown, in each kind of process."""

import pytest

from tests.harness import ROOT

FOREIGN = {"FRAMEWORK_NAME": "react", "FRAMEWORK_LOGGING__JBOS": "hunter2"}
EVENT = "config.unknown_variable"
PRODUCER = """
import logging, sys
logging.basicConfig(stream=sys.stderr, format="%(name)s %(levelname)s %(message)s")
import jobs
{boot}
jobs.NoopWorker.perform_async()
jobs.NoopWorker.perform_async()
"""


def named(process):
    return [(line["variable"], line.get("nearest")) for line in process.find(event_name=EVENT)]


BOTH = [("FRAMEWORK_LOGGING__JBOS", "FRAMEWORK_LOGGING__JOBS"), ("FRAMEWORK_NAME", "FRAMEWORK_NAMESPACE_WEIGHTS")]


def test_worker_warns_of_each_unknown_variable_once(site):
    process = site.worker("-q", "default", **FOREIGN)
    process.ready()
    assert process.end() == 0
    assert named(process) == BOTH
    assert {line["severity"] for line in process.find(event_name=EVENT)} == {"WARN"}
    assert "hunter2" not in process.log.read_text()


def test_cluster_child_warns_of_unknown_variables_only(site):
    group = site.start("-m", "framework", "cluster", "-r", "jobs", "default", "--timeout", "1", **FOREIGN)
    group.line(event_name="process.ready")
    assert group.end() == 0
    assert named(group) == BOTH


def test_cluster_without_unknown_variables_warns_of_none(site):
    group = site.start(str(ROOT / "scripts" / "cluster"), "-r", "jobs", "default", "--timeout", "1")
    group.line(event_name="process.ready")
    assert group.end() == 0
    assert named(group) == []


@pytest.mark.refused("role-producer srandmember")
def test_producer_is_warned_once_with_and_without_boot(site):
    for boot in ("", "import framework; framework.boot()"):
        done = site.run("-c", PRODUCER.format(boot=boot), **FOREIGN)
        assert (done.returncode, done.stdout) == (0, "")
        assert done.stderr.count(f"event_name='{EVENT}'") == len(BOTH)
        assert "framework WARNING the variable FRAMEWORK_NAME has no effect, because application-worker" in done.stderr
        assert "hunter2" not in done.stderr


def test_command_that_loads_workers_warns_and_goes_on(site):
    done = site.run("-m", "framework", "route", "-r", "jobs", **FOREIGN)
    assert done.returncode == 0
    assert done.stderr.count("the variable FRAMEWORK_") == 2


def test_known_variable_with_a_wrong_value_is_refused(site):
    done = site.run("-m", "framework", "worker", "-r", "jobs", FRAMEWORK_CONCURRENCY="react", **FOREIGN)
    assert done.returncode == 78
    assert "FRAMEWORK_NAME" not in done.stderr
