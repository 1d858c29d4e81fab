"""A process warns at boot, in one line each, of a stale workers/all_queues.yml and of unknown environment variables."""

import pytest

from tests.harness import ROOT

WORKERS = """
from framework import ApplicationWorker


class AWorker(ApplicationWorker):
    feature_category = "not_owned"
    queue_namespace = "cronjob"

    def perform(self) -> None: ...


class BWorker(ApplicationWorker):
    feature_category = "not_owned"

    def perform(self) -> None: ...
"""
STALE = "workers/all_queues.yml differs from the loaded workers: run {} and commit the files"
AT_SCRIPTS, INSTALLED = STALE.format("scripts/generate_queues"), STALE.format("application-worker generate-queues")


@pytest.fixture
def package(site):
    """A folder ``workers``, which the setting workers_module names by default, and its generated files."""
    folder = site.folder / "workers"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "first.py").write_text(WORKERS)
    generate(site)
    return folder


def generate(site):
    done = site.run(str(ROOT / "scripts" / "generate_queues"))
    assert done.returncode == 0, done.stderr


def booted(site, *options):
    """Start a worker process and wait until it is ready."""
    process = site.start(str(ROOT / "scripts" / "worker"), "-q", "default", *options)
    process.ready()
    return process


def stale(process):
    return process.find(event_name="queues.stale")


def test_queue_checks_fresh_file_gives_no_line(site, package):
    process = booted(site)
    assert process.end() == 0
    assert not stale(process)


def test_queue_checks_stale_file_gives_one_line(site, package):
    text = WORKERS.replace("BWorker", "CWorker").replace('"cronjob"', '"other"')
    (package / "first.py").write_text(text)
    process = booted(site)
    assert process.end() == 0
    (line,) = stale(process)
    assert (line["severity"], line["message"], line["shard"]) == ("WARN", AT_SCRIPTS, "main")
    assert AT_SCRIPTS not in process.errors.read_text()  # only the log has it
    assert (line["missing"], line["surplus"]) == (["CWorker"], ["BWorker"])
    assert line["changed"] == [
        "AWorker: name is 'cronjob:a' in the file, 'other:a' in the class",
        "AWorker: queue_namespace is 'cronjob' in the file, 'other' in the class",
    ]


def test_queue_checks_line_names_five_of_many_classes(site, package):
    more = "".join(WORKERS.replace("AWorker", f"X{n}Worker").replace("BWorker", f"Y{n}Worker") for n in range(10))
    (package / "first.py").write_text(WORKERS + more)
    (line,) = stale(booted(site))
    assert (line["missing"], line["missing_count"]) == (
        ["X0Worker", "X1Worker", "X2Worker", "X3Worker", "X4Worker"],
        20,
    )


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "does not exist"), ("a: 1", "is not a list of workers"), ("- {a: [", "line 2, column 1: ...")],
)
def test_queue_checks_unreadable_file_is_a_warning(site, package, content, reason):
    file = package / "all_queues.yml"
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    (line,) = stale(booted(site))
    assert line["reason"].startswith(reason.removesuffix("..."))
    assert line["message"] == AT_SCRIPTS


def test_queue_checks_ignore_workers_of_other_packages(site, package):
    (package / "all_queues.yml").unlink()
    assert not stale(booted(site, "-r", "jobs"))


BOOT = "import logging, framework{modules}\nlogging.basicConfig(format='%(name)s %(levelname)s %(message)s')\nframework.boot()"


@pytest.mark.refused("role-producer srandmember")
def test_queue_checks_producer_is_warned_by_framework_logger(site, package):
    assert "queues.stale" not in site.run("-c", BOOT.format(modules=", workers.first")).stderr
    (package / "first.py").write_text(WORKERS.replace("BWorker", "CWorker"))
    done = site.run("-c", BOOT.format(modules=", workers.first"))
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith(f"framework WARNING {INSTALLED} event_name='queues.stale' missing=['CWorker']")
    assert "surplus" not in done.stderr  # it has not loaded every module


@pytest.mark.refused("role-producer srandmember")
def test_queue_checks_producer_reports_no_surplus(site, package):
    (package / "second.py").write_text(WORKERS.replace("AWorker", "SecondWorker").replace("BWorker", "ThirdWorker"))
    generate(site)
    assert "queues.stale" not in site.run("-c", BOOT.format(modules=", workers.second")).stderr
    assert site.run("-c", BOOT.format(modules="")).stderr == ""


# --- unknown variables ------------------------------------------------------------------------------------------------

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
