"""Start workflows on real servers, end their jobs by the scripts, and look at the steps."""

import json

import pytest

from framework.batches import Batch
from framework.declare import registry
from framework.errors import ArgumentsError, UnknownWorkflowError, WorkflowError
from framework.features.batches import push as batches
from framework.features.workflows import definition
from framework.features.workflows import keys as workflow_keys
from framework.features.workflows import push as steps
from framework.store.script import FINISH
from framework.wire import keys
from framework.wire.job import bid_of
from framework.wire.resources import JobResources
from framework.wire.waiters import awaited_job_of
from framework.workflows import Workflow, WorkflowRun, computed, computes_arguments
from tests.push.conftest import closed_circuit, jobs, pusher, worker

__all__ = ["closed_circuit", "jobs", "pusher"]

ROWS = []


@computes_arguments
def rows_of(name):
    if "no file" in ROWS:
        raise FileNotFoundError("rows.csv")
    yield from ROWS
    if ROWS and ROWS[-1] == "broken":
        raise ZeroDivisionError


@pytest.fixture
def row(pusher):
    ROWS.clear()
    return worker("Row", queue="default")


@pytest.fixture
def ended(redis, pusher):
    """Return a function that ends the waiting jobs of the steps as a worker process does, and runs those that start steps."""

    def run_one(payload):
        if payload["class"] == "Framework::WorkflowStep":
            advance_as(payload)

    def take(how="done", run=run_one):
        taken = [json.loads(one) for one in reversed(redis.lrange("queue:default", 0, -1))]
        redis.delete("queue:default")
        for payload in taken:
            run(payload)
            jid, bid = payload["jid"], bid_of(payload)
            redis.rpush("working", jid)
            end = how if payload["class"] != "Framework::WorkflowStep" else "done"
            resources = (
                JobResources(awaited=awaited_job_of({"bid": bid, "jid": jid}), end_word=end) if bid else JobResources()
            )
            FINISH(redis, ["working"], [jid, resources.on_end()])
        return [(one["class"], one["args"]) for one in taken if one["class"] != "Framework::WorkflowStep"]

    return take


def catalogue(row, count=2):
    return (
        Workflow("catalogue", description="spring")
        .step("import", row, [(number,) for number in range(count)])
        .also("Row", [("other",)])
        .then("validate", row.set(retry=3), computed(rows_of, "x"))
        .then("publish", row)
        .on_failure("report", row, [("report",)])
        .on_failure("undo", row, [("undo",)], of="publish")
    )


def advance_as(payload):
    registry.find(payload["class"])().perform(*payload["args"])


def advance(run, step, event):
    registry.find("Framework::WorkflowStep")().perform(run.id, step, event)


def states(run):
    return {one.name: one.state for one in run.status.steps if one.state not in ("waiting", "skipped")}


def test_each_step_starts_after_the_success_of_the_last(row, ended, redis, jobs):
    ROWS[:] = [(7,), (8,)]
    run = catalogue(row).start()
    assert [(job["class"], job["args"]) for job in jobs()] == [("Framework::WorkflowStep", [run.id, "", "start"])]
    assert (run.status.state, run.status.step("validate").jobs, run.status.step("import").jobs) == ("waiting", None, 3)
    ended()
    assert states(run) == {"import": "running"}
    assert {job["bid"] for job in jobs()} == {run.status.step("import").bid} == {f"aw-{run.id}.import"}
    assert ended() == [("Row", [0]), ("Row", [1]), ("Row", ["other"])]
    ended()  # callbacks of the import
    assert redis.exists(workflow_keys.step_jobs(run.id, "import")) == 0
    assert [(job["args"], job["retry"]) for job in jobs()] == [([7], 3), ([8], 3)]
    ended()
    ended()
    assert ended() == [("Row", [])]
    ended()
    status = run.status
    assert (status.state, [one.jobs for one in status.steps]) == ("succeeded", [3, 2, 1, 1, 1])
    assert (status.step("report").state, status.description, status.shard) == ("skipped", "spring", "main")
    assert 0 < redis.ttl(workflow_keys.workflow(run.id)) <= 86_400
    counted = redis.hgetall(keys.COUNTERS)
    assert counted[b'workflow_steps_total{state="succeeded"}'] == b"3"
    assert counted[b'workflows_total{state="succeeded"}'] == b"1"


