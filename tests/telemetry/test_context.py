from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

from framework.telemetry import context


def test_facts_are_flat_and_nest():
    with context.bound("c1", user="ann"):
        with context.bound(project=7):
            assert context.current() == {"correlation_id": "c1", "meta.user": "ann", "meta.project": 7}
        assert context.current() == {"correlation_id": "c1", "meta.user": "ann"}
    assert context.current() == {}


def test_a_jobs_context_replaces_the_callers_within_its_own_copy():
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
