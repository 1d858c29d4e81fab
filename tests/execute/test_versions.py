"""The version of a job decides its method and signature, and which arguments its lines show."""

import asyncio
import json
import os
import threading
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from framework.application_worker import ApplicationWorker
from framework.declare import registry
from framework.errors import ArgumentsMismatchError, NewerVersionError, UnknownWorkerError
from framework.execute.decoding import PayloadDecoder
from framework.execute.execution import Executor
from framework.execute.job_log import JobLog
from framework.execute.perform import JobCaller, new_instance
from framework.execute.stats import RunningJobs
from framework.execute.threads import FetchingThreads
from framework.fetch.unit_of_work import UnitOfWork
from framework.finish.outcome import Failed, Retired, Succeeded, UnknownClass
from framework.middleware.chain import SERVER, Chain
from framework.push.argument_checks import StrictArgumentsCheck
from framework.telemetry.logs import ServerLog
from framework.wire.json import dumps
from tests.execute.test_execution import executed
from tests.harness import compressed, encoded, examples, payload

seen: list = []
relays: list = []


@pytest.fixture(autouse=True)
def alone():
    seen.clear()
    relays.clear()
    with registry.isolated():
        yield


@pytest.fixture
def run():
    """Run a payload through an executor; return its execution and its start line."""
    reader, writer = os.pipe()
    log = ServerLog(writer, "info", {"pid": 1, "shard": "main"})

    def go(*middleware, data=None, retired=None, strictness=None, **fields):
        chain = Chain(SERVER)
        for one in middleware:
            chain.add(one)
        executor = Executor(
            chain.compile(),
            JobLog(log, jobs=True),
            RunningJobs(),
            PayloadDecoder(RunningJobs(), 10_000),
            SimpleNamespace(ensure_fetching=lambda: relays.append(None)),
            None,
            strictness or StrictArgumentsCheck(),
            retired or {},
        )
        run = executed(executor, UnitOfWork("q", data or encoded(**fields)))
        log.writer.flush()
        return run, json.loads(os.read(reader, 1 << 20).splitlines()[0])

    yield go
    log.writer.close()
    os.close(writer)
    os.close(reader)


@pytest.fixture
def delayed_outcome():
    """Run a payload without a class in this process; return its outcome. No line is written."""

    def go(retired=None, **fields):
        executor = Executor(
            (),
            SimpleNamespace(has_job_lines=False),
            RunningJobs(),
            PayloadDecoder(RunningJobs(), 10_000),
            FetchingThreads(),
            None,
            StrictArgumentsCheck(),
            retired or {},
        )
        execution = executed(executor, UnitOfWork("q", encoded(**fields)))
        assert isinstance(execution.outcome, UnknownClass)
        assert not execution.admitted
        return execution.outcome

    return go


def worker(**body):
    head = {"feature_category": "not_owned", "wire_name": "Job", "perform": recorder("perform")}
    return type("Job", (ApplicationWorker,), {**head, **body})


def recorder(name, *, is_async=False):
    """Return a method that notes its run."""

    def plain(self, *args):
        seen.append((name, self.job_version, args))

    async def asynchronous(self, *args):
        await asyncio.sleep(0)
        seen.append((name, self.job_version, args, threading.current_thread().name))

    return asynchronous if is_async else plain


VERSIONS = (
    st.integers(-2, 9)
    | st.integers()
    | st.integers(0, 9).map(str)
    | st.sampled_from([None, True, False, 2.0, "", "two", "1.0", "-1", " 1", "１", "9" * 5_000, [1], {"a": 1}])
)


@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    own=st.integers(0, 8),
    handled=st.sets(st.integers(0, 7)),
    version=VERSIONS | st.just(...),
    through=st.sampled_from(["pipe", "call"]),
)
def test_version_handler_runs_exactly_its_version(run, delayed_outcome, own, handled, version, through):
    seen.clear()
    older = {number for number in handled if number < own}
    fields = {} if version is ... else {"version": version}
    read = version if type(version) is int and version >= 0 else 0
    if isinstance(version, str) and version in set("0123456789"):
        read = int(version)
    with registry.isolated():
        made = worker(version=own, **{f"perform_v{number}": recorder(f"perform_v{number}") for number in older})
        if through == "pipe" and read > own:
            error = delayed_outcome(args=["a", 2], **fields).error
            assert (type(error), error.version, error.known) == (NewerVersionError, read, own)
            assert seen == []
            return
        if through == "pipe":
            outcome = run(args=["a", 2], **fields)[0].outcome
            assert outcome == Succeeded()
        else:
            job = payload(args=["a", 2], **fields)
            JobCaller(StrictArgumentsCheck()).call(new_instance(made, job), made.declaration(), job)
    assert seen == [(f"perform_v{read}" if read in older else "perform", read, ("a", 2))]


