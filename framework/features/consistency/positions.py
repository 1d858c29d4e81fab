"""Read the WAL positions of a payload at the run."""

from typing import Any

from framework.features.consistency.databases import ConsistencyLevels
from framework.features.consistency.servers import parse_lsn
from framework.typeguards import is_mapping
from framework.types import Payload
from framework.wire.resources import DUPLICATE_WAL_POSITIONS, WAL_POSITIONS


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
