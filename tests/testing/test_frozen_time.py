"""Freeze the time with freezegun and time-machine around the modes, whatever is imported first, as tests of applications do."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("freezegun", reason="scripts/setup installs it")
pytest.importorskip("time_machine", reason="scripts/setup installs it")

ROOT = Path(__file__).resolve().parent.parent.parent

FREEZE = {
    "freezegun": "from freezegun import freeze_time\nfrozen = freeze_time('2030-01-01', real_asyncio=True)\n",
    "time_machine": "import time_machine\nfrozen = time_machine.travel('2030-01-01 00:00Z', tick=False)\n",
}
IMPORTS = """
import asyncio
from datetime import UTC, date, datetime, timedelta

import framework.tasks
from framework import ApplicationWorker, testing
from framework.testing import fake, inline
"""
USE = """
class MailWorker(ApplicationWorker):
    feature_category = "not_owned"

    async def perform(self, address: str) -> None:
        await asyncio.sleep(0.001)
        print(address, datetime.now(UTC).date())

with fake() as jobs:
    MailWorker.perform_async("ada")
    MailWorker.perform_in(timedelta(days=1), "ben")
    jobs.assert_enqueued(MailWorker, "ben", at=datetime(2030, 1, 2, tzinfo=UTC))
    print(jobs.drain(), jobs.now == datetime(2030, 1, 2, tzinfo=UTC).timestamp())
with inline():
    asyncio.run(MailWorker.aperform_async("cleo"))
# A model with dates, whose module is loaded here.
from framework.devtools.compat.manifest import Manifest
print(Manifest(release="first", day=date.today()).model_dump_json(include={"day"}))
"""
FOUND = """\
ada 2030-01-01
ben 2030-01-01
2 True
cleo 2030-01-01
{"day":"2030-01-01"}
thawed
"""
THAW = "frozen.stop()\nassert datetime.now(UTC).year < 2030\nprint('thawed')\n"


@pytest.mark.parametrize(
    ("library", "first"), [("freezegun", "framework"), ("freezegun", "library"), ("time_machine", "library")]
)
def test_jobs_run_in_frozen_time(tmp_path: Path, library: str, first: str) -> None:
    steps = [FREEZE[library] + "frozen.start()\n", IMPORTS]
    code = "\n".join([*(steps if first == "library" else reversed(steps)), USE, THAW])
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == (FOUND, 0), done.stderr[-2_000:]


def test_freezing_the_time_loads_nothing(tmp_path: Path) -> None:
    # What it loads keeps fakes, and raises where the library of an extra is missing.
    code = (
        "import sys, framework, framework.admin, framework.tasks, framework.testing, freezegun\n"
        "sys.modules['sqlalchemy'] = None\nbefore = set(sys.modules)\n"
        "with freezegun.freeze_time('2030-01-01'):\n"
        "    print(sorted(name for name in set(sys.modules) - before if name.startswith('framework')))\n"
        "assert 'Task' in dir(framework.tasks)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr[-2_000:]
