import contextlib
import functools
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import pytest

import framework.context
from framework.declare.options import check_context
from framework.declare.validators import InvalidValue
from framework.telemetry import context
from framework.wire.context_fields import allow_keys, trace_ids
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


@pytest.fixture
def allowed_keys():
    allow_keys(("order_id",))
    yield
    allow_keys(None)


@pytest.mark.usefixtures("allowed_keys")
def test_context_unknown_key_is_refused_with_advice():
    with context.bound("c1", order_id=7, tenant="a", client_id="user/1", caller_id="x"):
        pass
    said = r"the key 'ordr_id' is not allowed in a context \(did you mean 'order_id'\?\).*Add it to context.keys in config/appl"
    with pytest.raises(ValueError, match=said), context.bound(ordr_id=7):
        pass
    with pytest.raises(InvalidValue, match="'ordr_id' is not allowed"):
        check_context({"meta.ordr_id": 7})


def test_context_fact_of_a_function_is_called_once_at_need():
    calls = []
    with context.bound(user=lambda: calls.append("user") or "ann", project=lambda: calls.append("project") or 7):
        assert calls == []
        with context.bound(project=8):
            assert context.current() == {"meta.user": "ann", "meta.project": 8}
        assert context.current() == {"meta.user": "ann", "meta.project": 7}
    assert calls == ["user", "project"]


def test_context_fact_of_a_function_that_fails_is_its_error():
    with context.bound(user=lambda: 1 / 0, project=object):
        assert context.current() == {"meta.user": "[ZeroDivisionError]", "meta.project": "[ValueError]"}


def test_context_root_has_nothing_of_the_code_around_it():
    with context.bound("c1", user="ann"), context.bound_trace({"traceparent": PARENT}), context.root("Cronjob"):
        assert (context.current(), context.current_trace()) == ({"meta.caller_id": "Cronjob"}, {})


def test_log_lines_have_the_ids_of_the_trace():
    with context.bound("c1"), context.bound_trace({"traceparent": PARENT}):
        assert context.line_fields() == {"correlation_id": "c1", "trace_id": "a" * 32, "span_id": "b" * 16}
    with context.bound_trace({"traceparent": "nonsense"}):
        assert context.line_fields() == {}


PARENT = f"00-{'a' * 32}-{'b' * 16}-01"


@each_row(
    ("traceparent", "valid"),
    [
        (PARENT, True),
        (f"01-{'a' * 32}-{'b' * 16}-01-more", True),
        (f"{PARENT}-more", False),
        (f"ff{PARENT[2:]}", False),
        (PARENT.upper(), False),
        (f"00-{'0' * 32}-{'b' * 16}-01", False),
        (f"00-{'a' * 32}-{'0' * 16}-01", False),
        ("", False),
        (None, False),
        (7, False),
    ],
)
def test_traceparent_is_valid_by_w3c(traceparent, valid):
    assert (trace_ids(traceparent) is not None) is valid
