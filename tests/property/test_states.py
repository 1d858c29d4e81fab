"""Check histories made by hypothesis: whole processes whose threads step one command at a time."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.proofs.machine.rules import machine_on

STEPS = 40


@pytest.mark.slow
@pytest.mark.parametrize("examples", [4, pytest.param(120, marks=pytest.mark.campaign)])
@pytest.mark.timeout(1_800)
@pytest.mark.proves("I1", "I2", "I3", "I4", "I5", "I6", "I7", "I8", "I12", "I13", "I15", "I16", "I17", "I19", "I24")
def test_no_history_breaks_an_invariant(cluster, examples, record_property):
    record_property("histories", examples)
    record_property("steps of each", STEPS)
    how = settings(
        max_examples=examples,
        stateful_step_count=STEPS,
        database=None,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    run_state_machine_as_test(machine_on(cluster), settings=how)
