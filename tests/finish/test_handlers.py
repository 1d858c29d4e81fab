from framework.finish.handlers import Handlers
from framework.wire.job import Job


def test_every_handler_is_told_and_none_can_stop_the_next():
    reported, told = [], []
    handlers = Handlers(lambda what, error: reported.append((what, str(error))))

    def bad(*_):
        raise SystemExit("mine")

    handlers.error += [bad, lambda error, facts: told.append((error, facts))]
    handlers.death += [bad, lambda job, error: told.append((job.jid, error))]
    error = ValueError("x")
    handlers.failed(error, {"queue": "q"})
    handlers.died(Job({"jid": "j"}), error)
    assert told == [(error, {"queue": "q"}), ("j", error)]
    assert reported == [("error handler", "mine"), ("death handler", "mine")]


def test_guard_returns_what_the_call_returns():
    handlers = Handlers(lambda *_: None)
    assert handlers.guard("x", lambda: 5) == 5
    assert handlers.guard("x", lambda: 1 / 0) is None
