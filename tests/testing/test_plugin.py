"""Run pytest on an application of its own, as its developers do."""

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

from framework import ApplicationWorker
from framework.devtools.compat import manifest
from framework.devtools.compat.compare import snapshot_of
from framework.terminal.project import load_project
from framework.testing import ModeError, check_workers, perform_one, real, server
from framework.wiring import client as wiring
from tests.fork_server import FORK_SERVER
from tests.testing.conftest import write_config

ROOT = Path(__file__).resolve().parent.parent.parent
Run = Callable[..., "subprocess.CompletedProcess[str]"]

JOBS = '''
from framework import ApplicationWorker


class MailWorker(ApplicationWorker):
    """Send a mail."""

    feature_category = "mails"
    idempotent = True

    def perform(self, user: int) -> None:
        SENT.append(user)


SENT: list[int] = []
'''

TESTS = """
from mail_jobs import SENT, MailWorker


def test_first(application_worker):
    MailWorker.perform_async(1)
    application_worker.assert_enqueued(MailWorker, 1)
    assert application_worker.drain() == 1
    assert SENT == [1]
    assert MailWorker.perform_async(2) is not None


def test_second(application_worker):
    application_worker.assert_enqueued(MailWorker, count=0)
    assert MailWorker.perform_async(2) is not None
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    config = tmp_path / "config"
    config.mkdir()
    (config / "feature_categories.yml").write_text(json.dumps({"feature_categories": {"mails": {"owner": "us"}}}))
    (config / "application.yml").write_text(json.dumps({"workers_module": ["mail_jobs"]}))
    (tmp_path / "mail_jobs.py").write_text(JOBS)
    (tmp_path / "test_jobs.py").write_text(TESTS)
    return tmp_path


@pytest.fixture
def run(folder: Path) -> Run:
    """Run pytest in the folder, from a Python that has imported the framework unless the test is about imports."""

    def go(*options: str, cold: bool = False, **environment: str) -> "subprocess.CompletedProcess[str]":
        # Tools of our own tests, whose plugins take long to import.
        tools = ("anyio", "hypothesispytest", "schemathesis", "time_machine", "timeout", "valkey", "xdist")
        without = [f"-pno:{name}" for name in ("cacheprovider", *tools)]
        command = ["-m", "pytest", "-q", "-p", "framework.pytest_plugin", *without, *options]
        path = f"{ROOT}:{folder}"
        found = {"PATH": "/usr/bin:/bin", "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **environment}
        if not cold:
            return FORK_SERVER.run(command, folder, found, timeout=60, together=True)
        command = [sys.executable, *command]
        return subprocess.run(command, cwd=folder, env=found, capture_output=True, text=True, check=False)

    return go


def test_suite_without_jobs_imports_little(run: Run, folder: Path) -> None:
    (folder / "test_jobs.py").write_text(
        "import sys\n\n\ndef test_imports():\n"
        "    assert not {'framework.testing', 'framework.wiring', 'pydantic', 'redis', 'structlog'} & sys.modules.keys()\n"
    )
    done = run(cold=True)
    assert done.returncode == 0, done.stdout


def test_same_file_passes_in_fake_and_real_mode(run: Run, redis_url: str) -> None:
    done = run()
    assert (done.returncode, "2 passed" in done.stdout) == (0, True), done.stdout
    done = run("--application-worker", "real", REDIS_URL=redis_url, FRAMEWORK_ENV="test")
    assert (done.returncode, "2 passed" in done.stdout) == (0, True), done.stdout


def test_real_mode_waits_for_another_process(
    application: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_config(application, {"main": {"url": redis_url}}, routing={"routing_rules": []})
    monkeypatch.setattr(server, "_ATTEMPTS", 2)
    wiring.bind_default()
    code = "from framework.testing import real\nwith real():\n    print('uses it', flush=True)\n    input()\n"
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=application, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"uses it\n"
        with pytest.raises(ModeError, match=r"uses unix://.*Give each process a database of its own"), real():
            pass
        # An end without clean-up leaves nothing locked.
        other.kill()
    with real() as jobs, real():
        assert jobs.enqueued() == []
    wiring.bind_default()


def test_real_mode_refuses_production(application: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRAMEWORK_ENV", "production")
    wiring.bind_default()
    with real() as jobs:
        for action in (jobs.clear, jobs.drain):
            with pytest.raises(ModeError, match="all jobs of the configured Redis, and FRAMEWORK_ENV is production"):
                action()
        with pytest.raises(ModeError, match="use drain"):
            perform_one(ApplicationWorker)
    wiring.bind_default()


def test_checks_of_all_workers_name_each_finding(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    check_workers()
    released = folder / "workers" / "released.yml"
    released.parent.mkdir()
    project = load_project(())
    first = snapshot_of(project, "first", date(2030, 1, 1))
    released.write_text(manifest.manifest_text(first).replace("MailWorker", "LetterWorker"))
    (folder / "mail_jobs.py").write_text(
        JOBS.replace("SENT.append(user)", "__import__('time'); time.sleep(1)") + "\nimport time\n"
    )
    with pytest.raises(AssertionError) as raised:
        check_workers()
    lines = str(raised.value).splitlines()
    assert lines[0] == "2 findings in the workers:"
    assert "mail_jobs.py:12: SEW025" in lines[1]
    assert "LetterWorker" in lines[2]


def test_checks_report_workers_that_cannot_boot(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (folder / "mistaken_jobs.py").write_text(JOBS.replace('"mails"', '"mials"'))
    with pytest.raises(AssertionError, match=r"(?s)no process would boot with these workers: .*mials"):
        check_workers("mistaken_jobs")
