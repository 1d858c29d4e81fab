"""Defer jobs whose class names an indicator that says Stop."""

from datetime import timedelta
from time import monotonic

import pytest

from framework.application_worker import ApplicationWorker
from framework.declare import registry
from framework.execute.admission import AdmissionRequest
from framework.features.health.admission import HealthPolicy, deferral_delay_s
from framework.features.health.attributes import DeferOnHealth
from framework.features.health.checks import HealthChecker, HealthEvents
from framework.features.health.indicator import Normal, NotAvailable, Stop, Unknown
from framework.fetch.unit_of_work import UnitOfWork
from framework.finish.outcome import Deferred
from framework.telemetry.counters import counters
from tests.harness import RecordingTracker, payload, server_lines


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    monkeypatch.setattr(counters, "_counts", {})
    with registry.isolated():
        yield


class Fixed:
    """An indicator that records the questions."""

    def __init__(self, signal):
        self.signal = signal
        self.asked = []

    def evaluate(self, question):
        self.asked.append((question.database, question.tables))
        if isinstance(self.signal, Exception):
            raise self.signal
        return self.signal


class ProcessPolicy:
    """The health policy of one process, with its indicators and its error tracker."""

    def __init__(self, databases=("main", "ci"), **signals):
        self.tracker = RecordingTracker()
        self.indicators = {name: Fixed(signal) for name, signal in signals.items()}
        self.events = HealthEvents(self.tracker)
        checks = HealthChecker(self.indicators, {}, self.events, cache_s=600.0, timeout_s=30.0)
        self.policy = HealthPolicy(checks, tuple(signals), databases, self.events)

    def admit(self, policy, *args, **fields):
        self.declaration = declared(policy)
        job = payload("Job", args=list(args), **fields)
        return self.policy.admit(AdmissionRequest(UnitOfWork("default", b""), job, self.declaration, None))


def declared(policy):
    body = {
        "feature_category": "not_owned",
        "wire_name": "Job",
        "perform": lambda self, *args: None,
        "defer_on_health": policy,
    }
    with registry.isolated():
        return type("Job", (ApplicationWorker,), body).declaration()


def test_health_policy_only_stop_defers():
    facts = {"health_status_indicator": "b", "indicator_signal": "Stop", "signal_reason": "it is bad", "database": "ci"}
    health = ProcessPolicy(a=Normal("fine"), b=Stop("it is bad"))
    outcome = health.admit(DeferOnHealth("ci", tables=("t",), delay=timedelta(seconds=100)))
    assert isinstance(outcome, Deferred)
    assert (outcome.reason, outcome.fields) == ("database_health_check", facts)
    assert 90 <= outcome.delay_s <= 100
    assert health.indicators["b"].asked == [("ci", ("t",))]
    assert counters._counts == {
        'sidekiq_jobs_skipped_total{action="deferred",reason="database_health_check",worker="Job"}': 1
    }
    for signal in (Normal("x"), Unknown("x"), NotAvailable("x"), ValueError("x")):
        assert ProcessPolicy(a=signal).admit(DeferOnHealth()) is None


def test_health_policy_remembers_a_class_that_may_run():
    health = ProcessPolicy(a=Normal("fine"), b=NotAvailable("off"))
    health.admit(DeferOnHealth())
    assert not health.policy.admits_all(health.declaration), "the signals of this job were not cached before it"
    first = health.declaration
    health.policy.admit(AdmissionRequest(None, payload("Job", args=[]), first, None))
    assert health.policy.admits_all(first)
    assert not health.policy.admits_all(declared(DeferOnHealth())), "a reloaded class is asked about again"


def test_health_policy_forgets_a_class_with_the_signal(monkeypatch):
    health = ProcessPolicy(a=Normal("fine"))
    health.admit(DeferOnHealth())
    health.policy.admit(AdmissionRequest(None, payload("Job", args=[]), health.declaration, None))
    now = monotonic()
    monkeypatch.setattr("framework.features.health.admission.monotonic", lambda: now + 599.0)
    assert health.policy.admits_all(health.declaration)
    monkeypatch.setattr("framework.features.health.admission.monotonic", lambda: now + 600.1)
    assert not health.policy.admits_all(health.declaration)


