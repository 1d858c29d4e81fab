"""Define the field of a job that a schedule pushed: the entry and the tick."""

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from framework.typeguards import is_mapping
from framework.types import Jid, Payload
from framework.wire.job import timestamp

if TYPE_CHECKING:
    from framework.wire.waiters import JobEnd, Waiter

CRON = "cron"
"""Field of a job that a schedule pushed: the name of the entry and the tick in epoch seconds."""

ALONE = "alone"
"""Key of the field, true for a job for whose end the next tick waits (``overlap``): it is looked for on the shard of its entry."""

CRON_CALLER = "Cronjob"
"""The caller in the context of a job that a schedule pushes (GitLab)."""


class CronTick(NamedTuple):
    """The entry of the schedule that pushed a job, and the tick in epoch seconds; ``None`` for a job between ticks."""

    entry: str
    tick: int | None

    @property
    def time(self) -> datetime | None:
        """Return the nominal time of the tick in UTC, ``None`` for a job between ticks."""
        return None if self.tick is None else datetime.fromtimestamp(self.tick, UTC)


def tick_of(payload: Payload | None) -> CronTick | None:
    """Return the tick that pushed a job, ``None`` if no schedule did. Other programs may write anything into the field."""
    found = None if payload is None else payload.get(CRON)
    if not is_mapping(found) or not isinstance(found.get("name"), str):
        return None
    tick = found.get("tick")
    # As a float: a whole number would be read as milliseconds.
    valid = type(tick) is int and timestamp(float(min(tick, sys.maxsize))) is not None
    return CronTick(found["name"], tick if valid else None)


class EntryWaiter:
    """The entries whose ticks look at the state of the last job. No script tells them; the job stays on the shard of its entry."""

    def read(self, payload: Payload) -> str | None:
        """Return the name of the entry."""
        found, tick = payload.get(CRON), tick_of(payload)
        return tick.entry if tick is not None and is_mapping(found) and found.get(ALONE) is True else None

    def wants_answer(self, value: str) -> bool:
        del value
        return False

    def named(self, value: str, answer: str) -> str:
        del value
        return answer

    def told(self, value: str, jid: Jid, end: "JobEnd", answer: str) -> None:
        del value, jid, end, answer


WAITER: "Waiter[str]" = EntryWaiter()
