"""Start ``dashboard --sample``, and know the address of each of its pages: for the pictures, and for axe."""

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from framework.dashboard.application import all_pages
from framework.devtools.sample_platform import BAD_DEPLOY, BATCH, FLOOD, LIVE, WORKFLOW
from tests.chromium import BrowserPage
from tests.harness import until

IS_WHOLE = """document.querySelectorAll('details.notice, #activity-chart .empty').length <= 1
    && !document.querySelector('[role=status].notice')"""
"""Whether all shards but the dead one have answered, and all that takes long is read."""


@contextmanager
def sample_dashboard(listen: str) -> Generator[str]:
    """Serve the sample platform, and return the address when its processes run jobs."""
    command = [sys.executable, "-m", "framework", "dashboard", "--sample", "--listen", listen]
    server = subprocess.Popen(command, stderr=subprocess.PIPE)
    try:
        # Its first line is its address: it answers now.
        assert server.stderr is not None
        server.stderr.readline()
        site = f"http://{listen}"
        until(lambda: len({one["shard"] for one in live_jobs(site)}) == len(LIVE), "running jobs", timeout_s=120)
        yield site
    finally:
        server.terminate()
        server.wait(30)
        server.stderr.close()


def live_jobs(site: str) -> list[dict[str, Any]]:
    """Return the running jobs of real processes."""
    return [one for one in read(site, "/api/running")["jobs"] if ".example:" not in one["process"]]


def left_s(job: dict[str, Any]) -> float:
    """Return for how long a job will run about."""
    return (8 + job["arguments"][0] % 60) / 2 - time.time() + job["at"]


def addresses(site: str) -> dict[str, str]:
    """Return the path of each page by its name; of a page with a word in its path, that of a thing of the platform."""
    job, flooded, task = (
        until(lambda path=path, name=name: read(site, path)[name], path, timeout_s=60)[0]
        for path, name in (
            (f"/api/dead?class={BAD_DEPLOY}", "jobs"),
            ("/api/queues", "queues"),
            ("/api/tasks", "tasks"),
        )
    )
    running = max(until(lambda: live_jobs(site), "running jobs", timeout_s=60), key=left_s)
    words = {"class": BAD_DEPLOY, "queue": flooded["queue"], "jid": job["jid"], "task": task["id"]}
    words |= {"batch": BATCH, "workflow": WORKFLOW}
    found = {}
    for page in all_pages():
        path = page.path
        for word, value in ({**words, "jid": running["jid"]} if page.name == "stack" else words).items():
            path = path.replace(f"{{{word}}}", value).replace(f"{{{word}:path}}", value)
        found[page.name] = f"{path}?q={FLOOD}" if page.name == "search" else path
    return found


def read(site: str, path: str) -> dict[str, list[dict[str, Any]]]:
    """Return the data of a page."""
    with urllib.request.urlopen(f"{site}{path}") as answer:
        found: dict[str, list[dict[str, Any]]] = json.load(answer)
    return found


def open_whole(page: BrowserPage, url: str) -> None:
    """Open a page until it has all that it shows: a busy machine answers late, and a long read begins anew from time to time."""

    def is_whole() -> bool:
        page.open(url)
        return bool(page.evaluate(IS_WHOLE))

    until(is_whole, f"the whole page {url}")
