"""Remove rooms: the rest of the program still imports, boots a worker, and runs a job.

Every suite removes several at once, so that most rooms are gone beside most others that may not need them; `lint-imports` reads
the imports of all pairs. The campaigns have the rest of the pairs. They also remove each room alone, which names the room at
fault, and run the tests of the core on the rest: those whose files do not use the room.
"""

import os
import re
import subprocess
import sys

import pytest

from tests.features.package_copy import PACKAGE, copy_without, names_of, removals, rooms, with_dependents

JOBS = """
from framework import ApplicationWorker

class PlainWorker(ApplicationWorker):
    feature_category = "not_owned"

    def perform(self, number: int) -> None:
        print("performed", number, flush=True)
"""

RUNS = """
import importlib, sys, time
from pathlib import Path

import framework

package = Path(framework.__file__).parent
assert package.parent == Path(sys.argv[1]), package
for name in sorted(one.stem for one in package.glob("*.py") if not one.stem.startswith("_")):
    if name != "pytest_plugin":
        importlib.import_module(f"framework.{name}")
from framework.cli.main import jobs
from framework.cli.main import main
for command in (jobs, main):
    for name in command.commands:
        command.commands[name]
loaded = {name.split(".")[2] for name in sys.modules if name.startswith("framework.features.")}
assert loaded.isdisjoint(sys.argv[2:]), loaded

from framework.embedding import EmbeddedWorker
from plain_jobs import PlainWorker

with EmbeddedWorker(["default"], concurrency=1) as worker:
    PlainWorker.set(queue="default").perform_async(7)
    PlainWorker.set(queue="default").perform_in(0.1, 8)
    from framework.admin import stats
    deadline = time.monotonic() + 60
    while stats().shards["main"].processed < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
"""


SETS_OF_EACH_SUITE = 3
"""They have seven of ten pairs of rooms; a run costs two seconds of a processor."""


@pytest.mark.parametrize(
    "removed",
    [
        *(
            pytest.param(removed, id=f"set {number}", marks=() if number < SETS_OF_EACH_SUITE else pytest.mark.campaign)
            for number, removed in enumerate(removals())
        ),
        *(pytest.param(with_dependents(room), id=room, marks=pytest.mark.campaign) for room in rooms()),
    ],
)
def test_program_without_rooms_runs_jobs(removed, cold_site, tmp_path):
    copy = copy_without(removed, tmp_path / "copy")
    (cold_site.folder / "plain_jobs.py").write_text(JOBS)
    done = cold_site.run("-c", RUNS, str(copy), *removed, role="worker", PYTHONPATH=str(copy))
    assert done.returncode == 0, done.stderr
    assert sorted(line for line in done.stdout.splitlines() if "performed" in line) == ["performed 7", "performed 8"]


ROOT = PACKAGE.parent
CORE = ("declare", "execute", "fetch", "finish", "push", "recover", "route", "schedule", "settings", "store", "wire")


@pytest.mark.campaign
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("room", rooms())
def test_core_passes_its_tests_without_a_room(room, tmp_path):
    removed = with_dependents(room)
    copy = copy_without(removed, tmp_path / "copy")
    words = re.compile(rf"\b(?:{'|'.join(map(re.escape, names_of(removed)))})\b")
    files = [
        str(path)
        for folder in CORE
        for path in sorted((ROOT / "tests" / folder).rglob("test_*.py"))
        if not any(words.search(one.read_text()) for one in (path, *path.parent.glob("conftest.py")))
    ]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml")]
    done = subprocess.run(
        [*command, "--rootdir", str(ROOT), *files],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        check=False,
        text=True,
    )
    passed = re.search(r"(\d+) passed", done.stdout)
    assert done.returncode == 0, done.stdout[-20_000:]
    assert passed is not None
    assert int(passed[1]) > 100
