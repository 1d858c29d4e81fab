"""Make the job of a tick as a push of the class makes it, with the tick in its payload."""

from collections.abc import Mapping
from typing import Any

from framework.declare.request import NO_OPTIONS, PushRequest
from framework.feature import Late
from framework.features.cron.entries import CronEntry
from framework.features.cron.payload import ALONE, CRON, CRON_CALLER
from framework.push.client import Client
from framework.push.push_plan import PreparedJob
from framework.telemetry import context
from framework.types import Json

OVERLAP_STATE_S = 86_400
"""For an entry that skips overlapping ticks: how long the state of its last job is kept without a change. After that the job
no longer stops the ticks: another program has deleted it, for example."""


class TickJobs:
    """Make jobs through a client: client middlewares, size limits and deduplication apply."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def make(self, entry: CronEntry, tick: int | None) -> PreparedJob | None:
        """Return the job of a tick, ``None`` if a client middleware dropped it; a job between ticks has no tick.

        Raises:
            ArgumentsError, ExceedLimitError: the job is refused.
        """
        declaration = entry.declaration
        args = declaration.signature.bind(list(entry.args), {})
        tick_of_job: dict[str, Json] = {"name": entry.name, "tick": tick}
        if entry.overlap != "run":
            tick_of_job[ALONE] = True
        # A root: an operator or a job may have asked for the tick, and its job belongs to neither.
        with context.root(CRON_CALLER):
            return self._client.prepare(PushRequest(declaration, args, None, _options(entry)), {CRON: tick_of_job})


# Made from the client of the process at its first use.
TICK_JOBS: "Late[type[TickJobs]]" = Late("framework.features.cron.push:TickJobs")


def _options(entry: CronEntry) -> Mapping[str, Any]:
    """Return the options of the push: a job whose entry skips overlapping ticks must have a state."""
    kept = entry.declaration.status_expiration
    if entry.overlap == "run" or (kept is not None and kept.total_seconds() >= OVERLAP_STATE_S):
        return NO_OPTIONS
    return {"status_expiration": OVERLAP_STATE_S}
