"""Check the field of a job that a schedule pushed, as the job reads it."""

from datetime import UTC, datetime

from framework import ApplicationWorker
from framework.execute.perform import new_instance
from framework.features.cron.payload import CRON
from tests.tables import each_row


class ReportWorker(ApplicationWorker):
    """Is run by hand and by a schedule."""

    feature_category = "not_owned"

    def perform(self) -> None: ...


def test_job_reads_its_tick():
    found = new_instance(ReportWorker, {"jid": "a", CRON: {"name": "daily", "tick": 1_790_000_000}}).cron_tick
    assert (found.entry, found.tick, found.time) == (
        "daily",
        1_790_000_000,
        datetime(2026, 9, 21, 14, 13, 20, tzinfo=UTC),
    )
    between = new_instance(ReportWorker, {"jid": "a", CRON: {"name": "daily", "tick": None}}).cron_tick
    assert (between.entry, between.tick, between.time) == ("daily", None, None)
    assert ReportWorker().cron_tick is None


@each_row("field", [None, 5, "daily", {}, {"name": 5}, ["daily", 1]])
def test_field_of_another_program_is_no_tick(field):
    assert new_instance(ReportWorker, {"jid": "a", CRON: field}).cron_tick is None
