import pytest
from starlette.testclient import TestClient

from framework.admin.diagnosis.facts import Installation
from framework.admin.explain import KnownClasses
from framework.all_settings import load
from framework.dashboard import Caller, app, application
from framework.declare import registry
from framework.pages import long_reads, view
from tests.admin.conftest import SILENT_URL, bound
from tests.harness import opened


@pytest.fixture
def shards(redis_url, second_redis_url):
    """Let the dashboard use two shards, ``main`` and ``second``."""
    yield from bound({"main": opened(redis_url), "second": opened(second_redis_url, "second")})


@pytest.fixture
def silent_shards(redis_url):
    """Let the dashboard use ``main``, which answers, and ``second``, which does not."""
    yield from bound({"main": opened(redis_url), "second": opened(SILENT_URL, "second")})


@pytest.fixture
def own_classes():
    with registry.isolated():
        yield


@pytest.fixture(autouse=True)
def declarations(monkeypatch):
    """Return the declarations that the dashboard knows, to add some; no module of workers is loaded."""
    known = {}
    monkeypatch.setattr(application, "read_installation", lambda: Installation(load({}), KnownClasses(known)))
    return known


@pytest.fixture(autouse=True)
def _whole(monkeypatch):
    """Let the first answer of a page be whole, however busy the machine is."""
    monkeypatch.setattr(view, "PART_S", 60.0)
    monkeypatch.setattr(long_reads, "ANSWER_WITHIN_S", 60.0)


@pytest.fixture(scope="session")
def dashboard():
    """Return one dashboard for all tests, which has its templates compiled, and the list with the caller of all requests."""
    callers: list[Caller | None] = [None]
    return app(lambda _: callers[0]), callers


@pytest.fixture
def browser(dashboard):
    """Return a function that makes a client of a caller; ``None`` is an unknown one. A new client ends the one before."""
    served, callers = dashboard

    def client(caller: Caller | None) -> TestClient:
        callers[0] = caller
        return TestClient(served, base_url="http://localhost", raise_server_exceptions=False)

    return client
