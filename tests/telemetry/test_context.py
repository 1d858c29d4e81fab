import contextlib
import functools
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import pytest

import framework.context
from framework.telemetry import context
from framework.wire.json import dumps
from tests.tables import each_row


def test_context_facts_are_flat_and_nest():
    with context.bound("c1", user="ann"):
        with context.bound(project=7):
            assert context.current() == {"correlation_id": "c1", "meta.user": "ann", "meta.project": 7}
        assert context.current() == {"correlation_id": "c1", "meta.user": "ann"}
    assert context.current() == {}


def test_context_of_a_job_replaces_that_of_its_caller():
    def run():
        context.enter_job({"class": "X", "args": [1], "correlation_id": "inner", "meta.user": "bob"})
        with context.bound(project=7):
            assert context.current() == {"correlation_id": "inner", "meta.user": "bob", "meta.project": 7}
        return context.current()

    with context.bound("outer", user="ann"):
        assert copy_context().run(run) == {"correlation_id": "inner", "meta.user": "bob"}
        assert context.current() == {"correlation_id": "outer", "meta.user": "ann"}


def test_threads_do_not_see_each_others_context():
    with context.bound("mine"), ThreadPoolExecutor(1) as pool:
        assert pool.submit(context.current).result() == {}


def test_context_bound_in_a_job_ends_with_the_block():
    def run():
        context.enter_job({"class": "X", "args": [1], "meta.user": "bob"})
        with context.bound("c2", user="ann"):
            with context.bound(project=7):
                inner = context.current()
            middle = context.current()
        return inner, middle, context.current()

    assert copy_context().run(run) == (
        {"correlation_id": "c2", "meta.user": "ann", "meta.project": 7},
        {"correlation_id": "c2", "meta.user": "ann"},
        {"meta.user": "bob"},
    )


@each_row("fact", [object(), float("nan"), "\ud800", {1: object()}, {"a": [float("inf")]}])
def test_context_value_without_json_form_is_refused(fact):
    with pytest.raises(ValueError, match="'user' is stored in jobs"), context.bound(user=fact):
        pass
    assert context.current() == {}


@pytest.mark.parametrize(("name", "levels", "fits"), [("user", 63, True), ("user", 64, False), ("\ud800", 0, False)])
def test_context_accepts_only_values_a_payload_can_hold(name, levels, fits):
    fact = functools.reduce(lambda inner, _: [inner], range(levels), 7)
    outcome = contextlib.nullcontext() if fits else pytest.raises(ValueError, match="is stored in jobs")
    with outcome, context.bound("c1", **{name: fact}):
        dumps(context.current())
    with pytest.raises(ValueError, match="'correlation_id' is stored in jobs"), context.bound("half \ud800"):
        pass


@each_row("correlation_id", ["", 7, b"c1", [10**5_000]])
def test_context_correlation_id_must_be_a_text(correlation_id):
    with pytest.raises(ValueError, match="correlation_id must be a text"), context.bound(correlation_id):
        pass


def test_context_is_public_as_framework_context():
    with framework.context.bound("c1", caller_id="POST /orders"):
        assert framework.context.current() == {"correlation_id": "c1", "meta.caller_id": "POST /orders"}
