"""The runs by urgency that a process writes, as the overview shows them; the size of pages of runs."""

from framework.dashboard import Caller
from framework.execute.job_log import TARGETS
from framework.features.history import page as page_module
from framework.features.history.admin import SeriesReader, ShardRuns
from framework.features.history.page import UrgenciesPage
from framework.features.history.series import Runs
from framework.features.history.urgencies import UrgencyRuns
from framework.features.history.urgency_series import UrgencyReader, UrgencySeries
from framework.wire.urgency_counts import WAITS
from tests.dashboard.test_cost import MOST_BYTES_OF_PAGE
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


def test_pages_of_many_runs_are_small_for_each_time(browser, shards, monkeypatch):
    """With runs of each urgency, and of forty classes, in each period."""
    by_urgency = dict.fromkeys(TARGETS, UrgencyRuns(12_345, 678, 901, 0, 9_876_543, (321,) * len(WAITS)))

    def read_classes(reader, *_):
        periods = [Runs(12_345 * (1 + at % 7), 678, 9_876.5) for at in range(len(reader.starts))]
        return ShardRuns({f"Shop::Number{number}Worker": periods for number in range(40)})

    monkeypatch.setattr(
        UrgencyReader, "read", lambda reader, *_: UrgencySeries(by_urgency, [by_urgency] * len(reader.starts))
    )
    monkeypatch.setattr(SeriesReader, "read", read_classes)
    client = browser(Caller("ann", "admin"))
    sizes = {
        (path, hours): len(client.get(f"/{path}?hours={hours}").content)
        for path in ("activity", "urgencies")
        for hours in page_module._HOURS
    }
    assert {name: size for name, size in sizes.items() if not 20_000 < size <= MOST_BYTES_OF_PAGE} == {}
