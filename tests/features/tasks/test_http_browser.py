"""A page in a real browser follows a task over HTTP: it polls, listens to the stream, shows the failures, and retries them."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.chromium import browser, browser_command
from tests.harness import Site, until

__all__ = ["browser"]

JOBS = """
from framework import ApplicationWorker, BusinessError

class RowWorker(ApplicationWorker):
    feature_category = "not_owned"
    queue = "default"
    track = True

    def perform(self, row: int) -> None:
        self.record("checked", row=row)
        if row == 5:
            raise BusinessError("<b>row 5</b> has no name")
"""

PUSH = """
import jobs
from framework.tasks import Task

with Task.create(jobs.RowWorker, title="rows", owner="ann") as task:
    task.perform_bulk(jobs.RowWorker, [(row,) for row in range(1, 8)])
print(task.id)
"""

WEB = """
import os
import pathlib
import socket
import sys

import jobs
import uvicorn
from starlette.applications import Starlette
from starlette.responses import HTMLResponse, Response
from starlette.routing import Mount, Route

from framework.features.tasks.http import TaskScope, tasks_app

def authorize(request):
    user = request.cookies.get("user")
    return TaskScope(owner=user, may_change=True) if user else None

async def page(request):
    answer = HTMLResponse(pathlib.Path("page.html").read_text())
    answer.set_cookie("user", "ann")
    return answer

async def seen(request):
    pathlib.Path("seen").touch()
    return Response(status_code=204)

async def report(request):
    pathlib.Path("report.part").write_bytes(await request.body())
    os.rename("report.part", "report.json")
    return Response(status_code=204)

app = Starlette(
    routes=[
        Route("/", page),
        Route("/seen", seen, methods=["POST"]),
        Route("/report", report, methods=["POST"]),
        Mount("/api", tasks_app(authorize)),
    ]
)
listener = socket.socket()
listener.bind(("127.0.0.1", 0))
pathlib.Path("port.part").write_text(str(listener.getsockname()[1]))
os.rename("port.part", "port")
uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5)).run(sockets=[listener])
"""

PAGE = """<!doctype html><title>task</title><ul id="failures"></ul><script>
const id = "TASK", polls = [], events = [];
async function json(path, options) {
  const answer = await fetch("/api" + path, options);
  if (!answer.ok) throw new Error(`${path}: ${answer.status} ${await answer.text()}`);
  return answer.json();
}
let told = false;
function tell() {
  if (told || !polls.length || !events.length) return;
  told = true;
  fetch("/seen", { method: "POST" });
}
async function poll() {
  for (;;) {
    const { progress } = await json(`/tasks/${id}`);
    polls.push(progress.counts);
    tell();
    if (progress.is_complete) return progress;
    await new Promise(done => setTimeout(done, 50));
  }
}
function listen() {
  return new Promise((done, failed) => {
    const source = new EventSource(`/api/tasks/${id}/stream`);
    source.addEventListener("progress", event => {
      events.push(JSON.parse(event.data).counts);
      tell();
    });
    source.addEventListener("complete", () => { source.close(); done(); });
    source.onerror = () => failed(new Error("the stream broke"));
  });
}
async function follow() {
  const report = {};
  [report.progress] = await Promise.all([poll(), listen()]);
  for (const event of (await json(`/tasks/${id}/failures`)).events) {
    const line = document.createElement("li");
    line.textContent = `${event.params}: ${event.reason}`;
    document.getElementById("failures").append(line);
    report.story = (await json(`/jobs/${event.jid}`)).messages.map(message => message.text);
  }
  report.shown = document.getElementById("failures").innerText;
  report.retried = (await json(`/tasks/${id}/retry`, { method: "POST" })).retried;
  report.again = await poll();
  report.runs = (await json(`/tasks/${id}/failures`)).events.map(event => event.runs);
  return report;
}
follow().catch(error => ({ error: String(error) })).then(report =>
  fetch("/report", { method: "POST", body: JSON.stringify({ ...report, polls, events }) }));
</script>"""


@pytest.fixture
def site(short_path, redis, redis_url):
    made = Site(short_path, redis_url, warm=True)
    (made.folder / "jobs.py").write_text(JOBS)
    made.write("application.yml", {"tasks": {"url": f"sqlite:///{short_path}/tasks.db"}})
    yield made
    made.close()


@contextmanager
def running(command: list[str], site: Site, role: str) -> Iterator[subprocess.Popen[bytes]]:
    errors = site.folder / f"{role}.err"
    with errors.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=site.folder, env=site.environment(role), stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


@pytest.mark.slow
def test_page_in_a_browser_follows_a_task(site: Site, browser: str) -> None:
    pushed = site.run("-c", PUSH)
    assert pushed.returncode == 0, pushed.stderr
    (site.folder / "page.html").write_text(PAGE.replace("TASK", pushed.stdout.strip()))
    (site.folder / "web.py").write_text(WEB)
    port, seen, report = (site.folder / name for name in ("port", "seen", "report.json"))
    with running([sys.executable, "web.py"], site, "producer"):
        until(port.exists, "the web server listens")
        page = f"http://127.0.0.1:{port.read_text()}/"
        with running(browser_command(browser, site.folder, page), site, "operator"):
            until(seen.exists, "the page has seen the task waiting", 60)
            worker = site.worker("-q", "default", "-c", "2").ready()
            until(report.exists, "the page has seen the end of the task", 60)
    assert worker.end(signal.SIGTERM) == 0
    found = json.loads(report.read_text())
    assert "error" not in found, found
    assert (found["progress"]["ended"], found["progress"]["failed"], found["progress"]["total"]) == (7, 1, 7)
    waiting, done = found["polls"][0], {"enqueue": 0, "working": 0, "finish": 6, "failed": 1, "error": 0}
    assert waiting == {"enqueue": 7, "working": 0, "finish": 0, "failed": 0, "error": 0}
    assert (found["events"][0], found["events"][-1], found["polls"][-1]) == (waiting, done, done)
    assert found["shown"] == "5: <b>row 5</b> has no name"
    assert found["story"] == ["checked", "<b>row 5</b> has no name"]
    assert (found["retried"], found["again"]["counts"]) == (1, done)
    assert found["runs"] == [2]
