"""Test the demo's page about jobs against the lines of the logs."""

import json
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from demo.activity import Activity, Samples, activity_of
from demo.report_section import LISTED_PROCESSES, strip
from demo.series import histogram, mean_rate, place_of, round_steps, time_slices
from tests.scripts.page_reader import PageReader
from tests.tables import each_row

BEGIN = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)


class Logs:
    """Log files with the lines that a run would write."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, list[str]] = {}

    def line(self, name: str, at_s: float, **fields: object) -> None:
        time = (BEGIN + timedelta(seconds=at_s)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self.files.setdefault("".join(filter(str.isalnum, name)), []).append(
            json.dumps({"severity": "INFO", "time": time, **fields})
        )

    def child(self, kind: str, at_s: float, pid: int, *, shard: str = "main", status: int | None = None) -> None:
        names = {"event_name": f"child.{kind}", "shard": shard, "child": shard, "child_pid": pid}
        self.line("supervisor", at_s, pid=1, status=status, **names)

    def ready(self, at_s: float, pid: int, *, shard: str = "main") -> None:
        self.line(shard, at_s, pid=pid, worker_id=f"host:{pid}", shard=shard, event_name="process.ready")

    def job(self, jid: str, at_s: float, pid: int, status: str, *, shard: str = "main", **fields: object) -> None:
        names = {"class": "AWorker", "queue": "a", "jid": jid, "job_status": status}
        self.line(shard, at_s, pid=pid, worker_id=f"host:{pid}", shard=shard, **names, **fields)

    def run(
        self, jid: str, at_s: float, pid: int, status: str = "done", *, shard: str = "main", took_s: float = 0.01
    ) -> None:
        self.job(jid, at_s, pid, "start", shard=shard, queue_duration_s=0.5)
        self.job(jid, at_s + took_s, pid, status, shard=shard, queue_duration_s=0.5, duration_s=took_s)

    def read(self) -> Activity:
        paths = [self.folder / f"{name}.log" for name in self.files]
        for path in paths:
            path.write_text("\n".join([*self.files[path.stem], ""]))
        return activity_of([*paths, self.folder / "none.log"])


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    return Logs(tmp_path)


def page_of(activity: Activity) -> PageReader:
    return PageReader(strip(activity))


def runs_add_up(activity: Activity) -> bool:
    repeats = activity.retries + activity.snoozes + activity.extra_runs
    return activity.runs.begun == activity.jobs + repeats


def test_activity_killed_process_gives_extra_runs(logs):
    """One job was cut off, one had ended unacknowledged: both run again, and neither is a retry."""
    logs.child("started", 0, 10)
    logs.ready(1, 10)
    logs.run("ended", 1.1, 10)
    logs.job("cut", 1.2, 10, "start", queue_duration_s=0.1)
    logs.child("died", 2, 10, status=-9)
    logs.child("started", 2.1, 11)
    logs.ready(3, 11)
    for jid in ("ended", "cut"):
        logs.job(jid, 3.1, 11, "recovered")
        logs.run(jid, 3.2, 11)
    logs.child("stopped", 4, 11, status=0)
    activity = logs.read()
    assert (activity.jobs, activity.extra_runs, activity.retries, activity.restarts) == (2, 2, 0, 1)
    assert runs_add_up(activity)
    dead, heir = activity.processes
    assert (dead.died, dead.runs.begun, dead.runs.done, dead.runs.unfinished) == (True, 2, 1, 1)
    assert (heir.died, heir.runs.done, heir.taken_back) == (False, 2, 2)
    assert [(one.jobs_done, one.runs.done) for one in activity.classes] == [(2, 3)]
    page = page_of(activity)
    assert (page.tiles["Extra runs"], page.tiles["Restarts"], page.tiles["Jobs"]) == ("2", "1", "2")
    assert [row["Cut off"] for row in page.tables["Worker processes"]] == ["1", "–"]
    assert [row["End"] for row in page.tables["Worker processes"]] == [
        "killed by signal 9 at 2.0 s",
        "stopped in order",
    ]
    assert "1 process died; their successors took back 2 jobs, and 2 runs were second runs." in page.text


def test_activity_line_about_another_shard_is_no_process(logs):
    logs.child("started", 0, 10)
    logs.line("main", 0.5, pid=10, worker_id="host:10", shard="queues_shard_a", event_name="cron.lead")
    logs.ready(1, 10)
    logs.run("one", 1.1, 10)
    logs.line("main", 2, pid=10, worker_id="host:10", shard="queues_shard_a", message="a push to it")
    (process,) = logs.read().processes
    assert (process.shard, process.runs.begun) == ("main", 1)


def test_activity_repeats_asked_for_are_no_extra_runs(logs):
    logs.ready(0, 10)
    logs.run("failed", 1, 10, "fail")
    logs.run("failed", 2, 10, "fail")
    logs.run("failed", 3, 10)
    logs.run("later", 1, 10, "snoozed")
    logs.run("later", 2, 10)
    logs.run("stopped", 4, 10, "interrupted")
    logs.run("stopped", 5, 10)
    activity = logs.read()
    assert (activity.retries, activity.snoozes, activity.extra_runs) == (2, 1, 1)
    assert runs_add_up(activity)
    page = page_of(activity)
    assert (page.tiles["Failures"], page.tiles["Retries"], page.tiles["Extra runs"]) == ("2", "2", "1")


def test_activity_retry_on_another_shard_is_a_retry(logs):
    """The lines of all files are sorted by their time: the later one may be in the file that comes first."""
    logs.ready(0, 10, shard="b")
    logs.ready(0, 11, shard="a")
    logs.run("moved", 1, 10, "fail", shard="b")
    logs.run("moved", 2, 11, shard="a")
    assert list(logs.files) == ["b", "a"]
    logs.files = dict(sorted(logs.files.items()))
    activity = logs.read()
    assert (activity.retries, activity.extra_runs) == (1, 0)


def test_activity_held_jobs_are_counted_apart(logs):
    logs.ready(0, 10)
    logs.run("ran", 1, 10)
    logs.job("held", 1, 10, "concurrency_limit")
    logs.job("equal", 1, 10, "deduplicated")
    logs.job("equal too", 1, 10, "deduplicated")
    activity = logs.read()
    assert (activity.jobs, activity.runs.begun) == (1, 1)
    (row,) = page_of(activity).tables["Classes"]
    assert (row["Runs"], row["Not run"]) == ("1", "3")
    assert "(2 deduplicated, 1 concurrency limit)" in page_of(activity).text


def test_activity_torn_line_keeps_the_line_behind_it(logs):
    logs.ready(0, 10)
    logs.job("cut", 1, 10, "start")
    torn = logs.files["main"].pop()[:60]
    logs.ready(2, 11)
    logs.files["main"][-1] = torn + logs.files["main"][-1]
    logs.run("cut", 3, 11)
    activity = logs.read()
    assert [process.ready_s for process in activity.processes] == [0.0, 2.0]


def test_percentile_is_the_nearest_rank():
    samples = Samples([float(number) for number in range(100, 0, -1)])
    assert [samples.percentile(percent) for percent in (50, 95, 99, 100)] == [50.0, 95.0, 99.0, 100.0]
    assert Samples().percentile(50) == 0.0


def test_histogram_holds_each_value_once():
    values = [0.0, 0.00005, 0.0001, 0.000999, 0.001, 0.02, 0.0499, 0.05, 7.0, 10_000.0, 10_000_000.0]
    bins = histogram(Samples(values))
    assert sum(one.count for one in bins) == len(values)
    for one in bins:
        assert one.count == sum(one.low_s <= value < one.high_s for value in values), one
    assert all(before.high_s == after.low_s for before, after in pairwise(bins))
    places = [place_of(value, bins) for value in values]
    assert places == sorted(places)
    assert all(0.0 <= place <= 1.0 for place in places)


@each_row("value", [0.0, 0.003, 99.0, 1e9])
def test_histogram_of_one_value_has_room_around_it(value):
    bins = histogram(Samples([value]))
    assert len(bins) >= 7
    assert [one.count for one in bins if one.count] == [1]


@each_row("span_s", [0.0, 0.049, 1.0, 47.9, 300.0, 40_000.0, 1_000_000.0])
def test_time_slices_hold_each_run_once(span_s):
    activity = Activity(span_s=span_s, ends=[(span_s * part / 10, 0) for part in range(11)])
    activity.processes = [object()]  # only their number matters here
    slices = time_slices(activity)
    assert len(slices) <= 49
    assert sum(part.done for part in slices) == 11
    assert mean_rate(slices) <= max(part.rate for part in slices)


@each_row("most", [0.2, 1.0, 3.0, 39.0, 999.0, 1e6])
def test_guides_are_few_and_not_above_the_highest(most):
    steps = round_steps(most, 3)
    assert 1 <= len(steps) <= 3
    assert steps[-1] <= most
    assert round_steps(0.0, 3) == []


def test_strip_without_a_job_says_so(logs):
    page = page_of(logs.read())
    assert "no line of a job" in page.text
    assert page.pictures == []


def test_strip_of_one_job_whose_end_is_missing(logs):
    logs.job("cut", 0, 10, "start")
    page = page_of(logs.read())
    assert page.tiles["Jobs"] == "1"
    assert page.tiles["Peak per second"] == "0"
    assert len(page.pictures) == 1


def test_strip_of_many_deaths_stays_small(logs):
    for number in range(200):
        logs.child("started", number, 100 + number)
        logs.ready(number + 0.3, 100 + number)
        logs.run(f"job {number}", number + 0.4, 100 + number)
        logs.child("died", number + 0.9, 100 + number, status=-9)
    activity = logs.read()
    markup = strip(activity)
    page = PageReader(markup)
    assert page.tiles["Restarts"] == "199"
    assert len(page.tables["Worker processes"]) == LISTED_PROCESSES
    assert "176 more processes are in the logs." in page.text
    assert len(markup.encode()) < 200_000


def test_strip_names_are_text_and_pictures_have_names(logs):
    evil = "<script>alert(1)</script>\"' onload='x"
    logs.ready(0, 10, shard=evil)
    logs.run(evil, 1, 10, shard=evil)
    page = page_of(logs.read())
    assert evil in page.text
    assert "script" not in page.names
    assert all(picture["role"] == "img" and picture["aria-label"] for picture in page.pictures)
    assert len(page.pictures) == 3
    assert {"Worker processes", "Jobs per second", "Waits", "Run times", "Classes"} <= page.tables.keys()
