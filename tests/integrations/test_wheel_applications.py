"""Start the applications of the guide from a wheel, in an environment of their own outside of the checkout.

The files are those of the pages. Each application is served over HTTP, pushes one job, and a worker process runs it.
"""

import contextlib
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.docs.test_examples import blocks
from tests.harness import ROOT, until

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(600)]

hatchling = pytest.importorskip("hatchling.build", reason="the build backend comes with scripts/setup")

APPLICATIONS = {
    "django": (
        ["python manage.py migrate --run-syncdb --verbosity 0"],
        "python manage.py worker",
        "python manage.py runserver 127.0.0.1:{port} --noreload",
        ("GET", "/orders"),
    ),
    "fastapi": (
        [],
        "application-worker worker -r shop.jobs",
        "uvicorn shop.app:app --port {port}",
        ("POST", "/orders/7"),
    ),
    "flask": (
        [],
        "application-worker worker -r shop.worker",
        "flask --app shop.wsgi run --port {port}",
        ("POST", "/orders/7"),
    ),
}
"""Page of the guide: its commands, its worker process, its server, and the request that pushes a job."""


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """Return the folder of the commands of an environment with the wheel."""
    folder = tmp_path_factory.mktemp("installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        wheel = folder / hatchling.build_wheel(str(folder))
    commands = folder / "venv" / "bin"
    subprocess.run([sys.executable, "-m", "venv", commands.parent], check=True)
    wanted = [f"{wheel}[django,fastapi,flask,sqlalchemy]", "uvicorn"]
    done = subprocess.run(
        [commands / "pip", "install", "--quiet", "--disable-pip-version-check", *wanted],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return commands


class Application:
    """The files of a page in a folder, and its processes."""

    def __init__(self, name: str, folder: Path, commands: Path, redis_url: str) -> None:
        self.folder = folder
        for block in blocks(ROOT / "docs" / "guides" / f"{name}.md"):
            if block.mark.startswith("file="):
                target = folder / block.mark.removeprefix("file=")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(block.text)
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
        path = os.pathsep.join([str(commands), os.environ["PATH"]])
        self.environment = {**kept, "PATH": path, "REDIS_URL": redis_url, "PYTHONUNBUFFERED": "1"}

    def run(self, command: str) -> str:
        return subprocess.check_output(shlex.split(command), cwd=self.folder, env=self.environment, text=True)

    @contextlib.contextmanager
    def started(self, name: str, command: str):
        """Start a process; yield the file of its output; end it with TERM."""
        log = self.folder / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                shlex.split(command), cwd=self.folder, env=self.environment, stdout=output, stderr=output
            )
        try:
            yield log
        finally:
            process.terminate()
            process.wait(30)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def answer(method: str, url: str, log: Path) -> str:
    """Return the answer of a server that may still be starting."""
    deadline = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=30) as response:
                return response.read().decode()
        except (urllib.error.URLError, ConnectionError) as error:
            if isinstance(error, urllib.error.HTTPError) or time.monotonic() > deadline:
                pytest.fail(f"{error}\n{log.read_text()}")
            time.sleep(0.05)


@pytest.mark.parametrize("name", APPLICATIONS)
def test_application_from_a_wheel_pushes_and_runs_a_job(name, installed, tmp_path, redis_url):
    commands, worker, server, (method, path) = APPLICATIONS[name]
    application = Application(name, tmp_path, installed, redis_url)
    assert str(installed.parent) in application.run("python -c 'import framework; print(framework.__file__)'")
    for command in commands:
        application.run(command)
    port = free_port()
    with application.started("worker", worker) as log, application.started("server", server.format(port=port)) as web:
        text = answer(method, f"http://127.0.0.1:{port}{path}", web)
        jid = re.search(r"[0-9a-f]{24}", text)[0]
        lines = until(
            lambda: [
                line for line in map(json.loads, log.read_text().splitlines()) if line.get("message") == "confirmed"
            ],
            "the job has run",
            60,
        )
    assert [line["jid"] for line in lines] == [jid]
