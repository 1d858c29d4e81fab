"""The runs by urgency that a process writes, as the overview shows them."""

from framework.dashboard import Caller
from framework.features.history.page import UrgenciesPage
from tests.harness import until

JOBS = """
from framework import ApplicationWorker


class QuickWorker(ApplicationWorker):
    feature_category = "not_owned"
    urgency = "high"

    def perform(self) -> None: ...


class FailingWorker(ApplicationWorker):
    feature_category = "not_owned"
    urgency = "throttled"
    retry = False

    def perform(self) -> None:
        raise ValueError("x")
"""
PUSH = """
import urgency_jobs as jobs
from framework import enqueue

for _ in range(3):
    jobs.QuickWorker.perform_async()
jobs.FailingWorker.perform_async()
"""


def test_overview_shows_the_urgencies_of_the_runs_of_a_process(browser, shards, site, monkeypatch):
    monkeypatch.setattr(UrgenciesPage, "fresh_s", 0.0)
    (site.folder / "urgency_jobs.py").write_text(JOBS)
    site.hurried_worker("-r", "urgency_jobs", "-q", "quick", "-q", "failing").ready()
    done = site.run("-c", PUSH)
    assert done.returncode == 0, done.stderr
    client = browser(Caller("ann", "read"))

    def runs():
        found = {one["urgency"]: one["now"] for one in client.get("/api/urgencies").json()["urgencies"]}
        return found if (found["high"]["runs"], found["throttled"]["runs"]) == (3, 1) else None

    found = until(runs, "the runs of both urgencies")
    assert (found["high"]["queueing_apdex"], found["high"]["execution_apdex"]) == (1.0, 1.0)
    assert found["high"]["p95_wait_s"] is not None
    assert (found["throttled"]["failed"], found["throttled"]["queueing_apdex"]) == (1, None)
    assert 'hx-get="/urgencies"' in client.get("/").text
    page = client.get("/urgencies").text
    assert "100.00 %" in page
    assert "no target" in page
