"""Test the waits of leases, heartbeats and periodic tasks: the order of their lengths, and the scaled table."""

from dataclasses import astuple

import pytest

from framework import timings
from framework.timings import STANDARD


def test_lease_outlasts_late_heartbeats_and_renewals():
    assert STANDARD.lease_s > 4 * STANDARD.heartbeat_period_s
    assert STANDARD.lease_s > STANDARD.late_heartbeat_s + 2 * STANDARD.child_renewal_period_s


def test_fetched_job_is_stale_before_its_lease_expires():
    assert STANDARD.stale_after_s < STANDARD.lease_s
    assert STANDARD.inspection_valid_s < STANDARD.lease_s


def test_stuck_child_is_killed_before_the_group_is_restarted():
    assert STANDARD.stuck_s > STANDARD.silence_limit_s + 2 * STANDARD.child_renewal_period_s


def test_leases_of_records_and_slots_outlast_silent_children():
    assert (STANDARD.record_ttl_s, STANDARD.slot_ttl_s) == (60, 180)
    assert STANDARD.slot_ttl_s > STANDARD.silence_limit_s + STANDARD.child_renewal_period_s


def test_derived_waits_exceed_those_that_they_contain():
    assert STANDARD.silent_after_s < STANDARD.lease_s < STANDARD.alive_within_s
    assert STANDARD.blocking_call_s < STANDARD.fetch_silence_limit_s < STANDARD.fetcher_limit_s
    assert STANDARD.redis_patience_s < STANDARD.ready_timeout_s


def test_scaled_table_keeps_every_proportion():
    small = STANDARD.scaled(0.1)
    assert astuple(small) == pytest.approx([value / 10 for value in astuple(STANDARD)])
    assert small.lease_ms == 1_500
    assert small.unregister_after_s == pytest.approx(3.9)


def test_table_in_use_is_that_of_the_process(monkeypatch):
    monkeypatch.setattr(timings, "_current", STANDARD)
    assert timings.current() is STANDARD
    timings.use(STANDARD.scaled(2.0))
    assert timings.current().lease_s == 30.0
