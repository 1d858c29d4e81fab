"""The stream of the events of jobs: every observer gets each event, and its errors change no job."""

import ast

from framework.telemetry.counters import counters
from framework.telemetry.job_events import (
    JobEvents,
    JobHeld,
    JobObserver,
    JobsEnqueued,
    JobSkipped,
    events_of,
    tell_ended,
)
from tests.harness import ROOT

FOLDER = ROOT / "framework"


class Kept(JobObserver):
    def __init__(self):
        self.events, self.runs = [], []

    def happened(self, event):
        self.events.append(event)

    def ended(self, run):
        self.runs.append(run)


class Broken(JobObserver):
    def happened(self, event):
        raise ValueError("broken")

    def ended(self, run):
        raise ValueError("broken")


def test_every_observer_gets_each_event_even_after_an_error(caplog):
    events, first, last = JobEvents(), Kept(), Kept()
    events.add_first(first)
    events.observers = (Broken(), last)
    events.emit(JobHeld("A", by="paused"))
    assert first.events == last.events == [JobHeld("A", by="paused")]
    tell_ended((Broken(), last), "the run")
    assert last.runs == ["the run"]
    tell_ended((Broken(),), "another run")
    assert sum(one.levelname == "ERROR" for one in caplog.records) == 2


def test_event_names_its_series_and_its_labels(monkeypatch):
    monkeypatch.setattr(counters, "_counts", {})
    counters.happened(JobSkipped("A", 2, action="dropped", reason="feature_flag"))
    counters.happened(JobHeld("A", by="paused"))
    counters.happened(JobsEnqueued("A", queue="q"))
    assert counters._counts == {'sidekiq_jobs_skipped_total{action="dropped",reason="feature_flag",worker="A"}': 2}


def test_recorded_events_are_emitted_by_another_process():
    recorded = JobEvents().record()
    recorded.happened(JobSkipped("A", 2, action="dropped"))
    data = [list(one) for one in recorded.take()]
    assert list(events_of([*data, ["Unknown", {}], ["Held", {"no": 1}], "x", None])) == [
        JobSkipped("A", 2, action="dropped")
    ]
    assert list(events_of("no list")) == []


def test_only_readers_of_the_stream_add_to_counters():
    """A part with something to count emits an event."""
    users = [
        str(path.relative_to(FOLDER))
        for path in FOLDER.rglob("*.py")
        # To parse all files takes seconds.
        if "counters." in path.read_text()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in ("add", "_add") and ast.unparse(node.value) == "counters"
    ]
    assert users == []
