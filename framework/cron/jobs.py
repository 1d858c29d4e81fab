"""Make the job of a tick as a push of the class makes it, with the tick in its payload."""

import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from framework.cron.entries import CronEntry
from framework.declare.cron_worker import CRON_CALLER
from framework.declare.request import NO_OPTIONS, PushRequest
from framework.push.client import Client
from framework.push.prepared_job import PreparedJob
from framework.telemetry import context
from framework.typeguards import is_mapping
from framework.types import Payload
from framework.wire.job import timestamp

CRON = "cron"
"""Field of a job that a schedule pushed: the name of the entry and the tick in epoch seconds."""

OVERLAP_STATE_S = 86_400
"""For an entry that skips overlapping ticks: how long the state of its last job is kept without a change. After that the job
no longer stops the ticks: another program has deleted it, for example."""


class PushedTick(NamedTuple):
    """The entry of the schedule that pushed a job, and the tick; ``None`` for a job between ticks."""

    entry: str
    tick: int | None


def tick_of(payload: Payload) -> PushedTick | None:
    """Return the tick that pushed a job, ``None`` if no schedule did. Other programs may write anything into the field."""
    found = payload.get(CRON)
    if not is_mapping(found) or not isinstance(found.get("name"), str):
        return None
    tick = found.get("tick")
    # As a float: a whole number would be read as milliseconds.
    valid = type(tick) is int and timestamp(float(min(tick, sys.maxsize))) is not None
    return PushedTick(found["name"], tick if valid else None)


class TickJobs:
    """Make jobs through the client of the process: client middlewares, size limits and deduplication apply."""

    def __init__(self, client: Callable[[], Client]) -> None:
        """Take a function that returns the client: it is made at the first tick."""
        self._client = client

    def make(self, entry: CronEntry, tick: int | None) -> PreparedJob | None:
        """Return the job of a tick, ``None`` if a client middleware dropped it; a job between ticks has no tick.

        Raises:
            ArgumentsError, ExceedLimitError: the job is refused.
        """
        declaration = entry.declaration
        args = declaration.signature.bind(list(entry.args), {})
        with context.bound(caller_id=CRON_CALLER):
            return self._client().prepare(
                PushRequest(declaration, args, None, _options(entry)), {CRON: {"name": entry.name, "tick": tick}}
            )


def _options(entry: CronEntry) -> Mapping[str, Any]:
    """Return the options of the push: a job whose entry skips overlapping ticks must have a state."""
    kept = entry.declaration.status_expiration
    if entry.overlap == "run" or (kept is not None and kept.total_seconds() >= OVERLAP_STATE_S):
        return NO_OPTIONS
    return {"status_expiration": OVERLAP_STATE_S}
