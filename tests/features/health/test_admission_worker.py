"""Build the health policy from settings and worker classes; refuse indicators and databases that are not configured."""

import json
import sys

import pytest

from framework.all_settings import load
from framework.application_worker import ApplicationWorker
from framework.declare import registry
from framework.errors import ConfigurationError
from framework.features.health import indicator
from framework.features.health.admission import open_health_policy
from framework.features.health.attributes import DeferOnHealth
from framework.health import Normal, register
from framework.telemetry.sentry import NoTracker
from framework.version import install_extra

DATABASES = {"main": {"url": "postgresql://user@127.0.0.1:1/shop"}}
TRAFFIC = {"prometheus": {"url": "http://127.0.0.1:1"}, "indicators": {"traffic": {"query": "up", "below": 1}}}
POSTGRES = ("autovacuum", "wal_archiving", "replication_lag", "connections")


class Own:
    def evaluate(self, question):
        return Normal("fine")


@pytest.fixture(autouse=True)
def alone():
    before = dict(indicator.registered)
    indicator.registered.clear()
    with registry.isolated():
        yield
    indicator.registered.clear()
    indicator.registered.update(before)


@pytest.fixture
def build(tmp_path):
    def make(policy=None, **application):
        (tmp_path / "config").mkdir(exist_ok=True)
        (tmp_path / "config" / "application.yml").write_text(json.dumps(application))
        body = {"feature_category": "not_owned", "perform": lambda self: None, "defer_on_health": policy}
        worker = type("HeedingWorker", (ApplicationWorker,), body)
        settings = load({}, tmp_path)
        return open_health_policy(settings, settings.databases, NoTracker()), worker.declaration()

    return make


def available(found):
    return found[0]._available


def test_health_policy_has_indicators_of_all_sources(build):
    policy = DeferOnHealth()
    assert available(build(policy)) == ()
    assert available(build(policy, databases=DATABASES)) == POSTGRES
    assert available(build(policy, health=TRAFFIC)) == ("traffic",)
    register("own", Own())
    found, declaration = build(policy, databases=DATABASES, health=TRAFFIC)
    assert found._available == (*POSTGRES, "traffic", "own")
    assert found.applies_to(declaration)


def problems(build, policy, **application):
    with pytest.raises(ConfigurationError) as caught:
        build(policy, **application)
    return [(problem.key, problem.message) for problem in caught.value.problems]


def test_health_policy_unknown_names_are_refused_together(build):
    found = problems(build, DeferOnHealth("mian", indicators=("autovacuum", "traffik")), databases=DATABASES)
    assert [key for key, _ in found] == ["defer_on_health.indicators", "defer_on_health.database"]


def test_health_policy_without_extra_refuses_databases_only(build, monkeypatch):
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    assert build(None, databases=DATABASES)
    assert build(DeferOnHealth(), health=TRAFFIC)
    ((key, message),) = problems(build, DeferOnHealth(), databases=DATABASES)
    assert key == "databases"
    assert install_extra("sql") in message
