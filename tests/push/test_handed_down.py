"""Check the context that a job inherits from its caller, without and with a client middleware."""

import json
from contextvars import copy_context

import pytest

from framework.declare import registry
from framework.errors import ArgumentsError
from framework.telemetry import context
from framework.wire.context_fields import TRACE_FIELDS, allow_keys
from tests.push.conftest import LetPass, worker


@pytest.fixture(params=[(), (LetPass,)], ids=["quick", "middleware"])
def push_mode(request, pusher):
    return pusher.open(*request.param)


PUSHES = {
    "async": lambda cls: cls.perform_async(),
    "bulk": lambda cls: cls.perform_bulk([()]),
    "bulk for": lambda cls: cls.perform_bulk_for([0], arguments=lambda _: cls.arguments()),
    "set": lambda cls: cls.set(retry=1).perform_async(),
}


def context_fields(job):
    return {name.removeprefix("meta."): value for name, value in job.items() if name.startswith("meta.")}


def pushed_by(payload, cls, push=PUSHES["async"]):
    """Push a job of ``cls`` as the running job ``payload`` would."""

    def run():
        context.enter_job(payload)
        push(cls)

    copy_context().run(run)


@pytest.mark.parametrize("push", PUSHES.values(), ids=PUSHES)
def test_context_outside_of_any_is_empty(push_mode, jobs, push):
    push(worker(queue="default", feature_category="search"))
    (job,) = jobs()
    assert context_fields(job) == {}


@pytest.mark.parametrize("push", PUSHES.values(), ids=PUSHES)
def test_context_of_a_child_names_caller_and_root(push_mode, jobs, push):
    parent = worker("Parent", queue="default", feature_category="billing")
    child = worker("Child", queue="default", feature_category="search")
    shared = worker("Shared", queue="default")
    with context.bound("c1", caller_id="POST /orders", user="ann"):
        push(parent)
    pushed_by(jobs()[0], child, push)
    pushed_by(jobs()[1], shared, push)
    pushed_by(jobs()[2], shared, push)
    chain = {"root_caller_id": "POST /orders", "user": "ann"}
    assert [context_fields(job) for job in jobs()] == [
        {**chain, "caller_id": "POST /orders", "feature_category": "billing"},
        {**chain, "caller_id": "Parent", "feature_category": "search"},
        {**chain, "caller_id": "Child", "feature_category": "search"},
        {**chain, "caller_id": "Shared", "feature_category": "search"},
    ]
    assert {job["correlation_id"] for job in jobs()} == {"c1"}


def test_context_of_a_job_without_caller_starts_the_chain(push_mode, jobs):
    parent = worker("Parent", queue="default", feature_category="billing")
    parent.perform_async()
    pushed_by(jobs()[0], worker("Shared", queue="default"))
    pushed_by(jobs()[1], worker("Other", queue="default"))
    alike = {"root_caller_id": "Parent", "feature_category": "billing"}
    assert [context_fields(job) for job in jobs()[1:]] == [
        {**alike, "caller_id": "Parent"},
        {**alike, "caller_id": "Shared"},
    ]


def test_context_of_unowned_classes_has_no_category(push_mode, jobs):
    worker("Parent", queue="default").perform_async()
    pushed_by(jobs()[0], worker("Shared", queue="default"))
    assert context_fields(jobs()[1]) == {"caller_id": "Parent", "root_caller_id": "Parent"}


def test_context_names_the_caller_by_its_present_name(push_mode, jobs):
    new = worker("NewName", aliases=("OldName",), feature_category="billing")
    pushed_by({"class": "OldName", "args": []}, worker("Shared", queue="default"))
    assert registry.find("OldName") is new
    assert context_fields(jobs()[0]) == {
        "caller_id": "NewName",
        "root_caller_id": "NewName",
        "feature_category": "billing",
    }