@pytest.mark.parametrize("version", [0, 1, 2])
def test_versions_may_mix_def_and_async_def(run, version):
    worker(
        perform=recorder("perform", is_async=True),
        version=2,
        perform_v0=recorder("perform_v0"),
        perform_v1=recorder("perform_v1", is_async=True),
    )
    assert run(version=version, args=[7])[0].outcome == Succeeded()
    ((name, job_version, args, *thread),) = seen
    assert (name, job_version, args) == ("perform" if version == 2 else f"perform_v{version}", version, (7,))
    assert thread == ([] if version == 0 else ["event-loop"])
    assert relays == [None]  # the thread may block: another one must fetch


def test_async_versions_need_no_extra_thread(run):
    worker(perform=recorder("p", is_async=True), version=1, perform_v0=recorder("v0", is_async=True))
    run(version=0)
    assert relays == []


def test_arguments_are_checked_by_the_handlers_signature(run):
    def before(self, path: str) -> None:
        seen.append(path)

    def now(self, project_id: int, mode: str = "full") -> None:
        seen.append(project_id)

    worker(perform=now, version=2, perform_v1=before)
    assert run(version=1, args=["a"])[0].outcome == Succeeded()
    assert run(version=2, args=[5])[0].outcome == Succeeded()
    assert seen == ["a", 5]
    error = run(version=1, args=[5])[0].outcome.error
    assert isinstance(error, ArgumentsMismatchError)
    assert (error.method, error.version) == ("perform_v1", 1)
    assert str(error) == (
        "Job: the arguments of the job (version 1) do not fit perform_v1: argument 'path' does not fit: input should be a valid "
        "string, got int. Give perform_v1 the parameters that perform had in version 1."
    )
    error = run(version=0, args=["a"])[0].outcome.error  # no handler of that version
    assert (error.method, error.version) == ("perform", 0)
    assert "the job (version 0) do not fit perform: argument 'project_id' does not fit" in str(error)
    assert "takes 2 arguments" in str(run(version=2, args=[1, "a", 2])[0].outcome.error)


def test_strict_arguments_apply_to_version_handlers(run):
    worker(version=1, perform_v0=lambda self, path: seen.append(path), strict_arguments="off")

    def before(self, path: str) -> None:
        seen.append(path)

    worker(version=1, perform_v0=before, strict_arguments="off")
    assert run(args=[5])[0].outcome == Succeeded()
    assert isinstance(run(args=[5, 6])[0].outcome, Failed)  # of a wrong number it could not be called
    assert seen == [5]


def test_middleware_may_raise_the_version_of_a_job(run):
    class Upgrade:
        def call(self, instance, job, queue):
            job["args"], instance.job_version = [job["args"][0], "full"], 1
            yield

    worker(version=1, perform_v0=recorder("perform_v0"))
    assert run(Upgrade, args=[5])[0].outcome == Succeeded()
    assert seen == [("perform", 1, (5, "full"))]


# --- lines --------------------------------------------------------------------------------------------------------------


def test_loggable_position_of_another_version_is_filtered(run):
    def before(self, token: str, mode: str) -> None: ...

    def now(self, mode: str, token: str) -> None: ...

    worker(perform=now, version=2, perform_v1=before, loggable_arguments=("mode",))

    def shown(**fields):
        return run(args=["first", "second"], **fields)[1]["args"]

    assert shown(version=2) == ["first", "[FILTERED]"]
    assert shown(version=1) == shown(version="1") == ["[FILTERED]", "second"]
    assert shown() == ["first", "[FILTERED]"]  # perform runs it
    many = ["first", "second", *range(5_000)]
    assert run(args=many, version=1)[1]["args"][:2] == ["[FILTERED]", "second"]  # the slow path, which cuts values


def test_line_has_class_name_beside_the_alias(run):
    worker(aliases=("Old::JobWorker",))
    line = run(name="Old::JobWorker")[1]
    assert (line["class"], line["worker_name"]) == ("Old::JobWorker", "Job")
    assert "worker_name" not in run(name="Job")[1]


# --- retired classes ------------------------------------------------------------------------------------------------------


class VersionMiddleware:
    def call(self, instance, job, queue):
        seen.append(job)
        yield


def test_retired_class_does_not_run(run):
    job = compressed(["secret " * 2_000], **{"class": "Gone::Worker"})  # more than may be decompressed here
    execution, line = run(VersionMiddleware, data=dumps(job), retired={"Gone::Worker": "replaced in 4.2"})
    assert execution.outcome == Retired("Gone::Worker", "replaced in 4.2")
    assert line["args"] == ["[COMPRESSED]"]
    assert seen == []
    execution, line = run(VersionMiddleware, name="Gone::Worker", args=["secret", 5], retired={"Gone::Worker": "x"})
    assert execution.outcome == Retired("Gone::Worker", "x")
    assert line["args"] == ["[FILTERED]", "5"]


def test_unregistered_class_waits_with_advice(delayed_outcome):
    worker()
    error = delayed_outcome(name="Jab", retired={"Gone::Worker": "x"}).error
    assert isinstance(error, UnknownWorkerError)
    assert "nearest known name: Job" in str(error)
    assert "aliases = ('Jab',)" in str(error)
    assert "retired_workers" in str(error)
    assert "foreign_classes" in str(error)
