"""Add WAL positions to the payloads of a push: the consistency policy's step in it."""

from collections.abc import Callable, Mapping
from typing import Any, cast

from framework.declare.declaration import Declaration
from framework.feature import Late
from framework.features.consistency import replica_context
from framework.features.consistency.databases import (
    DATABASES,
    ConsistencyLevels,
    Databases,
    format_lsn,
    parse_lsn,
    weakest_level,
)
from framework.push.client import Client
from framework.push.normalize import ExtraFields
from framework.push.push_plan import PushPlan
from framework.typeguards import is_mapping
from framework.types import Json, Payload
from framework.wire.resources import DUPLICATE_WAL_POSITIONS, WAL_POSITIONS

CONSISTENCY_FIELD = "worker_data_consistency"
PER_DATABASE_FIELD = "worker_data_consistency_per_db"
SOURCES_FIELD = "wal_location_sources"


# The insert position, not the end of the written log: with `synchronous_commit = off` a commit may lie behind that.
class PushPositions:
    """Prepare the position fields for pushes of a class; ``None`` for a class that reads from no replica."""

    def __init__(self, databases: Databases) -> None:
        self._databases = databases

    def __call__(self, declaration: Declaration) -> ExtraFields | None:
        """Return the function that looks the positions up. Raises ConfigurationError if the libraries for it are missing."""
        levels = self._databases.levels(declaration)
        if not levels:
            return None
        fields: dict[str, Json] = {CONSISTENCY_FIELD: weakest_level(levels)}
        if declaration.facts["data_consistency_overrides"]:
            fields[PER_DATABASE_FIELD] = cast("dict[str, Json]", dict(levels))
        databases = [self._databases[name] for name, level in levels.items() if level != "always"]

        def look_up() -> Mapping[str, Json]:
            positions: dict[str, Json] = {}
            sources: dict[str, Json] = {}
            for name, primary, _ in databases:
                replica = replica_context.replica_of(name)
                # Reads so far went to this replica and nothing was written: the job need not see more than the replica shows.
                server = replica or primary
                position = server.position()
                if position is None and replica is not None:
                    server, position = primary, primary.position()
                if position is not None:
                    positions[name] = format_lsn(position)
                    sources[name] = "replica" if server.is_replica else "primary"
            return {**fields, WAL_POSITIONS: positions, SOURCES_FIELD: sources} if positions else fields

        return look_up


def open_positions(client: Client) -> PushPositions:
    return PushPositions(client.service(DATABASES))


PUSH_POSITIONS: "Late[Callable[[Client], PushPositions]]" = Late("framework.features.consistency.push:open_positions")


def add_positions(plan: PushPlan, client: Client) -> PushPlan:
    """Let the pushes of a class that reads from a replica look up the positions."""
    fields = client.service(PUSH_POSITIONS)(plan.declaration)
    return plan if fields is None else plan._replace(extra_fields=fields)


def required_positions(payload: Payload, levels: ConsistencyLevels) -> dict[str, int]:
    """Return the position that each database has to show, for the databases that the payload names.

    It is the newest of the push and its dropped duplicates: a job has to see what they saw. Raises ValueError for a
    malformed position.
    """
    newest: dict[str, int] = {}
    for field in (WAL_POSITIONS, DUPLICATE_WAL_POSITIONS):
        found: Any = payload.get(field)
        if found is None:
            continue
        if not is_mapping(found):
            raise ValueError(f"{field} is not an object")
        for name, level in levels.items():
            if level != "always" and name in found:
                newest[name] = max(newest.get(name, 0), parse_lsn(found[name]))
    return newest
