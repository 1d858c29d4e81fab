"""Tallies, ended runs without a process, and scrapes."""

import time
from dataclasses import dataclass

import pytest
from prometheus_client.parser import text_string_to_metric_families

from framework import ApplicationWorker
from framework.declare import registry
from framework.execute.execution import Execution
from framework.features.observability.exposition import process_text
from framework.features.observability.tally import Tally
from framework.fetch.unit_of_work import UnitOfWork
from framework.telemetry.shared_counts import SharedCounts


def series_of(text):
    """Return the samples of a scrape: (name, labels) -> value."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@dataclass
class Bench:
    tally: Tally
    thread: object
    worker: type

    def end(self, outcome=None, ending=None, **facts):
        """Count a run of the class ``Job``."""
        run = ended_run(self.worker.declaration(), **facts)
        if outcome is not None:
            run.outcome, run.ending = outcome, ending
        self.thread.ended(run)

    def scrape(self, mode=None):
        text, _ = process_text(self.tally.sums(), mode or self.tally.mode)
        return text.decode()

    def value(self, name, **labels):
        """Return the value of the only series of this name that has these labels."""
        found = [
            value
            for (series, given), value in series_of(self.scrape()).items()
            if series == name and labels.items() <= dict(given).items()
        ]
        assert len(found) == 1, (name, labels, found)
        return found[0]


def ended_run(declaration, *, queue="q", duration_s=0.01, cpu_s=0.005, waited_s=1.0, usage=None, **fields):
    unit = UnitOfWork(queue, b"{}")
    unit.started_at = time.time()
    run = Execution(unit)
    run.declaration, run.admitted = declaration, True
    run.duration_s, run.cpu_s, run.usage = duration_s, cpu_s, usage
    run.payload = {"class": declaration.wire_name, "args": [], "enqueued_at": unit.started_at - waited_s, **fields}
    return run


@pytest.fixture
def job():
    with registry.isolated():

        class Job(ApplicationWorker):
            feature_category = "not_owned"
            urgency = "high"
            wire_name = "Job"

            def perform(self):
                pass

        yield Job


@pytest.fixture
def bench(job):
    tally = Tally("histogram", 10_000, SharedCounts)
    return Bench(tally, tally.of_thread(), job)
