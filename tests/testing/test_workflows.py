"""Workflows in the modes of a test."""

import pytest

from framework import testing
from framework.batches import Batch
from framework.features.workflows.step_worker import WorkflowStepWorker
from framework.workflows import Workflow, WorkflowRun, computed, computes_arguments
from tests.push.conftest import worker

SEEN = []


def note(self, name, number=0):
    SEEN.append((name, number))
    if number == 13:
        raise ValueError(number)


@computes_arguments
def seen_rows(name, factor=1):
    for _, number in SEEN:
        yield name, number * factor


@pytest.fixture
def row():
    SEEN.clear()
    return worker("Row", perform=note, queue="default", retry=0)


def catalogue(row, rows):
    return (
        Workflow("catalogue", description="spring")
        .step("import", row, [("import", number) for number in rows])
        .then("validate", row, computed(seen_rows, "validate", factor=10))
        .then("publish", row, [("publish",)])
        .on_failure("report", row, [("report",)])
        .then("clean", row, [("clean",)])
    )


def states(run):
    return {one.name: one.state for one in run.status.steps}


@pytest.mark.parametrize("mode", [testing.fake, testing.inline])
def test_steps_follow_each_other_in_the_modes_of_a_test(row, mode):
    for rows, expected, state in (
        ([1, 2], ["import", "import", "validate", "validate", "publish"], "succeeded"),
        ([1, 13], ["import", "import", "report", "clean"], "failed"),
        ([], ["publish"], "succeeded"),
    ):
        SEEN.clear()
        with mode() as jobs:
            if mode is testing.inline and 13 in rows:
                # The error of a job reaches the code that pushes.
                with pytest.raises(ValueError, match="13"):
                    catalogue(row, rows).start()
                continue
            run = catalogue(row, rows).start()
            if mode is testing.fake:
                jobs.drain(raise_errors=False)
            assert [name for name, _ in SEEN] == expected
            assert (run.status.state, run.status.ended) == (state, True)
            assert [one.name for one in run.status.steps if one.state == "skipped"] == (
                ["validate", "publish"] if state == "failed" else ["report", "clean"]
            )
            with pytest.raises(KeyError):
                run.status.step("nothing")
    assert SEEN == [("publish", 0)]


def test_workflow_of_a_fake_is_cancelled_and_nested(row):
    with testing.fake() as jobs:
        run = catalogue(row, [1, 2]).start()
        assert states(run)["import"] == "waiting"
        jobs.perform_one(WorkflowStepWorker)
        assert states(run)["import"] == "running"
        WorkflowRun(run.id).cancel()
        jobs.drain()
        assert (SEEN, run.status.state, states(run)["import"], states(run)["report"]) == (
            [],
            "cancelled",
            "cancelled",
            "skipped",
        )
        outer = Batch()
        with outer.jobs():
            nested = catalogue(row, [1]).start()
        jobs.perform_one(WorkflowStepWorker)
        assert not outer.status.finished
        jobs.drain()
        assert (outer.status.succeeded, nested.status.state, nested.status.parent) == (True, "succeeded", outer.bid)
        nested.delete()
        with pytest.raises(LookupError):
            _ = nested.status
