"""Choose a database server at the start of a run, against a real primary and replica that may replay between two checks."""

import threading
from contextvars import copy_context

import pytest

from framework.declare import registry
from framework.errors import JobReplicaNotUpToDate
from framework.execute.admission import AdmissionRequest
from framework.features.consistency import replica_context
from framework.features.consistency.admission import ConsistencyPolicy
from framework.features.consistency.databases import Databases, DatabaseServer
from framework.fetch.unit_of_work import UnitOfWork
from framework.finish.outcome import Failed
from framework.settings.model import DatabaseSettings
from framework.telemetry.counters import counters
from tests.harness import payload
from tests.postgres import standby_of
from tests.push.conftest import worker
from tests.tables import each_row

FAR = "FFFFFFFF/FFFFFFFF"


class RecordedPolicy:
    """A policy that lists its waits in ``slept`` and calls ``meanwhile`` after each."""

    def __init__(self, databases, monkeypatch):
        self.slept = []
        self.meanwhile = lambda: None
        self.policy = ConsistencyPolicy(databases)
        self._thread = threading.get_ident()
        monkeypatch.setattr("framework.features.consistency.admission.time.sleep", self._sleep)

    def _sleep(self, seconds):
        # Threads of other tests sleep too: all share one function.
        if threading.get_ident() != self._thread:
            threading.Event().wait(seconds)
            return
        self.slept.append(seconds)
        self.meanwhile()

    def ask(self, declares, **fields):
        """Admit a job of a class with these attributes; return its strategy and the name of its replica of ``main``, or None."""
        with registry.isolated():
            declaration = worker("Job", **declares).declaration()
        assert self.policy.applies_to(declaration)
        job = payload("Job", **fields)
        outcome = self.policy.admit(AdmissionRequest(UnitOfWork("default", b""), job, declaration, None))
        if job["load_balancing_strategy"] == "retry":
            assert isinstance(outcome, Failed)
            assert isinstance(outcome.error, JobReplicaNotUpToDate)
            return "retry", None
        assert outcome is None
        server = replica_context.replica_of("main")
        return job["load_balancing_strategy"], server and server.name

    def __call__(self, declares, **fields):
        return copy_context().run(self.ask, declares, **fields)


@pytest.fixture
def choose(databases, monkeypatch):
    return RecordedPolicy(databases, monkeypatch)


@pytest.fixture
def now(postgres, shop):
    """Write a row and return the WAL position after it."""

    def position():
        postgres.execute("INSERT INTO orders (id) SELECT coalesce(max(id), 0) + 1 FROM orders", shop)
        return postgres.execute("SELECT pg_current_wal_insert_lsn()::text", shop)

    return position


STICKY, DELAYED = {"data_consistency": "sticky"}, {"data_consistency": "delayed"}
REPLICA = ("replica", "main replica 1")


def at(position):
    return {"wal_locations": {"main": position}}


def test_choice_replica_with_position_is_read_at_once(choose, now, postgres, standby):
    position = now()
    standby.catch_up(postgres)
    assert choose(STICKY, **at(position)) == REPLICA
    assert choose(DELAYED, **at(position)) == REPLICA
    assert choose(DELAYED, **at(position), retry_count=0) == ("replica_retried", "main replica 1")
    assert choose(STICKY, **at(position), retry_count=0) == REPLICA
    assert choose.slept == []


@pytest.mark.parametrize(
    ("declares", "slept", "ends"),
    [
        (STICKY, [0.5] * 3, "primary"),
        (DELAYED, [0.5] * 3, "retry"),
        ({**STICKY, "urgency": "high"}, [0.1] * 5, "primary"),
        ({**DELAYED, "urgency": "throttled"}, [0.5] * 3, "retry"),
    ],
)
def test_choice_waits_for_a_late_replica_then_uses_primary(choose, now, standby, declares, slept, ends):
    standby.pause_replay()
    position = now()
    assert choose(declares, **at(position)) == (ends, None)
    assert choose.slept == slept
    assert choose(declares, **at(position)) == (ends, None)
    assert choose.slept == slept  # the replica has not advanced, so no job waits for it again


def test_choice_advancing_replica_is_awaited_again(choose, now, standby, postgres):
    standby.pause_replay()
    first = now()
    assert choose(STICKY, **at(first)) == ("primary", None)

    def replay():
        standby.resume_replay()
        standby.catch_up(postgres)

    standby.resume_replay()
    standby.catch_up(postgres)
    assert choose(STICKY, **at(first)) == REPLICA
    standby.pause_replay()
    second = now()
    choose.slept.clear()
    choose.meanwhile = replay
    assert choose(DELAYED, **at(second)) == REPLICA
    assert choose.slept == [0.5]


def test_choice_delayed_job_is_retried_once_if_it_may_retry(choose, now, standby):
    standby.pause_replay()
    position = now()
    assert choose(DELAYED, **at(position)) == ("retry", None)
    assert choose(DELAYED, **at(position), retry=1) == ("retry", None)
    assert choose(DELAYED, **at(position), retry_count=0) == ("primary", None)
    for retry in (False, 0, None, "yes", -1):
        assert choose(DELAYED, **at(position), retry=retry) == ("primary", None)


def test_choice_duplicate_positions_are_required_too(choose, now, postgres, standby):
    old = now()
    standby.catch_up(postgres)
    standby.pause_replay()
    new = now()
    assert choose(STICKY, **at(old)) == REPLICA
    assert choose(STICKY, **at(old), dedup_wal_locations={"main": new}) == ("primary", None)
    assert choose(STICKY, **at(new), dedup_wal_locations={"main": old}) == ("primary", None)
    assert choose(STICKY, dedup_wal_locations={"main": old}) == REPLICA


