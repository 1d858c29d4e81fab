"""Cache signals, run each check once at a time, and time out, whatever an indicator does."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from framework.features.health.checks import HealthChecker
from framework.features.health.indicator import Normal, NotAvailable, Signal, Stop, Unknown
from tests.harness import until

LONG_S = 600.0


class Scripted:
    """An indicator with a scripted signal that records its calls."""

    def __init__(self, does=lambda question: Normal("fine")) -> None:
        self.does = does
        self.asked: list = []

    def evaluate(self, question):
        self.asked.append((question.database, question.tables))
        return self.does(question)


class Echo:
    """A database that returns the statement it received."""

    def __init__(self) -> None:
        self.closed_idle: list[float] = []

    def query(self, statement, parameters=None):
        return [(statement, parameters)]

    def close_idle(self, idle_s):
        self.closed_idle.append(idle_s)


class RecordedEvents:
    def __init__(self) -> None:
        self.unknowns: list = []
        self.unavailable: list = []

    def unknown(self, indicator, database, signal, error):
        self.unknowns.append((indicator, database, signal.reason, type(error)))

    def not_available(self, indicator, database, signal):
        self.unavailable.append((indicator, database, str(signal.reason)))


@pytest.fixture
def events() -> RecordedEvents:
    return RecordedEvents()


@pytest.fixture
def checks(events):
    def make(cache_s=LONG_S, timeout_s=LONG_S, idle_s=LONG_S, databases=None, **indicators):
        return HealthChecker(indicators, databases or {}, events, cache_s=cache_s, timeout_s=timeout_s, idle_s=idle_s)

    return make


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Return the event that a hanging indicator waits for; set at the end of the test."""
    event = threading.Event()
    yield event
    event.set()


def test_checks_signal_is_cached_per_indicator_and_tables(checks, monkeypatch):
    one, two = Scripted(), Scripted(lambda _: Stop("bad"))
    asked = checks(one=one, two=two)
    for _ in range(3):
        assert asked.signals(("one", "two"), "main", ("a",)) == [("one", Normal("fine")), ("two", Stop("bad"))]
        monkeypatch.setattr(time, "time", lambda: 4e9)  # the clock on the wall may jump
    assert (len(one.asked), len(two.asked)) == (1, 1)
    asked.signals(("one",), "main", ("a", "b"))
    asked.signals(("one",), "ci", ("a",))
    assert one.asked == [("main", ("a",)), ("main", ("a", "b")), ("ci", ("a",))]


def test_checks_expired_signal_is_checked_again(checks):
    one = Scripted()
    asked = checks(cache_s=0.0, one=one)
    one.does = lambda _: Stop("now")
    assert asked.signals(("one",), "main", ()) == [("one", Stop("now"))]
    one.does = lambda _: Normal("again")
    assert asked.signals(("one",), "main", ()) == [("one", Normal("again"))]


def test_checks_threads_share_one_check(checks, release):
    one = Scripted(lambda _: Stop(str(release.wait(120))))
    asked = checks(one=one)
    with ThreadPoolExecutor(20) as pool:
        answers = [pool.submit(asked.signals, ("one",), "main", ()) for _ in range(20)]
        until(lambda: one.asked)
        release.set()
        assert {answer.result(30)[0][1] for answer in answers} == {Stop("True")}
    assert len(one.asked) == 1


def test_checks_slow_indicator_times_out_and_counts_later(checks, events, release):
    def hangs(_):
        release.wait(120)
        return Stop("late")

    slow, quick = Scripted(hangs), Scripted()
    asked = checks(timeout_s=0.2, slow=slow, quick=quick)
    begun = time.monotonic()
    assert asked.signals(("slow",), "main", ()) == [("slow", Unknown("it did not respond within 0.2 s"))]
    assert time.monotonic() - begun < 20.0  # the check takes 120 s
    until(lambda: asked.signals(("quick",), "main", ()) == [("quick", Normal("fine"))])
    assert events.unknowns[0] == ("slow", "main", "it did not respond within 0.2 s", TimeoutError)
    assert asked.signals(("slow",), "main", ()) == [("slow", Unknown("it did not respond within 0.2 s"))]
    assert len(slow.asked) == 1
    assert all(thread.daemon for thread in threading.enumerate() if thread.name.startswith("health-"))
    release.set()
    until(lambda: asked.signals(("slow",), "main", ()) == [("slow", Stop("late"))])
    assert len(slow.asked) == 1


