"""Decide which ticks of an entry push a job now, and which are missed."""

from dataclasses import dataclass

from framework.cron.entries import Missed
from framework.cron_expression import CronExpression

MOST_CAUGHT_UP = 100
"""The most missed ticks that ``missed: all`` catches up; older ones are skipped."""


@dataclass(frozen=True, slots=True)
class DueTicks:
    """The ticks that are due: those that push a job, in order, and those that are skipped because they are too late."""

    push: tuple[int, ...] = ()
    skipped: tuple[int, ...] = ()
    more_skipped: bool = False
    """Whether more ticks are skipped than ``skipped`` has."""

    @property
    def last(self) -> int:
        """Return the last due tick."""
        return (self.push or self.skipped or (0,))[-1]


NOTHING_DUE = DueTicks()


def due_ticks(expression: CronExpression, settled: int, now: float, missed: Missed, missed_after_s: float) -> DueTicks:
    """Return the due ticks after ``settled``, the last tick that was decided about. ``now`` is without the offset of the entry.

    A tick is missed ``missed_after_s`` after its time: no process ran, or Redis did not answer. Until then it is late and pushes its
    job whatever the policy, as the end of a leader or a restart of Redis delays ticks. A tick that is not missed does the work of the
    missed ones before it, so the policy ``once`` pushes a job for missed ticks only if no such tick is due.
    """
    found, more = expression.latest_ticks(settled, int(now), MOST_CAUGHT_UP)
    if not found:
        return NOTHING_DUE
    late = [tick for tick in found if now - tick > missed_after_s]
    kept = found[len(late) :]
    if missed == "all":
        kept, late = found, []
    elif missed == "once" and not kept:
        kept, late = late[-1:], late[:-1]
    return DueTicks(tuple(kept), tuple(late), more)
