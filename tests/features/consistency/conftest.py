"""A primary and a streaming replica whose replay can be paused, shared by all tests here, with one table in one database."""

from collections.abc import Iterator

import pytest

from framework.features.consistency import databases as database_servers
from framework.features.consistency.databases import Databases
from framework.settings.model import DatabaseSettings
from tests.postgres import Postgres, database_on, standby_of


@pytest.fixture(scope="session")
def _replicated(postgres: Postgres) -> Iterator[tuple[str, Postgres]]:
    with standby_of(postgres) as standby, database_on(postgres) as name:
        postgres.execute("CREATE TABLE orders (id bigint PRIMARY KEY, state text NOT NULL DEFAULT 'new')", name)
        yield name, standby


@pytest.fixture(autouse=True)
def long_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a long deadline, so that a loaded machine fails no test; tests of the deadline set their own."""
    monkeypatch.setattr(database_servers, "DEADLINE_S", 20.0)


@pytest.fixture
def shop(_replicated: tuple[str, Postgres], postgres: Postgres) -> Iterator[str]:
    """The name of the database; its table is empty, here and on the replica."""
    name, standby = _replicated
    postgres.execute("TRUNCATE orders", name)
    standby.catch_up(postgres)
    yield name
    standby.resume_replay()


@pytest.fixture
def standby(_replicated: tuple[str, Postgres], shop: str) -> Postgres:
    return _replicated[1]


@pytest.fixture
def settings(shop: str, postgres: Postgres, standby: Postgres) -> dict[str, DatabaseSettings]:
    return {"main": DatabaseSettings(url=postgres.url(shop), replicas=(standby.url(shop),))}


@pytest.fixture
def databases(settings: dict[str, DatabaseSettings]) -> Iterator[Databases]:
    made = Databases(settings)
    yield made
    made.dispose()