@pytest.mark.parametrize(
    ("signal", "policy"),
    [
        (Stop("it is bad"), DeferOnHealth()),
        (Unknown("it is late"), DeferOnHealth()),
        (Normal("fine"), DeferOnHealth(resolver=lambda args: ("main", ()))),
    ],
)
def test_health_policy_asks_again_about_each_job(signal, policy):
    health = ProcessPolicy(a=signal)
    health.admit(policy)
    health.policy.admit(AdmissionRequest(None, payload("Job", args=[]), health.declaration, None))
    assert not health.policy.admits_all(health.declaration)


def test_health_policy_class_uses_its_named_indicators():
    health = ProcessPolicy(a=Stop("it is bad"), b=Normal("fine"))
    assert health.admit(DeferOnHealth(indicators=("b",))) is None
    assert health.indicators["a"].asked == []
    assert isinstance(health.admit(DeferOnHealth(indicators=("b", "a"))), Deferred)


def test_health_policy_without_indicators_does_not_apply():
    assert not ProcessPolicy().policy.applies_to(declared(DeferOnHealth()))
    health = ProcessPolicy(a=Normal("fine"))
    assert not health.policy.applies_to(declared(None))
    assert not health.policy.applies_to(declared(DeferOnHealth(indicators=())))
    assert not health.policy.applies_to(declared(DeferOnHealth(indicators=("autovacuum",))))
    assert health.policy.applies_to(declared(DeferOnHealth()))
    assert health.policy.applies_to(declared(DeferOnHealth(indicators=("autovacuum", "a"))))


def test_health_policy_delay_doubles_up_to_maximum():
    policy = DeferOnHealth(delay=timedelta(seconds=5), max_delay=timedelta(minutes=30))
    for deferrals, most in [(0, 5), (1, 5), (2, 10), (3, 20), (9, 1280), (10, 1800), (17, 1800), (10**9, 1800)]:
        found = [deferral_delay_s(policy, deferrals) for _ in range(200)]
        assert most * 0.9 <= min(found) <= max(found) <= most
        assert max(found) - min(found) > most * 0.05, "jobs deferred together must not come back together"
    far = DeferOnHealth(delay=timedelta(seconds=1), max_delay=timedelta(days=36_500))
    assert deferral_delay_s(far, 10**9) <= 2**16, "the exponent has an end"


@pytest.mark.parametrize(
    ("fields", "most"),
    [
        ({"deferred_by": "database_health_check", "deferred_count": 4}, 80),
        (
            {"deferred_by": "feature_flag", "deferred_count": 400},
            10,
        ),  # deferrals by another policy do not lengthen the delay
        ({"deferred_by": "database_health_check", "deferred_count": "many"}, 10),
        ({"deferred_by": "database_health_check", "deferred_count": -7}, 10),
        ({"deferred_by": ["x"], "deferred_count": True}, 10),
    ],
)
def test_health_policy_payload_counts_deferrals(fields, most):
    outcome = ProcessPolicy(a=Stop("bad")).admit(DeferOnHealth(delay=timedelta(seconds=10)), **fields)
    assert most * 0.9 <= outcome.delay_s <= most


def test_health_policy_after_max_deferrals_job_runs():
    health = ProcessPolicy(a=Stop("it is bad"))
    policy = DeferOnHealth(max_deferrals=2)
    counts = {"deferred_by": "database_health_check"}
    with server_lines("info") as lines:
        assert isinstance(health.admit(policy, **counts, deferred_count=1), Deferred)
        for _ in range(3):
            assert health.admit(policy, **counts, deferred_count=2) is None
        stop, runs = [line for line in lines() if line["event_name"].startswith("health.")]
    assert (stop["event_name"], runs["event_name"]) == ("health.stop", "health.max_deferrals_reached")
    assert runs["message"] == "jobs of Job run because they have reached max_deferrals: it is bad"
    assert sum(counters._counts.values()) == 1