def test_choice_second_admission_replaces_the_first(choose, now, postgres, standby):
    old = now()
    standby.catch_up(postgres)
    standby.pause_replay()
    new = now()

    def twice():
        assert choose.ask(STICKY, **at(old)) == REPLICA
        assert choose.ask(STICKY, **at(old), dedup_wal_locations={"main": new}) == ("primary", None)

    copy_context().run(twice)


@each_row("invalid", ["", "0", "0/", "/0", "0/0/0", "G/0", "123456789/0", "0/-1", 7, None, True, [], {"a": 1}, "０/0"])
def test_choice_malformed_position_uses_primary(choose, invalid):
    assert choose(DELAYED, **at(invalid)) == ("primary", None)
    assert choose.slept == []


def test_choice_without_position_uses_primary(choose):
    for fields in ({}, {"wal_locations": {}}, {"wal_locations": None}, at("0/0") | {"wal_locations": {"other": "0/0"}}):
        assert choose(DELAYED, **fields) == ("primary_no_wal", None)
    for invalid in ("0/0", 7, ["main"]):
        assert choose(DELAYED, wal_locations=invalid) == ("primary", None)


def test_choice_unreachable_position_uses_primary(choose):
    assert choose(STICKY, **at(FAR)) == ("primary", None)


def test_choice_override_decides_for_single_database(settings, now, postgres, standby, monkeypatch):
    databases = Databases({**settings, "ci": settings["main"]})
    choose = RecordedPolicy(databases, monkeypatch)
    old = now()
    standby.catch_up(postgres)
    standby.pause_replay()
    new = now()
    both = {"data_consistency": "delayed", "data_consistency_overrides": {"ci": "sticky"}}
    assert choose(both, wal_locations={"main": old, "ci": old}) == REPLICA
    assert choose(both, wal_locations={"main": new, "ci": old}) == ("retry", None)
    assert choose(both, wal_locations={"main": old, "ci": new}) == ("primary", None)  # ci is not "delayed"
    gone = settings["main"].model_copy(update={"replicas": (f"{settings['main'].replicas[0]}&port=1",)})
    one_gone = Databases({"main": settings["main"], "ci": gone})
    other = RecordedPolicy(one_gone, monkeypatch)
    # Neither a wait nor a retry helps ci.
    assert other(both, wal_locations={"main": new, "ci": old}) == (
        "primary",
        None,
    )
    assert other.slept == []
    one_gone.dispose()
    only_ci = {"data_consistency": "always", "data_consistency_overrides": {"ci": "delayed"}}
    assert choose(only_ci, wal_locations={"main": old, "ci": old}) == ("replica", None)
    assert choose(only_ci, wal_locations={"main": new, "ci": old}) == ("replica", None)
    with registry.isolated():
        never = worker(data_consistency="delayed", data_consistency_overrides={"ci": "always", "main": "always"})
    assert not choose.policy.applies_to(never.declaration())
    databases.dispose()


def test_choice_several_replicas_one_with_position_is_used(settings, now, postgres, standby, shop, monkeypatch):
    with standby_of(postgres) as second:
        gone = f"{standby.url(shop)}&port=1"
        main = settings["main"].model_copy(update={"replicas": (gone, standby.url(shop), second.url(shop))})
        databases = Databases({"main": main})
        standby.pause_replay()
        position = now()
        second.catch_up(postgres)
        choose = RecordedPolicy(databases, monkeypatch)
        assert {choose(STICKY, **at(position)) for _ in range(20)} == {("replica", "main replica 3")}
        assert choose.slept == []

        # A promoted server is no longer a replica.
        assert second.execute("SELECT pg_promote()")
        for replica in databases["main"].replicas:
            replica.dispose()
        promoted = Databases({"main": main.model_copy(update={"replicas": (second.url(shop),)})})
        choose = RecordedPolicy(promoted, monkeypatch)
        assert choose(DELAYED, **at(position)) == ("primary", None)
        assert choose.slept == []
        databases.dispose()
        promoted.dispose()


def test_choice_every_decision_is_counted(choose, now, postgres, standby):
    position = now()
    standby.catch_up(postgres)
    choose(DELAYED, **at(position))
    choose(DELAYED)
    labels = 'data_consistency="delayed",load_balancing_strategy="{}",worker="Job"'
    for strategy in ("replica", "primary_no_wal"):
        assert f"sidekiq_load_balancing_count{{{labels.format(strategy)}}}" in counters._counts


def test_databases_unknown_name_is_reported_with_the_nearest(settings):
    databases = Databases(settings)
    with registry.isolated():
        wrong = worker("Wrong", data_consistency_overrides={"mian": "sticky"}).declaration()
        right = worker("Right", data_consistency_overrides={"main": "sticky"}).declaration()
    (problem,) = databases.problems([wrong, right])
    assert (problem.file, problem.key) == ("config/application.yml", "databases")
    assert "Wrong: data_consistency_overrides names 'mian'" in problem.message
    assert problem.message.endswith("use one of them, or add it there with its url")
    assert "did you mean 'main'?" in problem.message
    assert Databases({}).problems([wrong, right]) == []


def test_server_log_line_shows_name_and_no_url():
    server = DatabaseServer("main", "postgresql+psycopg://u:hunter2@127.0.0.1:1/shop", is_replica=False)
    assert server.position() is None
    settings = DatabaseSettings(url="postgres://u:hunter2@h/d")
    assert "hunter2" not in repr((server, settings, Databases({"main": settings})["main"]))
