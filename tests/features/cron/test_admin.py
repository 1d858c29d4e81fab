"""Test the entries of the schedule that an application adds, lists and removes."""

import asyncio

import pytest

from framework import CronWorker, admin
from framework.declare import port, registry
from framework.errors import ConfigurationError, JobRefusedError, ReadOnlyError, UnknownNameError
from framework.features.cron import keys
from framework.features.cron.entries import Order
from framework.features.cron.store import CronStates
from framework.features.deduplication.push import Deduplicator
from framework.push.client import Client
from framework.route.router import Router
from framework.settings.model import RoutingRule
from tests.admin.conftest import both_shards

__all__ = ["both_shards"]


@pytest.fixture
def report(both_shards):
    router = Router([RoutingRule("*", None, "second")], ["main", "second"])
    with registry.isolated(), port.override(Client(both_shards, router, locks=Deduplicator(lambda *_: True))):

        class ReportWorker(CronWorker):
            feature_category = "not_owned"

            def perform(self, days: int = 1) -> None: ...

        yield ReportWorker


def test_entry_is_added_listed_and_removed(report, second_redis):
    admin.add_cron_entry("extra", cron="@hourly", cls=report, args=[7], spread=60, reason="audit")
    assert not second_redis.exists(keys.cron_states("default"))
    states = CronStates(second_redis, "default")
    (found,) = admin.cron_entries()
    assert (found.name, found.shard, found.cls, found.args) == ("extra", "second", report.declaration().wire_name, (7,))
    assert (found.origin, found.enabled, found.reason, found.last_tick) == ("added", True, "audit", None)
    now = second_redis.time()[0]
    assert 0 <= found.offset_s < 60
    assert now < found.next_tick + found.offset_s <= now + 3_601
    states.change_order("extra", lambda *_: Order(enabled=False, args=[8], reason="quiet", set_at=1.0))
    (changed,) = asyncio.run(admin.acron_entries("second"))
    assert (changed.enabled, changed.args, changed.reason, changed.next_tick) == (False, (8,), "quiet", None)
    # A refused entry changes nothing.
    stored = states.read_added()
    with pytest.raises(JobRefusedError, match="was added before"):
        admin.add_cron_entry("extra", cron="@daily", cls=report)
    for wrong in (
        {"cls": "NoWorker"},
        {"args": ["x"]},
        {"cron": "@dayly"},
        {"cls": 5},
        {"args": "7"},
        {"reason": None},
        # Half of a surrogate pair, which JSON cannot carry, and two lines.
        {"reason": "\ud800"},
        {"reason": "a\nb"},
    ):
        with pytest.raises(ConfigurationError, match="the cron entry 'other'"):
            admin.add_cron_entry("other", **{"cron": "@daily", "cls": report, **wrong})
    with admin.read_only(), pytest.raises(ReadOnlyError):
        admin.remove_cron_entry("extra")
    for unknown in ("other", None, "\ud800"):
        with pytest.raises(UnknownNameError):
            admin.remove_cron_entry(unknown)
    assert states.read_added() == stored
    admin.remove_cron_entry("extra")
    assert admin.cron_entries() == []
    assert not second_redis.keys("aw:cron*")
