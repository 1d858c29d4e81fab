"""Positions of the WAL in a payload: what the push notes, and what the run has to find."""

from collections.abc import Callable, Mapping
from typing import Any, cast

from framework.declare.declaration import Declaration
from framework.policies.consistency import reads
from framework.policies.consistency.databases import Databases, Levels, most_patient
from framework.policies.consistency.servers import parse_lsn, shown_lsn
from framework.settings.shapes import is_mapping
from framework.types import Json, Payload
from framework.wire.holds import OF_DUPLICATES, POSITIONS

CONSISTENCY = "worker_data_consistency"
PER_DATABASE = "worker_data_consistency_per_db"
SOURCES = "wal_location_sources"

Stamp = Callable[[], Mapping[str, Json]]
"""Looks positions up here and now; the fields that a payload carries."""


class Stamps:
    """Says of a class what its pushes note; ``None`` for a class that reads from no replica, which then pays nothing."""

    def __init__(self, databases: Databases) -> None:
        self._databases = databases

    def __call__(self, declaration: Declaration) -> Stamp | None:
        """Return what looks the positions up. Raises ConfigurationError when the libraries for it are missing."""
        levels = self._databases.levels(declaration)
        if not levels:
            return None
        said: dict[str, Json] = {CONSISTENCY: most_patient(levels)}
        if declaration.data_consistency_overrides:
            said[PER_DATABASE] = cast("dict[str, Json]", dict(levels))
        asked = [self._databases[name] for name, level in levels.items() if level != "always"]

        def stamp() -> Mapping[str, Json]:
            positions: dict[str, Json] = {}
            sources: dict[str, Json] = {}
            for name, primary, _ in asked:
                replica = reads.replica_of(name)
                # What has been read from a replica, and nothing written, is all that the job has to see.
                server = replica or primary
                position = server.position()
                if position is None and replica is not None:
                    server, position = primary, primary.position()
                if position is not None:
                    positions[name] = shown_lsn(position)
                    sources[name] = "replica" if server.is_replica else "primary"
            return {**said, POSITIONS: positions, SOURCES: sources} if positions else said

        return stamp


def wanted(payload: Payload, levels: Levels) -> dict[str, int]:
    """Return the position that each database has to show, for those databases of which the payload says one.

    Of a push and its dropped duplicates it is the newest: a job has to see what they saw, too. Raises ValueError for what is no
    position.
    """
    newest: dict[str, int] = {}
    for field in (POSITIONS, OF_DUPLICATES):
        found: Any = payload.get(field)
        if found is None:
            continue
        if not is_mapping(found):
            raise ValueError(f"{field} is no object")
        for name, level in levels.items():
            if level != "always" and name in found:
                newest[name] = max(newest.get(name, 0), parse_lsn(found[name]))
    return newest
