"""Positions of the WAL in a payload: what the push notes, and what the run has to find."""

from collections.abc import Callable, Mapping
from typing import Any, cast

from framework.declare.declaration import Declaration
from framework.policies.consistency import replica_context
from framework.policies.consistency.databases import ConsistencyLevels, Databases, weakest_level
from framework.policies.consistency.servers import format_lsn, parse_lsn
from framework.typeguards import is_mapping
from framework.types import Json, Payload
from framework.wire.resources import DUPLICATE_WAL_POSITIONS, WAL_POSITIONS

CONSISTENCY_FIELD = "worker_data_consistency"
PER_DATABASE_FIELD = "worker_data_consistency_per_db"
SOURCES_FIELD = "wal_location_sources"

PositionFields = Callable[[], Mapping[str, Json]]
"""Looks positions up here and now; the fields that a payload carries."""


# Decision 110: a push records the WAL insert position.
class PushPositions:
    """Says of a class what its pushes note; ``None`` for a class that reads from no replica, which then pays nothing."""

    def __init__(self, databases: Databases) -> None:
        self._databases = databases

    def __call__(self, declaration: Declaration) -> PositionFields | None:
        """Return what looks the positions up. Raises ConfigurationError when the libraries for it are missing."""
        levels = self._databases.levels(declaration)
        if not levels:
            return None
        said: dict[str, Json] = {CONSISTENCY_FIELD: weakest_level(levels)}
        if declaration.data_consistency_overrides:
            said[PER_DATABASE_FIELD] = cast("dict[str, Json]", dict(levels))
        asked = [self._databases[name] for name, level in levels.items() if level != "always"]

        def stamp() -> Mapping[str, Json]:
            positions: dict[str, Json] = {}
            sources: dict[str, Json] = {}
            for name, primary, _ in asked:
                replica = replica_context.replica_of(name)
                # What has been read from a replica, and nothing written, is all that the job has to see.
                server = replica or primary
                position = server.position()
                if position is None and replica is not None:
                    server, position = primary, primary.position()
                if position is not None:
                    positions[name] = format_lsn(position)
                    sources[name] = "replica" if server.is_replica else "primary"
            return {**said, WAL_POSITIONS: positions, SOURCES_FIELD: sources} if positions else said

        return stamp


def required_positions(payload: Payload, levels: ConsistencyLevels) -> dict[str, int]:
    """Return the position that each database has to show, for those databases of which the payload says one.

    Of a push and its dropped duplicates it is the newest: a job has to see what they saw, too. Raises ValueError for what is no
    position.
    """
    newest: dict[str, int] = {}
    for field in (WAL_POSITIONS, DUPLICATE_WAL_POSITIONS):
        found: Any = payload.get(field)
        if found is None:
            continue
        if not is_mapping(found):
            raise ValueError(f"{field} is no object")
        for name, level in levels.items():
            if level != "always" and name in found:
                newest[name] = max(newest.get(name, 0), parse_lsn(found[name]))
    return newest
