from types import SimpleNamespace

import pytest

from framework import handlers as public
from framework.finish.report import Handlers
from framework.wire.job import Job


def handlers_with(report):
    return Handlers(SimpleNamespace(hook_failed=report))


def test_handler_that_raises_stops_no_other():
    reported, calls = [], []
    handlers = handlers_with(lambda what, error: reported.append((what, str(error))))

    def bad(*_):
        raise SystemExit("mine")

    handlers.error += [bad, lambda error, facts: calls.append((error, facts))]
    handlers.death += [bad, lambda job, error: calls.append((job.jid, error))]
    error = ValueError("x")
    handlers.call_error_handlers(error, {"queue": "q"})
    handlers.call_death_handlers(Job({"jid": "j"}), error)
    assert calls == [(error, {"queue": "q", "job": {}}), ("j", error)]
    assert reported == [("error handler", "mine"), ("death handler", "mine")]


def test_guard_returns_the_result_of_the_call():
    handlers = handlers_with(lambda *_: None)
    assert handlers.guard("x", lambda: 5) == 5
    assert handlers.guard("x", lambda: 1 / 0) is None


@pytest.fixture
def registered():
    previous_handlers = list(public.error_handlers), list(public.death_handlers)
    yield
    public.error_handlers[:], public.death_handlers[:] = previous_handlers


def test_handlers_may_be_registered_as_decorators(registered):
    calls = []
    handlers = handlers_with(lambda *_: None)

    @public.on_error
    def first(error, facts):
        calls.append(("error", facts["queue"]))

    @public.on_death
    def second(job, error):
        calls.append(("death", job.jid))

    public.on_error(first)  # a module that is loaded twice
    handlers.call_error_handlers(ValueError("x"), {"queue": "q"})
    handlers.call_death_handlers(Job({"jid": "j"}), ValueError("x"))
    assert calls == [("error", "q"), ("death", "j")]


def test_handler_cannot_change_the_job_of_the_next(registered):
    calls = []
    handlers = handlers_with(lambda *_: None)

    @public.on_error
    def change_job(error, facts):
        facts["job"].clear()

    @public.on_death
    def change_dead_job(job, error):
        job.clear()

    public.on_error(lambda error, facts: calls.append(facts["job"]))
    public.on_death(lambda job, error: calls.append(job))
    job = {"jid": "j"}
    handlers.call_error_handlers(ValueError("x"), {"job": job, "queue": "q"})
    handlers.call_death_handlers(Job(job), ValueError("x"))
    assert calls == [{"jid": "j"}, {"jid": "j"}]


@pytest.mark.proves("F30")
def test_recursion_in_a_handler_is_only_reported():
    reported = []
    handlers = handlers_with(lambda what, error: reported.append(type(error)))

    def down(job, error):
        down(job, error)

    handlers.death.append(down)
    handlers.call_death_handlers(Job({}), ValueError("x"))
    assert reported == [RecursionError]
