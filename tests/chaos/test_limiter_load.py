"""Test the judges of rate limiters in a round: a limit that was surely exceeded is found, and a slow machine breaks none."""

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.rounds import limiter_load
from tests.chaos.rounds.effects import ASKED, BEGUN, ENDED, Effect
from tests.chaos.rounds.jobs import PACED
from tests.chaos.rounds.limiter_load import AdmittedBlock, LimiterLoad, takes_of
from tests.chaos.rounds.producer import AcceptedPushes


def takes(*times, late=0.0):
    return [AdmittedBlock(at, at + late) for at in times]


@pytest.mark.parametrize(
    ("found", "most"),
    [
        (takes(), 0),
        (takes(0.0, 0.1, 0.2, 1.1), 3),
        (takes(0.0, 0.1, 0.2, 0.9), 4),
        # Admitted perhaps after the window.
        ([*takes(0.0, 0.1, 0.2), AdmittedBlock(0.9, 1.2)], 3),
        # Asked before the window, and perhaps admitted then.
        ([AdmittedBlock(-0.5, 0.9), *takes(0.0, 0.1, 0.2)], 3),
    ],
)
def test_window_counts_takes_that_surely_lie_within_it(found, most):
    assert limiter_load.most_in_a_window(sorted(found), 1.0) == most


@pytest.mark.parametrize(
    ("found", "most"),
    [
        (takes(0.8, 0.85, 0.9, 1.1, 1.15, 1.2), 3),
        (takes(1.1, 1.2, 1.3, 1.4), 4),
        ([*takes(1.1, 1.2, 1.3), AdmittedBlock(0.9, 1.4)], 3),
        # The two clocks may differ a little.
        ([*takes(1.1, 1.2, 1.3), AdmittedBlock(1.995, 1.996)], 3),
    ],
)
def test_bucket_counts_takes_of_an_interval_of_the_clock(found, most):
    assert limiter_load.most_in_an_interval(sorted(found), 1.0, ahead_s=0.0) == most


@pytest.mark.parametrize(
    ("found", "level"),
    [
        (takes(0.0, 0.0, 0.0), 3.0),
        (takes(0.0, 0.0, 0.0, 1 / 3 + 0.001), 3.0),
        (takes(0.0, 0.0, 0.0, 0.0), 4.0),
        (takes(0.0, 0.0, 0.0, 0.1), 3.7),
        ([*takes(0.0, 0.0, 0.0), AdmittedBlock(0.0, 0.4)], 3.0),
    ],
)
def test_level_drains_while_takes_come(found, level):
    assert math.isclose(limiter_load.highest_level(sorted(found), 1, 3.0), level, abs_tol=0.04)


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 1), st.floats(0, 1)), max_size=40))
def test_judges_accept_each_history_of_a_correct_limiter(calls):
    """The oracle admits a call at a time between its two records, if the limit allows it then."""
    admitted, level, at = {"window": [], "leaky": []}, 0.0, 0.0
    found = {"window": [], "leaky": []}
    for asked, waited, rest in sorted(calls, key=lambda call: call[0] + call[1]):
        now = asked + waited
        take = AdmittedBlock(asked, now + rest)
        if sum(now - one <= 1.0 for one in admitted["window"]) < 3:
            admitted["window"].append(now)
            found["window"].append(take)
        level, at = max(0.0, level - 3.0 * (now - at)), now
        if level <= 2.0:
            level += 1.0
            found["leaky"].append(take)
    assert limiter_load.most_in_a_window(sorted(found["window"]), 1.0) <= 3
    assert limiter_load.highest_level(sorted(found["leaky"]), 1, 3.0) <= 3.0 + 1e-6


def test_refused_run_is_no_take():
    asked = [Effect(ASKED, 1, 7, 1.0), Effect(ASKED, 1, 7, 2.0), Effect(BEGUN, 1, 7, 2.5), Effect(ENDED, 1, 7, 3.0)]
    killed = [Effect(ASKED, 2, 7, 1.0), Effect(ASKED, 2, 8, 4.0), Effect(BEGUN, 2, 8, 4.5)]
    assert takes_of([*asked, *killed]) == [(2.0, 2.5), (4.0, 4.5)]


@pytest.mark.parametrize(("kind", "fits"), [("window", 3), ("bucket", 3), ("leaky", 3), ("points", 3)])
def test_each_limiter_is_judged_by_its_own_limit(kind, fits, monkeypatch):
    load = LimiterLoad(10.0, Random(1), [])

    def found(count):
        load._times[kind] = AcceptedPushes([1.0] * (count + 1), [1.0] * (count + 1))
        records = [
            Effect(what, PACED[kind] + serial, 7, 1_000.5 + serial / 1_000 + step / 10_000)
            for serial in range(count)
            for step, what in enumerate((ASKED, BEGUN, ENDED))
        ]
        return next(one for one in load.found(records, []) if one.kind == kind)

    monkeypatch.setattr(limiter_load.time, "time", limiter_load.time.monotonic)
    assert not found(fits).over
    seen = found(fits + 1)
    assert (seen.over, seen.takes, seen.account.lost) == (True, fits + 1, [fits + 1])
