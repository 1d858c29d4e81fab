"""Check a query with a threshold against a real HTTP server: correct, failing, and not a Prometheus."""

import socket
import time
from collections.abc import Callable, Iterator

import pytest

from framework.features.health.indicator import Normal, NotAvailable, Question, Signal, Stop, Unknown
from framework.features.health.prometheus import Prometheus
from framework.features.health.settings import PrometheusIndicatorSettings
from tests.features.health.prometheus_server import PrometheusServer, prometheus_server
from tests.tables import each_row

TIMEOUT_S = 0.3


@pytest.fixture(scope="module")
def server() -> Iterator[PrometheusServer]:
    with prometheus_server() as one:
        yield one


@pytest.fixture
def ask(server) -> Callable[..., Signal]:
    def go(query: str, url: str = "", database: str = "main", timeout_s: float = 10.0, **settings) -> Signal:
        indicator = Prometheus(url or server.url, PrometheusIndicatorSettings(query=query, **settings))
        return indicator.evaluate(Question(database, (), timeout_s, lambda *_: []))

    return go


@each_row(
    ("query", "threshold", "signal"),
    [
        ("vector 5", {"above": 4}, Stop("5 is above 4")),
        ("vector 4", {"above": 4}, Normal("4 is not above 4")),
        ("vector 1 9 3", {"above": 4}, Stop("9 is above 4")),  # one sick series is enough
        ("vector 1 NaN 3", {"above": 4}, Normal("3 is not above 4")),
        ("vector +Inf", {"above": 4}, Stop("inf is above 4")),
        ("vector 0.98 0.999", {"below": 0.99}, Stop("0.98 is below 0.99")),
        ("vector 0.99", {"below": 0.99}, Normal("0.99 is not below 0.99")),
        ("vector -1", {"below": 0}, Stop("-1 is below 0")),
        ("scalar 1e3", {"above": 999}, Stop("1000 is above 999")),
        ("chunked 7", {"above": 1}, Stop("7 is above 1")),
    ],
)
def test_prometheus_value_beyond_threshold_stops(ask, query, threshold, signal):
    assert ask(query, **threshold) == signal


@each_row(
    ("query", "reason"),
    [
        ("vector", "the query returns no number"),
        ("vector NaN NaN", "the query returns no number"),
        ("scalar NaN", "the query returns no number"),
        ("scalar many", "the query returns no number"),
        ("matrix", "the response is not Prometheus's: {"),
        ("status 500", 'Prometheus responds with status 500: {"status":"error"'),
        ("status 302", "Prometheus responds with status 302"),
        ("status 503", "Prometheus responds with status 503"),
        ("html", "the response is not Prometheus's: <html>"),
        ("raw {}", "the response is not Prometheus's: {}"),
        (
            'raw {"data":{"resultType":"vector","result":[1,null,{"value":[1]},{"value":[1,2]}]}}',
            "the query returns no number",
        ),
        ('raw {"data":{"resultType":"scalar","result":null}}', "the query returns no number"),
        ("deep", "the response is not Prometheus's: [["),
        ("endless", "Prometheus does not respond: http.client.HTTPException: more than 1048576 bytes"),
        ("cut", "Prometheus does not respond: http.client.IncompleteRead"),
        ("noise", "Prometheus does not respond: http.client.BadStatusLine"),
    ],
)
def test_prometheus_without_number_is_unknown(ask, query, reason):
    signal = ask(query, above=1)
    assert isinstance(signal, Unknown)
    assert signal.reason.startswith(reason)


@pytest.mark.parametrize("query", ["silent", "drip"])
def test_prometheus_slow_response_has_one_deadline(ask, query):
    begun = time.monotonic()
    signal = ask(query, timeout_s=TIMEOUT_S, above=1)
    assert time.monotonic() - begun < TIMEOUT_S + 3.0
    assert signal == Unknown("Prometheus does not respond: TimeoutError: timed out")


def test_prometheus_absent_or_silent_server_is_unknown(ask):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        deaf = f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert isinstance(ask("up", deaf, timeout_s=TIMEOUT_S, above=1), Unknown)
        secure = deaf.replace("http:", "https:")
        assert isinstance(ask("up", secure, timeout_s=TIMEOUT_S, above=1), Unknown)
    gone = ask("up", deaf, above=1)
    assert isinstance(gone, Unknown)
    assert "ConnectionRefusedError" in gone.reason
    assert isinstance(ask("up", "http://no-such-host.invalid", above=1), Unknown)


def test_prometheus_request_carries_query_and_credentials(ask, server):
    with_user = server.url.replace("//", "//me%40home:p%3Aw@")
    query = 'sum by (le) (rate(x{a=~"b+|c&d#"}[1m])) > 0 or "ä%"'
    assert isinstance(ask(query, with_user, above=1), Unknown)
    assert server.asked[-1] == query
    assert server.authorization[-1] == "Basic bWVAaG9tZTpwOnc="


def test_prometheus_other_database_is_not_available(ask, server):
    before = len(server.asked)
    assert ask("vector 5", database="ci", above=4) == Stop("5 is above 4")
    asked = Prometheus(server.url, PrometheusIndicatorSettings(query="vector 5", above=4, database="main"))
    assert asked.evaluate(Question("ci", (), 10.0, lambda *_: [])) == NotAvailable("it measures the database main")
    assert asked.evaluate(Question("main", (), 10.0, lambda *_: [])) == Stop("5 is above 4")
    assert len(server.asked) == before + 2
