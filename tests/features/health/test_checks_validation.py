"""Refuse indicators and databases that are not configured, and indicators that cannot be registered."""

import json

import pytest

from framework.all_settings import load
from framework.application_worker import ApplicationWorker
from framework.declare import registry
from framework.features.health import indicator
from framework.features.health.attributes import DeferOnHealth
from framework.features.health.checks import health_problems
from framework.health import Normal, register

DATABASES = {"main": {"url": "postgresql://user@127.0.0.1:1/shop"}}
TRAFFIC = {"prometheus": {"url": "http://127.0.0.1:1"}, "indicators": {"traffic": {"query": "up", "below": 1}}}


class Own:
    def evaluate(self, question):
        return Normal("fine")


@pytest.fixture(autouse=True)
def no_registered_indicator():
    before = dict(indicator.registered)
    indicator.registered.clear()
    with registry.isolated():
        yield
    indicator.registered.clear()
    indicator.registered.update(before)


@pytest.fixture
def problems(tmp_path):
    def check(policy=None, **application):
        (tmp_path / "config").mkdir(exist_ok=True)
        (tmp_path / "config" / "application.yml").write_text(json.dumps(application))
        body = {"feature_category": "not_owned", "perform": lambda self: None, "defer_on_health": policy}
        worker = type("HeedingWorker", (ApplicationWorker,), body)
        settings = load({}, tmp_path)
        found = health_problems(settings, settings.databases, [worker.declaration()])
        return [(problem.key, problem.message) for problem in found]

    return check


def test_unknown_indicator_is_refused(problems):
    register("own", Own())
    ((key, message),) = problems(DeferOnHealth(indicators=("own", "traffik")), health=TRAFFIC)
    assert key == "defer_on_health.indicators"
    assert "unknown indicator 'traffik' (did you mean 'traffic'?)" in message
    assert "autovacuum, wal_archiving, replication_lag, connections, traffic, own" in message


def test_unknown_database_is_refused(problems):
    ((key, message),) = problems(DeferOnHealth("mian"), databases=DATABASES)
    assert (key, message) == (
        "defer_on_health.database",
        "there is no 'mian' (did you mean 'main'?); the setting databases has main",
    )
    # Without any database, a class may be meant for another installation.
    assert problems(DeferOnHealth("mian")) == []
    assert problems(DeferOnHealth("mian", indicators=("traffic",)), databases=DATABASES, health=TRAFFIC) == []


def test_duplicate_indicator_is_refused(problems):
    register("traffic", Own())
    ((key, message),) = problems(None, health=TRAFFIC)
    assert key == "health.indicators.traffic"
    assert "rename one of them" in message


@pytest.mark.parametrize(
    ("name", "one", "error", "words"),
    [
        ("a b", Own(), ValueError, "a name of letters, digits and underscores, not 'a b'"),
        (None, Own(), ValueError, "not None"),
        ("autovacuum", Own(), ValueError, "choose another name"),
        ("own", object(), TypeError, "is no health indicator: pass a class or an object with evaluate()"),
        ("own", None, TypeError, "None is no health indicator"),
        ("own", object, TypeError, "is no health indicator"),
    ],
)
def test_register_invalid_indicator_is_refused(name, one, error, words):
    with pytest.raises(error) as caught:
        register(name, one)
    assert words in str(caught.value)
    assert indicator.registered == {}
