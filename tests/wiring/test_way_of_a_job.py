"""Trace a push and a job of a default application, and compare the framework's files with docs/internals/way_of_a_job.md."""

import json
import re

import pytest

from tests.harness import ROOT, until
from tests.lua import script_files

PAGE = ROOT / "docs" / "internals" / "way_of_a_job.md"

TRACER = """
import threading
from pathlib import Path

import framework

HOME = str(Path(framework.__file__).parent) + "/"
calls = {}


def note(frame, event, _):
    code = frame.f_code
    if event == "call" and code.co_name != "<module>" and code.co_filename.startswith(HOME):
        calls.setdefault((threading.get_ident(), code.co_filename[len(HOME):]))


def count(files, frame, event):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(HOME):
        files.append(code.co_filename)


def files(part):
    threads = {thread for thread, file in list(calls) if file == part}
    return list(dict.fromkeys(file for thread, file in list(calls) if thread in threads))
"""

PUSHES = """
import json
import sys

import jobs
import tracer

found = []
for _ in range(2):
    sys.setprofile(tracer.note)
    jobs.NoopWorker.perform_async(1)
    sys.setprofile(None)
    found.append(tracer.files("push/client.py"))
    tracer.calls.clear()
print(json.dumps(found))
"""

COUNTED = """
import json
import sys

import tracer

from framework import ApplicationWorker


class PlainWorker(ApplicationWorker):
    feature_category = "not_owned"

    def perform(self, number: int) -> None: ...


class UniqueWorker(PlainWorker):
    idempotent = True


class TrackedWorker(PlainWorker):
    status_expiration = 600


found = []
for worker in (PlainWorker, UniqueWorker, TrackedWorker):
    worker.perform_async(1)
    files = []
    sys.setprofile(lambda frame, event, _: tracer.count(files, frame, event))
    worker.perform_async(2)
    sys.setprofile(None)
    found.append([len(files), len(set(files))])
print(json.dumps(found))
"""


TRACED = """
import json
import threading

import tracer

threading.setprofile(tracer.note)

from framework import ApplicationWorker


class TracedWorker(ApplicationWorker):
    feature_category = "not_owned"
    queue = "default"

    def perform(self, path: str | None) -> None:
        if path is None:
            raise LookupError
        with open(path, "w") as file:
            json.dump(tracer.files("execute/processor.py"), file)
"""


BURST = """
import json
import sys
import threading

import tracer

from framework.fetch import queues

# A traced job is slow; jobs of a burst count as quick at more than 10,000 a second.
queues.QUICK_PER_S = 0.0
files, found = [], []



def count(frame, event, _):
    # The leader is woken by each job until it has the interpreter.
    if frame.f_code.co_name != "wake":
        tracer.count(files, frame, event)


threading.setprofile(count)

from framework import ApplicationWorker

JOBS = 1_000


class BurstWorker(ApplicationWorker):
    feature_category = "not_owned"
    queue = "default"

    def perform(self, number: int) -> None:
        found.append((len(files), len(set(files))))
        if number == JOBS - 1:
            with open("found", "w") as file:
                json.dump(found, file)
        files.clear()
"""


def rows_of(heading):
    """Return the files of each row of a section's table."""
    section = PAGE.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return [re.findall(r"`([^`]+\.py)`", line.split("|")[1]) for line in section.splitlines() if line.startswith("| `")]


def compare(heading, traced):
    """Check that a table has the traced files, and its rows are in the order of their first calls."""
    rows = rows_of(heading)
    listed = [file for row in rows for file in row]
    assert sorted(listed) == sorted(traced), (
        f"{PAGE.name}, {heading}: not called {sorted(set(listed) - set(traced))}, "
        f"not listed {sorted(set(traced) - set(listed))}; calls: {traced}"
    )
    firsts = [min(map(traced.index, row)) for row in rows]
    assert firsts == sorted(firsts), f"{PAGE.name}, {heading}: the rows are not in the order of {traced}"