def test_failed_step_starts_its_branch_and_no_other(row, ended):
    for failing, ran, of in (("import", ["import", "report"], "report"), ("publish", ["publish", "undo"], "undo")):
        run = catalogue(row).start()
        ended()
        while states(run).get(failing) != "running":
            ended()
        ended("dead")
        ended()
        assert states(run)[of] == "running"
        # An operator retries the dead jobs later: the branch was started, and nothing else starts.
        advance(run, failing, "success")
        ended()
        ended()
        assert {one: states(run)[one] for one in ran} == {failing: "failed", of: "succeeded"}
        assert (run.status.state, run.status.step(failing).dead) == ("failed", 3 if failing == "import" else 1)


def test_failed_step_without_a_branch_goes_on_after_success(row, ended, redis):
    run = Workflow("short").step("one", row).then("two", row).start()
    ended()
    (_, args), *_ = [*ended("dead")]
    ended()
    assert (run.status.state, args, redis.ttl(workflow_keys.workflow(run.id)) > 100 * 86_400) == ("failed", [], True)
    dead = next(Batch(f"aw-{run.id}.one").dead_jids())
    redis.rpush("working", dead)
    FINISH(
        redis,
        ["working"],
        [
            dead,
            JobResources(awaited=awaited_job_of({"bid": f"aw-{run.id}.one", "jid": dead}), end_word="done").on_end(),
        ],
    )
    ended()
    assert (run.status.state, states(run)) == ("running", {"one": "succeeded", "two": "running"})
    ended()
    ended()
    assert run.status.state == "succeeded"


class DiedError(Exception):
    """Stand for the death of the process at a command."""


class Deaths:
    """Let each call to Redis be the last one of a process, before it and after it, one by one."""

    CALLS = (
        *((steps, name) for name in ("read_fields", "add_parts", "step_part", "write_workflow", "advance_workflow")),
        (batches, "write_batch"),
    )

    def __init__(self, monkeypatch):
        self.monkeypatch, self.count, self.left = monkeypatch, 0, 0

    def run(self, function):
        """Call a function until it has died at each of its calls."""
        for after in (False, True):
            for self.left in range(1, 100):
                with self.monkeypatch.context() as patched:
                    for module, name in self.CALLS:
                        patched.setattr(module, name, self.dying(getattr(module, name), after))
                    try:
                        function()
                    except DiedError:
                        self.count += 1
                    else:
                        break

    def dying(self, real, after):
        def call(*args, **named):
            self.left -= 1
            if self.left == 0 and not after:
                raise DiedError
            found = real(*args, **named)
            if self.left == 0:
                raise DiedError
            return found

        return call


def test_step_that_died_half_pushed_is_completed(row, ended, pusher, monkeypatch):
    monkeypatch.setattr(definition, "_MOST_JOBS", 3)
    ROWS[:] = [(number,) for number in range(8)]
    run = catalogue(row, count=7).start()
    deaths, started = Deaths(monkeypatch), []

    def run_dying(payload):
        if payload["class"] == "Framework::WorkflowStep":
            deaths.run(lambda: advance_as(payload))
        else:
            started.append((payload["bid"], tuple(payload["args"])))

    while not run.status.ended:
        ended(run=run_dying)
    assert deaths.count > 20
    assert run.status.state == "succeeded"
    assert len(started) == len(set(started)) == 8 + 8 + 1
    assert [one.jobs for one in run.status.steps[:3]] == [8, 8, 1]


def test_step_started_by_two_runs_is_written_once(row, pusher, jobs, monkeypatch):
    run, read = catalogue(row).start(), steps.step_part

    def read_late(*args):
        # Another run writes the step, after this one has read that no part is written.
        monkeypatch.setattr(steps, "step_part", read)
        advance(run, "", "start")
        return read(*args)

    monkeypatch.setattr(steps, "step_part", read_late)
    advance(run, "", "start")
    assert [job["args"] for job in jobs() if job["class"] == "Row"] == [[0], [1], ["other"]]
    assert run.status.step("import").jobs == Batch(f"aw-{run.id}.import").status.total == 3


def test_error_of_a_function_is_not_one_of_the_shard(row, ended, jobs):
    ROWS[:] = ["no file"]
    catalogue(row).start()
    ended()
    ended()
    with pytest.raises(FileNotFoundError):
        advance_as(next(job for job in jobs() if job["args"][2] == "success"))


