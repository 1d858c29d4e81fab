import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path

import pytest


@pytest.fixture
def site(site):
    shutil.copy(Path(__file__).with_name("limited_jobs.py"), site.folder / "jobs.py")
    return site


@pytest.fixture
def start_cluster(site):
    """Start a supervisor and its processes; end those that a failed test leaves."""
    started = []

    def start(*options):
        started.append(site.start("-m", "framework", "cluster", "-r", "jobs", "--timeout", "1", *options))
        return started[-1]

    yield start
    for supervisor in started:
        if supervisor.popen.poll() is None:
            supervisor.kill()
            for line in supervisor.find(event_name="child.started"):
                with suppress(ProcessLookupError):
                    os.kill(line["child_pid"], signal.SIGKILL)
