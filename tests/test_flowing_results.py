"""Test results that flow: to a later step of a workflow, and to the callbacks of a batch, on real processes and in fakes."""

import shutil
from pathlib import Path

import pytest

from framework import admin, errors
from framework.all_settings import load
from framework.batches import Batch
from framework.declare import registry
from framework.features.batches import keys as batch_keys
from framework.features.workflows.definition import step_bid
from framework.store.script import FINISH
from framework.testing import fake, inline
from framework.wire.resources import JobResources
from framework.wire.waiters import awaited_job_of
from framework.wiring.client import ProcessClient, override
from framework.workflows import Workflow, WorkflowRun, computed, computes_arguments, result_of, results_of
from tests import flow_jobs as jobs
from tests.harness import until


@pytest.fixture
def site(site):
    shutil.copy(Path(jobs.__file__), site.folder / "jobs.py")
    return site


@pytest.fixture
def process(tmp_path, redis, redis_url, monkeypatch):
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "redis.yml").write_text(f"shards: {{main: {{url: '{redis_url}'}}}}")
    monkeypatch.setenv("FRAMEWORK_CONFIG_DIR", str(tmp_path / "config"))
    client = ProcessClient(load({"FRAMEWORK_CONFIG_DIR": str(tmp_path / "config")}, tmp_path))
    with override(client):
        yield redis
    client.shards.close()


def export(number, parts, file="report"):
    return (
        Workflow("export")
        .step("parts", jobs.PartWorker, [(number, part) for part in parts])
        .also(jobs.IsolatedPartWorker, [(7,)])
        .then("join", jobs.JoinWorker, [(number, results_of("parts"))])
        .then("report", jobs.report, [(result_of("join"), file)])
        .on_failure("failed", jobs.report, [(0, "failed")])
    )


def ended(run: WorkflowRun):
    return until(lambda: run.status.ended and run.status, "the end of the workflow")


def test_results_of_steps_flow_on_real_processes(process, site):
    site.worker("-q", "default", "-c", "5").ready()
    run = export(1, [3, 13, 1, 2]).start()
    bids = [step_bid(run.id, name) for name in ("parts", "join", "report")]
    assert ended(run).state == "succeeded"
    # In the order of the arguments; the discarded one has none.
    assert (site.folder / "joined-1").read_text() == "1-3,1-1,1-2,isolated-7"
    assert (site.folder / "report").read_text() == "4 parts"
    assert process.exists(*(f"{batch_keys.batch(bid)}:results" for bid in bids)) == 0, "no job receives them any more"

    # The results of a step whose jobs are repaired by an operator are complete.
    run = (
        Workflow("repaired")
        .step("parts", jobs.PartWorker, [(2, 1), (2, 15)])
        .then("join", jobs.JoinWorker, [(2, results_of("parts"))])
        .start()
    )
    assert ended(run).state == "failed"
    (site.folder / "repaired").touch()
    assert admin.dead().where(cls="PartWorker").retry().done == 1
    until(lambda: run.status.state == "succeeded", "the repaired workflow")
    assert (site.folder / "joined-2").read_text() == "2-1,2-15"

    # What cannot be stored is not left out.
    run = (
        Workflow("refused")
        .step("parts", jobs.PartWorker, [(3, 14)])
        .then("join", jobs.JoinWorker, [(3, results_of("parts"))])
        .start()
    )
    starter = until(lambda: next(iter(admin.retries().where(cls="Framework::WorkflowStep")), None), "the retry")
    assert "the results of the step 'parts' cannot be received" in starter.error_message
    assert "result is a tuple" in starter.error_message
    assert run.status.step("join").state == "starting"


def test_callback_reads_the_results_of_its_group(process, site):
    site.worker("-q", "default", "-c", "5").ready()
    batch = Batch(keep_results=True)
    batch.on_success(jobs.GroupWorker, "group")
    with batch.jobs():
        jobs.PartWorker.perform_bulk([(1, 2), (1, 13)])
        jobs.PartWorker.perform_async(1, 1)
    # Added later, as a job of the batch does it.
    until(lambda: (site.folder / "group").exists() and (site.folder / "group").read_text(), "the callback")
    assert (site.folder / "group").read_text() == repr(["1-2", "1-1"])
    assert batch.results() == ["1-2", "1-1"]
    assert process.ttl(f"{batch_keys.batch(batch.bid)}:results") <= 86_400
    batch.delete()
    assert process.exists(f"{batch_keys.batch(batch.bid)}:results") == 0
    plain = Batch()
    with plain.jobs():
        jobs.PartWorker.perform_async(1, 1)
    with pytest.raises(errors.BatchError, match="Batch\\(keep_results=True\\)"):
        plain.results()


def test_results_are_bounded_and_those_that_miss_are_said(process):
    batch = Batch(keep_results=True)
    with batch.jobs():
        jids = jobs.PartWorker.perform_bulk([(1, number) for number in range(70)])
    answer = '{"value":"' + "x" * 250_000 + '"}'
    for place, jid in enumerate(jids):
        process.rpush("working", jid)
        held = JobResources(
            awaited=awaited_job_of({"bid": batch.bid, "jid": jid, "aw_kept": place})._replace(answer=answer)
        )
        FINISH(process, ["working"], [jid, held.on_end()])
    with pytest.raises(errors.BatchError, match="more than 16 MiB"):
        batch.results()
    assert process.hlen(f"{batch_keys.batch(batch.bid)}:results") == 2 + 16 * 1_024 * 1_024 // len(answer)


@pytest.mark.parametrize("mode", [fake, inline])
def test_results_flow_in_the_modes_of_a_test(mode, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with mode() as found:
        run = export(4, [1, 13, 2]).start()
        if mode is fake:
            found.drain()
        assert run.status.state == "succeeded"
        assert (tmp_path / "joined-4").read_text() == "4-1,4-2,isolated-7"
        assert (tmp_path / "report").read_text() == "3 parts"
        batch = Batch(keep_results=True)
        batch.on_complete(jobs.GroupWorker, "group")
        with batch.jobs():
            jobs.PartWorker.perform_bulk([(1, 2), (1, 1)])
        if mode is fake:
            found.drain()
        assert (tmp_path / "group").read_text() == repr(["1-2", "1-1"])


@computes_arguments
def no_arguments():
    yield ()


class SecretWorker(jobs.FlowWorker):
    encrypt = True

    def perform(self) -> str:
        return ""


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (
            ("join", jobs.JoinWorker, [(1, results_of("part"))]),
            r"results_of\('part'\) names no earlier step .did you mean",
        ),
        (
            ("join", jobs.JoinWorker, [(results_of("parts"), [])]),
            r"results_of\('parts'\) is a list, and perform .* takes int",
        ),
        (("join", jobs.JoinWorker, [(results_of("parts"),)]), "argument 'files' .step 'join' of 'wrong'. is missing"),
        (("join", jobs.JoinWorker, [(object(), results_of("parts"))]), "must be JSON"),
        (
            ("join", jobs.report, [(result_of("secret"), "a")]),
            "SecretWorker declares encrypt, and results are not encrypted",
        ),
    ],
)
def test_wrong_use_of_results_is_refused_at_the_start(step, words):
    with registry.isolated(), fake() as found:
        flow = (
            Workflow("wrong")
            .step("parts", jobs.PartWorker, [(1, 1)])
            .then("secret", SecretWorker, computed(no_arguments))
            .then(*step)
        )
        with pytest.raises((errors.WorkflowError, errors.ArgumentsError), match=words):
            flow.start()
        assert not found.enqueued()