def test_step_whose_function_fails_starts_when_it_works(row, ended, jobs):
    ROWS[:] = [(1,), "broken"]
    run = catalogue(row).start()
    ended()
    ended()
    payload = next(job for job in jobs() if job["args"][2] == "success")
    with pytest.raises((ZeroDivisionError, ArgumentsError)):
        advance_as(payload)
    assert states(run)["validate"] == "starting"
    ROWS[:] = [(2,)]
    ended()
    assert [job["args"] for job in jobs()] == [[2]]


def test_cancelled_workflow_starts_no_other_step(row, ended, redis):
    for cancel in (lambda run: run.cancel(), lambda run: Batch(run.status.step("import").bid).cancel()):
        run = catalogue(row).start()
        ended()
        run.invalidate()
        assert (Batch(run.status.step("import").bid).valid, run.status.invalidated_at is not None) == (False, True)
        cancel(run)
        run.cancel()  # once more
        ended("removed")
        ended()
        assert ended() == []
        assert (run.status.state, run.status.step("import").state, run.status.ended) == ("cancelled", "cancelled", True)
    run.delete()
    with pytest.raises(UnknownWorkflowError):
        run.cancel()
    advance(run, "import", "finished")  # a callback that comes late
    assert redis.keys(f"aw:workflow:{run.id}*") == []


def test_cancelled_batch_of_an_ended_step_ends_the_next_one(row, ended, redis):
    ROWS[:] = [(1,)]
    run = catalogue(row).start()
    ended()
    first = run.status.step("import").bid
    ended()
    advance(run, "import", "success")
    assert states(run)["validate"] == "running"
    Batch(first).cancel()
    marks = {bid.decode() for bid in redis.zrange("aw:cancelled", 0, -1)}
    assert marks == {run.status.step("validate").bid}
    assert (run.status.state, Batch(first).status.cancelled_at) == ("cancelled", None)


def test_nested_workflow_is_waited_for(row, ended):
    outer = Batch()
    with outer.jobs():
        run = catalogue(row).start()
        assert run.status.parent == outer.bid
    ended()
    while not run.status.ended:
        assert not outer.status.finished
        ended()
    ended()
    assert outer.status.succeeded


def test_wrong_workflows_are_refused_before_anything_is_written(row, redis, pusher):
    secret = worker("Secret", queue="default", encrypt=True)
    one = lambda: Workflow("bad").step("one", row)  # noqa: E731
    for wrong, message in (
        (lambda: Workflow("bad").start(), "has no step"),
        (lambda: Workflow("bad").then("x", row), "begin with step"),
        (lambda: one().step("two", row), "add further steps by then"),
        (lambda: one().then("one", row), "a name of its own"),
        (lambda: one().then("a b", row), "letters, digits"),
        (lambda: one().on_failure("x", row, of="onn"), "did you mean 'one'"),
        (lambda: one().on_failure("x", row).on_failure("y", row), "has a branch"),
        (lambda: one().then("two", "Rwo").start(), r"no class 'Rwo' is loaded \(did you mean 'Row'\?\)"),
        (lambda: one().then("two", 7).start(), "no worker class"),
        (lambda: one().then("two", secret, [("x",)]).start(), "encrypted"),
        (lambda: one().then("two", row.set(sync=True)).start(), "leave out sync"),
        (lambda: one().then("two", row.set(shard="nowhere")).start(), "nowhere"),
        (lambda: one().then("two", row, [{1}]).start(), "tuple"),
        (lambda: one().then("two", row, [({1},)]).start(), "Row"),
        (lambda: one().then("two", row, computed(rows_of, {1})).start(), "must be JSON"),
        (lambda: computed(len, 1), "computes_arguments"),
        (lambda: computed(rows_of, 1, 2), "too many positional"),
        (lambda: computes_arguments(list), "function of a module"),
        (lambda: Workflow(7), "give a str"),
        (lambda: Workflow("x", queue="a b"), "queue="),
        (lambda: Workflow("x", expires_in=1), "expires_in"),
        (lambda: WorkflowRun("aw-x"), "wf-"),
        (lambda: WorkflowRun("wf-unknown").status, "no shard has it"),
        (lambda: advance(WorkflowRun("wf-x"), "a", "b"), None),
    ):
        if message is None:
            wrong()
            continue
        with pytest.raises((WorkflowError, ArgumentsError, TypeError, ValueError, LookupError), match=message):
            wrong()
    assert redis.keys("*") == []
    run = one().start()
    with pytest.raises(WorkflowError, match="no step 'nope'"):
        advance(run, "nope", "success")