def test_page_lists_the_files_of_a_push_in_order(site):
    (site.folder / "tracer.py").write_text(TRACER)
    first, second = json.loads(site.run("-c", PUSHES).stdout)
    compare("A push", second)
    compare("The first push of a process", [file for file in first if file not in second])


def test_push_calls_few_functions_in_few_files(site):
    (site.folder / "tracer.py").write_text(TRACER)
    found = json.loads(site.run("-c", COUNTED).stdout)
    rows = re.findall(r"^\| (plain|deduplicated|tracked) \| (\d+) \| (\d+) \|$", PAGE.read_text(), re.MULTILINE)
    assert len(rows) == len(found) == 3
    for (name, calls, files), counted in zip(rows, found, strict=True):
        assert counted[0] <= int(calls), f"calls in a push of a class with {name}"
        assert counted[1] <= int(files), f"files in a push of a class with {name}"


@pytest.mark.parametrize(
    ("process", "env"),
    [
        ("without job lines", {"FRAMEWORK_LOGGING__JOBS": "false"}),
        ("with job lines", {"FRAMEWORK_LOGGING__JOBS": "true"}),
        ("with metrics", {"FRAMEWORK_LOGGING__JOBS": "false", "FRAMEWORK_HEALTH__PORT": "0"}),
    ],
)
def test_burst_calls_few_functions_for_each_job(site, process, env):
    (site.folder / "tracer.py").write_text(TRACER)
    (site.folder / "burst.py").write_text(BURST)
    code = "import burst; burst.BurstWorker.perform_bulk([[number] for number in range(burst.JOBS)])"
    assert site.run("-c", code).returncode == 0
    argv = [str(ROOT / "scripts" / "worker"), "-r", "burst", "-q", "default", "-c", "10"]
    site.start(*argv, **env)
    path = site.folder / "found"
    until(lambda: path.is_file() and path.read_text().endswith("]]"), "all jobs have run")
    found = json.loads(path.read_text())
    # Most jobs do not make the exchange with Redis, which several share.
    calls, files = min(found)
    rows = re.findall(r"^\| (with[^|]+) \| (\d+) \| (\d+) \|$", PAGE.read_text(), re.MULTILINE)
    most = {name: (int(calls), int(files)) for name, calls, files in rows}[process]
    assert len(found) == 1_000
    # On a busy machine even the cheapest job may meet a slower branch, such as that of a long wait.
    assert calls <= most[0] + 2
    assert files <= most[1]


def test_page_lists_the_files_of_a_job_in_order(site):
    (site.folder / "tracer.py").write_text(TRACER)
    (site.folder / "traced.py").write_text(TRACED)
    worker = site.start(str(ROOT / "scripts" / "worker"), "-r", "traced", "-q", "default", "-c", "1").ready()

    def run(path, status):
        count = len(worker.find(job_status=status))
        assert site.run("-c", f"import traced; traced.TracedWorker.perform_async({path!r})").returncode == 0
        until(lambda: len(worker.find(job_status=status)) > count, f"one more line with {status}")
        return json.loads((site.folder / path).read_text()) if path else []

    # Each kind of job is followed by a job that writes the calls made before it.
    run("begun", "done")
    succeeded = run("succeeded", "done")
    run(None, "fail")
    failed = run("failed", "done")
    compare("A job that succeeds", succeeded)
    compare("A job that fails", [file for file in failed if file not in succeeded])


def test_moves_of_page_and_picture_are_existing_scripts():
    scripts = set(script_files())
    rows = re.findall(r"^\|.+?\|.+?\|(.+?)\|.+?\|$", PAGE.read_text().partition("| From | To |")[2], re.MULTILINE)
    in_page = {name for row in rows for name in re.findall(r"`([a-z_/]+)`", row)}
    picture = (PAGE.parent.parent / "pictures" / "places.svg").read_text()
    labels = re.findall(r'<text class="text"[^>]*>([^<]+)<', picture)
    in_diagram = {word for label in labels for word in re.sub(r"\([^)]*\)", "", label).replace(",", " ").split()}
    assert len(rows) > 20
    assert sorted((in_page | in_diagram) - scripts) == []
    assert sorted(in_diagram - in_page) == []