def test_checks_pending_check_is_awaited_once(checks, release):
    slow = Scripted(lambda _: Stop(str(release.wait(120))))
    asked = checks(cache_s=0.0, timeout_s=1.0, slow=slow)
    assert isinstance(asked.signals(("slow",), "main", ())[0][1], Unknown)
    begun = time.monotonic()
    for _ in range(20):
        assert isinstance(asked.signals(("slow",), "main", ())[0][1], Unknown)
    assert time.monotonic() - begun < 10.0  # each of them by itself would have waited for a second
    assert len(slow.asked) == 1


def test_checks_hanging_indicator_serves_other_databases(checks, release):
    slow = Scripted(lambda question: Stop(str(release.wait(120))) if question.database == "main" else Normal("fine"))
    asked = checks(timeout_s=0.2, slow=slow)
    assert isinstance(asked.signals(("slow",), "main", ())[0][1], Unknown)
    until(lambda: asked.signals(("slow",), "ci", ()) == [("slow", Normal("fine"))])


class Own(Exception):
    def __str__(self):
        raise ValueError


class Unspeakable:
    def __str__(self):
        raise ValueError


def raising(error):
    def does(_):
        raise error

    return does


@pytest.mark.parametrize(
    ("does", "reason", "error"),
    [
        (raising(ValueError("no")), "ValueError: no", ValueError),
        (raising(SystemExit(3)), "SystemExit: 3", SystemExit),
        (raising(Own()), "<its message cannot be read: __str__ raised ValueError>", Own),
        (lambda _: None, "it returned None, which is not a signal", type(None)),
        (lambda _: "Stop", "it returned 'Stop', which is not a signal", type(None)),
        (lambda _: Stop, "which is not a signal", type(None)),
        (lambda _: Unknown("who knows"), "who knows", type(None)),
        (lambda _: NotAvailable(Unspeakable()), "ValueError", ValueError),
        (lambda question: question.query("SELECT 1"), "the setting databases has no main", LookupError),
    ],
)
def test_checks_error_or_invalid_result_is_unknown(checks, events, does, reason, error):
    asked = checks(odd=Scripted(does), fine=Scripted())
    (_, signal), (_, other) = asked.signals(("odd", "fine"), "main", ())
    assert isinstance(signal, Unknown)
    assert reason in signal.reason
    assert other == Normal("fine")
    assert events.unknowns == [("odd", "main", signal.reason, error)]
    assert asked.signals(("odd",), "main", ("next",))[0][1] == signal  # its thread lives


def test_checks_query_goes_to_the_named_database(checks, events):
    def does(question) -> Signal:
        return NotAvailable(str(question.query("SELECT %(a)s", {"a": 1})))

    asked = checks(databases={"ci": Echo()}, one=Scripted(does))
    assert asked.signals(("one",), "ci", ()) == [("one", NotAvailable("[('SELECT %(a)s', {'a': 1})]"))]
    assert events.unavailable == [("one", "ci", "[('SELECT %(a)s', {'a': 1})]")]


def test_checks_idle_connection_is_closed_and_reopened(checks):
    ci = Echo()
    asked = checks(idle_s=0.05, databases={"ci": ci}, one=Scripted(), other=Scripted())
    asked.signals(("one",), "ci", ())
    until(lambda: ci.closed_idle == [0.05])
    asked.signals(("one",), "ci", ("again",))
    until(lambda: ci.closed_idle == [0.05, 0.05])


def test_checks_many_tables_use_bounded_memory(checks):
    asked = checks(one=Scripted())
    for number in range(2_500):
        asked.signals(("one",), "main", (str(number),))
    assert len(asked._signals) <= 1_000
    assert not asked._pending