def test_context_of_an_unknown_caller_keeps_name_and_category(push_mode, jobs):
    caller = {"class": "Ruby::Job", "args": [], "meta.caller_id": "GET /", "meta.feature_category": "search"}
    pushed_by(caller, worker("Shared", queue="default"))
    assert context_fields(jobs()[0]) == {
        "caller_id": "Ruby::Job",
        "root_caller_id": "GET /",
        "feature_category": "search",
    }


def test_context_bound_in_a_job_reaches_its_pushes(push_mode, jobs):
    child = worker("Child", queue="default")

    def run():
        context.enter_job({"class": "Parent", "args": [], "correlation_id": "c1", "meta.root_caller_id": "GET /"})
        with context.bound(user="ann"):
            child.perform_async()
        with context.bound(caller_id="second half", feature_category="billing"):
            child.perform_async()
        child.perform_async()

    copy_context().run(run)
    assert [context_fields(job) for job in jobs()] == [
        {"caller_id": "Parent", "root_caller_id": "GET /", "user": "ann"},
        {"caller_id": "second half", "root_caller_id": "GET /", "feature_category": "billing"},
        {"caller_id": "Parent", "root_caller_id": "GET /"},
    ]


def test_context_root_set_by_the_application_is_kept(push_mode, jobs):
    with context.bound(caller_id="inner", root_caller_id="outer"):
        worker(queue="default").perform_async()
    assert context_fields(jobs()[0]) == {"caller_id": "inner", "root_caller_id": "outer"}


def test_context_of_one_job_overrides_the_ambient(push_mode, jobs):
    cls = worker(queue="default")
    with context.bound(caller_id="import", user="ann"):
        cls.perform_bulk_for("ab", arguments=lambda _: cls.arguments(), context=lambda one: {"user": one})
    alike = {"caller_id": "import", "root_caller_id": "import"}
    assert [context_fields(job) for job in jobs()] == [{**alike, "user": "a"}, {**alike, "user": "b"}]


def test_context_reaches_scheduled_jobs(push_mode, redis):
    cls = worker(queue="default", feature_category="search")
    with context.bound(caller_id="import"):
        cls.perform_in(60)
        cls.perform_bulk_in(60, [()])
    found = [context_fields(json.loads(member)) for member in redis.zrange("schedule", 0, -1)]
    assert found == [{"caller_id": "import", "root_caller_id": "import", "feature_category": "search"}] * 2


PARENT = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "tracestate": "a=1"}


@pytest.mark.parametrize("push", PUSHES.values(), ids=PUSHES)
def test_trace_of_a_request_reaches_its_jobs_and_theirs(push_mode, jobs, push):
    cls = worker("Child", queue="default")
    with context.bound_trace(PARENT):
        push(cls)
    pushed_by({**jobs()[0], "trace_propagation_headers": {"sentry-trace": "x"}}, cls, push)
    assert [{name: job[name] for name in TRACE_FIELDS if name in job} for job in jobs()] == [
        PARENT,
        {**PARENT, "trace_propagation_headers": {"sentry-trace": "x"}},
    ]


def test_worker_context_stands_between_caller_and_options(push_mode, jobs):
    cls = worker("Child", queue="default", worker_context={"user": "robot", "tenant": "system"})
    with context.bound(user="ann", project=7):
        cls.perform_async()
        cls.set(context={"tenant": "own"}).perform_bulk([()])
    assert [context_fields(job) for job in jobs()] == [
        {"user": "robot", "tenant": "system", "project": 7},
        {"user": "robot", "tenant": "own", "project": 7},
    ]


def test_worker_context_unknown_key_is_refused_at_push(push_mode):
    cls = worker("Child", queue="default", worker_context={"usr": "robot"})
    allow_keys(())
    try:
        with pytest.raises(ArgumentsError, match="worker_context is refused: the key 'usr' is not allowed"):
            cls.perform_async()
    finally:
        allow_keys(None)
