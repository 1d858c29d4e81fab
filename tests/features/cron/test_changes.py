"""Test what operators change in a schedule beside the commands that show it."""

from types import SimpleNamespace

from framework.declare import port
from framework.features.cron.changes import push_now
from tests.features.cron.conftest import entry, worker


def test_push_now_records_its_job_as_a_tick_does(cron):
    made = worker(perform=lambda self: None, track=True)
    recorded = []
    cron.client.recorder = SimpleNamespace(written=lambda _, batch: recorded.extend(batch.jids))
    with port.override(cron.client):
        jid, settlement = push_now(cron.states, entry("* * * * *", made=made))
    assert settlement.outcome == "manual"
    assert recorded == [jid]
