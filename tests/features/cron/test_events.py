"""Check the counters of cron."""

from framework.features.cron.entries import DueTicks
from framework.features.cron.events import CRON_TICKS, CronEvents
from framework.telemetry.counters import counters
from tests.features.cron.conftest import entry, worker


def test_ticks_are_counted_by_outcome(monkeypatch):
    monkeypatch.setattr(counters, "_counts", {})
    one, events = entry("* * * * *", made=worker()), CronEvents("main")
    events.pushed(one, 60, "j1", 0.0)
    events.pushed(one, 120, "j2", 0.0)
    events.not_pushed(one, 180, "overlap", "j2")
    events.missed(one, DueTicks(skipped=(240, 300)))
    series = '{name}{{entry="tick",outcome="{outcome}",worker="TickWorker"}}'
    assert counters._counts == {
        series.format(name=CRON_TICKS, outcome="pushed"): 2,
        series.format(name=CRON_TICKS, outcome="overlap"): 1,
        series.format(name=CRON_TICKS, outcome="missed"): 2,
    }