def test_health_events_many_jobs_give_one_line_per_class():
    health = ProcessPolicy(a=Stop("it is bad"), b=Stop("not asked any more"))
    with server_lines("info") as lines:
        for number in range(50):
            health.admit(DeferOnHealth(), jid=f"j{number}")
        (line,) = [line for line in lines() if line["event_name"] == "health.stop"]
    wanted = {
        "severity": "WARN",
        "message": "jobs of Job are deferred: it is bad",
        "health_status_indicator": "a",
        "indicator_signal": "Stop",
        "signal_reason": "it is bad",
        "status_checker_id": "j0",
        "status_checker_type": "worker",
        "job_class_name": "Job",
        "database": "main",
        "count": 1,
    }
    assert wanted.items() <= line.items()


def test_health_events_unknown_is_logged_once_and_reported():
    health = ProcessPolicy(a=ValueError("no connection"), b=NotAvailable("nothing there"))
    with server_lines("info") as lines:
        for table in "xyz":
            assert health.admit(DeferOnHealth(tables=(table,))) is None
            health.events.unknown_table("main", "x")
        unknown, table, absent = sorted(lines(), key=lambda line: line["severity"], reverse=True)
    if unknown["event_name"] != "health.unknown":
        unknown, table = table, unknown
    assert (unknown["event_name"], unknown["indicator_signal"]) == ("health.unknown", "Unknown")
    assert (unknown["signal_reason"], unknown["exception.class"]) == ("ValueError: no connection", "ValueError")
    assert (table["event_name"], table["table"]) == ("health.unknown_table", "x")
    assert (absent["event_name"], absent["signal_reason"]) == ("health.not_available", "nothing there")
    ((error, tags, _),) = health.tracker.captured
    assert str(error) == "no connection"
    assert tags == {"health_status_indicator": "a", "database": "main"}


def test_health_policy_resolver_names_database_and_tables():
    health = ProcessPolicy(a=Stop("bad"))
    policy = DeferOnHealth(tables=("t",), resolver=lambda args: ("ci", [f"part_{args[0]}"]))
    assert isinstance(health.admit(policy, 7), Deferred)
    assert health.indicators["a"].asked == [("ci", ("part_7",))]


def tampering(args):
    args[0] = "changed"


@pytest.mark.parametrize(
    ("resolver", "reason"),
    [
        (lambda args: args[5], "the resolver of Job raised"),
        (tampering, "the resolver of Job raised"),
        (lambda args: None, "returned None, which is not (database, tables)"),
        (lambda args: "ci", "returned 'ci', which is not (database, tables)"),
        (lambda args: ("ci",), "which is not (database, tables)"),
        (lambda args: ("ci", "events"), "which is not (database, tables)"),
        (lambda args: (None, ()), "which is not (database, tables)"),
        (lambda args: ("ci", (1,)), "returned (1,), which are not names of tables"),
        (lambda args: ("ci", [""]), "which are not names of tables"),
        (lambda args: ("cl", ()), "returned the database 'cl', which the setting databases does not have"),
    ],
)
def test_health_policy_failing_resolver_uses_declaration(resolver, reason):
    health = ProcessPolicy(a=Stop("bad"))
    with server_lines("info") as lines:
        for _ in range(3):
            assert isinstance(health.admit(DeferOnHealth(tables=("t",), resolver=resolver), "x"), Deferred)
        (line,) = [line for line in lines() if line["event_name"] == "health.resolver_failed"]
    assert health.indicators["a"].asked == [("main", ("t",))]
    assert reason in line["message"]
    assert line["job_class_name"] == "Job"


def test_health_policy_own_error_stops_no_job():
    health = ProcessPolicy(a=Stop("bad"))
    health.policy._checks = None
    with server_lines("info") as lines:
        assert health.admit(DeferOnHealth()) is None
        (line,) = lines()
    assert (line["event_name"], line["exception.class"]) == ("health.failed", "AttributeError")
