"""Check the operators' flags at admission: classes, samples, log lines."""

import random

import pytest

from framework.application_worker import ApplicationWorker
from framework.declare import registry
from framework.execute.admission import AdmissionChain, AdmissionRequest
from framework.features.deferral import admission
from framework.features.deferral.admission import DeferFlag, DropFlag, SkipTracker
from framework.features.flags.flag import Flag, drop_flag, run_flag
from framework.features.flags.redis_flags import RedisFlags, set_flag, unset_flag
from framework.fetch.unit_of_work import UnitOfWork
from framework.finish.outcome import Deferred, Discarded
from framework.telemetry.counters import counters
from tests.harness import encoded, payload, server_lines


@pytest.fixture
def entry():
    with registry.isolated():

        class FloodWorker(ApplicationWorker):
            wire_name = "FloodWorker"
            feature_category = "not_owned"

            def perform(self):
                pass

        declaration = FloodWorker.declaration()
        yield AdmissionRequest(
            UnitOfWork("default", encoded("FloodWorker")), payload("FloodWorker"), declaration, FloodWorker
        )


@pytest.fixture
def flags(redis, granted):
    return RedisFlags(granted, "main")


@pytest.fixture
def skips(flags, monkeypatch):
    monkeypatch.setattr(counters, "_counts", {})
    return SkipTracker(flags)


def test_flag_policies_without_flags_apply_to_no_class(redis, flags, skips, entry):
    drop, run = DropFlag(flags, skips), DeferFlag(flags, skips, 300)
    chain = AdmissionChain(local=[drop, run])
    flags.read()
    assert chain.policies_for(entry.declaration).local == ()
    set_flag(redis, Flag(run_flag("FloodWorker"), 50), None)
    set_flag(redis, Flag(drop_flag("OtherWorker"), 50), None)
    assert flags.read()
    chain.invalidate()
    assert chain.policies_for(entry.declaration).local == (run,)
    unset_flag(redis, run_flag("FloodWorker"))
    flags.read()
    assert run.admit(entry) is None


def test_flag_policies_flag_set_meanwhile_is_seen(entry):
    class ChangingPolicy:
        applies = False

        def applies_to(self, declaration):
            before, self.applies = self.applies, True
            chain.invalidate()  # by another thread, which has just read the flags
            return before

    policy = ChangingPolicy()
    chain = AdmissionChain(local=[policy])
    assert chain.policies_for(entry.declaration).local == ()
    assert chain.policies_for(entry.declaration).local == (policy,)


def test_defer_flag_share_runs_and_rest_is_spread(redis, flags, skips, entry):
    random.seed(11)
    set_flag(redis, Flag(run_flag("FloodWorker"), 10, "slow release"), None)
    flags.read()
    policy = DeferFlag(flags, skips, 300)
    outcomes = [policy.admit(entry) for _ in range(2_000)]
    deferred_outcomes = [one for one in outcomes if isinstance(one, Deferred)]
    assert len(deferred_outcomes) == 1_806
    delays = sorted(one.delay_s for one in deferred_outcomes)
    assert 150 <= delays[0] < 160 < 290 < delays[len(delays) // 2] < 310 < 440 < delays[-1] <= 450
    assert deferred_outcomes[0].fields == {
        "feature_flag": "run_jobs_FloodWorker",
        "feature_flag_reason": "slow release",
    }
    assert counters._counts == {
        'sidekiq_jobs_skipped_total{action="deferred",reason="feature_flag",worker="FloodWorker"}': 1_806
    }


def test_drop_flag_share_is_dropped(redis, flags, skips, entry):
    random.seed(12)
    set_flag(redis, Flag(drop_flag("FloodWorker"), 25), None)
    flags.read()
    policy = DropFlag(flags, skips)
    dropped = [one for _ in range(1_000) if (one := policy.admit(entry)) is not None]
    assert len(dropped) == 245
    assert dropped[0] == Discarded("the flag drop_jobs_FloodWorker", "feature_flag")


def test_skip_tracker_old_flag_is_logged_once_per_period(redis, flags, skips, entry, monkeypatch):
    set_flag(redis, Flag(drop_flag("FloodWorker"), 100, "incident 7", "ops@host"), None)
    set_flag(redis, Flag(run_flag("FloodWorker"), 0), None)
    flags.read()
    drop, run = DropFlag(flags, skips), DeferFlag(flags, skips, 300)
    with server_lines("info") as lines:
        drop.admit(entry)
        run.admit(entry)
        skips.warn_stale()  # both are new
        monkeypatch.setattr(admission, "STALE_AFTER_S", -60.0)
        skips.warn_stale()  # they have skipped nothing since
        drop.admit(entry)
        skips.warn_stale()
        drop.admit(entry)
        skips.warn_stale()  # a line was logged a moment ago
        set_flag(redis, Flag(run_flag("FloodWorker"), 1), None)
        flags.read()
        skips.warn_stale()
        (line,) = lines()
    assert line["event_name"] == "flags.stale"
    facts = {name: line[name] for name in ("class", "feature_flag", "feature_flag_reason", "set_by", "action")}
    assert facts == {
        "class": "FloodWorker",
        "feature_flag": "drop_jobs_FloodWorker",
        "feature_flag_reason": "incident 7",
        "set_by": "ops@host",
        "action": "dropped",
    }
    assert "application-worker jobs flags clear FloodWorker" in line["message"]
    assert skips._records.keys() == {"drop_jobs_FloodWorker"}
