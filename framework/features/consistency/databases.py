"""Know the application's databases, and which of them a class may read from a replica."""

import random
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from importlib.util import find_spec
from typing import NamedTuple, TypeAlias

from framework.declare.declaration import Declaration
from framework.errors import ConfigurationError, ConfigurationProblem
from framework.feature import Late
from framework.features.consistency.servers import DatabaseServer
from framework.messages import did_you_mean, join_names
from framework.push.client import Client
from framework.route.router import LoadedWorkers
from framework.settings.model import CoreSettings, DatabaseSettings
from framework.types import DataConsistency
from framework.version import install_extra

ConsistencyLevels: TypeAlias = Mapping[str, DataConsistency]
"""A class's data consistency for each database that has replicas."""

SETTINGS_FILE = "config/application.yml"
"""The default name of the settings file in messages."""

_STRICTEST_FIRST: tuple[DataConsistency, ...] = ("always", "sticky", "delayed")
"""Each level accepts staler replicas than the level before it."""


class Database(NamedTuple):
    """One database: its primary, and the replicas that may be read instead."""

    name: str
    primary: DatabaseServer
    replicas: tuple[DatabaseServer, ...]


class Databases:
    """Hold every configured database. Drivers are loaded, and connections made, on first use."""

    def __init__(self, settings: Mapping[str, DatabaseSettings], file: str = SETTINGS_FILE) -> None:
        self._file = file
        self._all = {name: _database(name, one) for name, one in settings.items()}

    def __getitem__(self, name: str) -> Database:
        if name not in self._all:
            message = f"there is no database {name!r}{did_you_mean(name, self._all)}; add it there with its url"
            raise ConfigurationError([ConfigurationProblem(self._file, "databases", message)])
        if (problem := missing_extra(self._file)) is not None:
            raise ConfigurationError([problem])
        return self._all[name]

    def levels(self, declaration: Declaration) -> ConsistencyLevels:
        """Return the class's consistency for each database with replicas; empty if it reads from no replica."""
        usual: DataConsistency = declaration.facts["data_consistency"]
        overrides: ConsistencyLevels = declaration.facts["data_consistency_overrides"] or {}
        levels: dict[str, DataConsistency] = {
            name: overrides.get(name, usual) for name, database in self._all.items() if database.replicas
        }
        return levels if weakest_level(levels) != "always" else {}

    def problems(self, declarations: Iterable[Declaration]) -> list[ConfigurationProblem]:
        """Return the problems of these classes with this configuration."""
        problems: list[ConfigurationProblem] = []
        wanted = False
        for declaration in declarations:
            wanted = wanted or bool(self.levels(declaration))
            for name in declaration.facts["data_consistency_overrides"] or ():
                if self._all and name not in self._all:
                    message = f"{declaration.qualified_name}: data_consistency_overrides names {name!r}, which is not a database"
                    known = join_names(self._all)
                    near = f"{did_you_mean(name, self._all)}; there are {known}: use one of them, or add it there with its url"
                    problems.append(ConfigurationProblem(self._file, "databases", f"{message}{near}"))
        problem = missing_extra(self._file) if wanted else None
        return [*problems, problem] if problem is not None else problems

    def available_replicas(self) -> dict[str, DatabaseServer]:
        """Return a replica that answers of each database that has one, however stale it is."""
        found: dict[str, DatabaseServer] = {}
        for name, _, replicas in self._all.values():
            shuffled = random.sample(replicas, len(replicas))
            answering = next((replica for replica in shuffled if replica.has_reached(0)), None)
            if answering is not None:
                found[name] = answering
        return found

    def dispose(self) -> None:
        """Close every connection."""
        for _, primary, replicas in self._all.values():
            for server in (primary, *replicas):
                server.dispose()


def databases_of(settings: CoreSettings) -> Databases:
    """Return the configured databases, the same object for every caller with these settings. Opens no socket."""
    return _open(tuple(sorted(settings.databases.items())), settings.config_file_label("application.yml"))


# One set of servers per configuration: policy, push and application must share the memory of a failed server.
@lru_cache
def _open(settings: tuple[tuple[str, DatabaseSettings], ...], file: str) -> Databases:
    return Databases(dict(settings), file)


def database_problems(workers: LoadedWorkers) -> list[ConfigurationProblem]:
    """Return the problems of the classes with the configured databases."""
    return databases_of(workers.settings).problems(workers.declarations)


def open_databases(client: Client) -> Databases:
    """Return the databases of the client's configuration. Opens no socket."""
    return databases_of(client.settings)


DATABASES: "Late[Callable[[Client], Databases]]" = Late("framework.features.consistency.databases:open_databases")


def weakest_level(levels: ConsistencyLevels) -> DataConsistency:
    """Return the level that applies to a job that uses all these databases (GitLab: the one that prefers replicas most)."""
    # One decision for all databases: otherwise each log line and counter would need one strategy per database.
    return max(levels.values(), key=_STRICTEST_FIRST.index) if levels else "always"


def missing_extra(file: str = SETTINGS_FILE) -> ConfigurationProblem | None:
    """Return the problem, with its remedy, if the libraries for replicas are not installed."""
    missing = [name for name in ("sqlalchemy", "psycopg") if find_spec(name) is None]
    if not missing:
        return None
    message = f"needs {' and '.join(missing)}, the extra sql: {install_extra('sql')}"
    return ConfigurationProblem(file, "databases", message)


def _database(name: str, settings: DatabaseSettings) -> Database:
    replicas = enumerate(settings.replicas, 1)
    return Database(
        name,
        DatabaseServer(name, settings.url, is_replica=False),
        tuple(DatabaseServer(f"{name} replica {number}", url, is_replica=True) for number, url in replicas),
    )
