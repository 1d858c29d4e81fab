"""Report what a migration did, or would do, on one shard."""

from collections import Counter
from dataclasses import dataclass, field

from framework.migrate.plan import MoveDecision, SkipReason

_MAX_JIDS = 3


@dataclass
class Skipped:
    """Jobs that stay for one reason: how many, and a few of their ids. Arguments are never shown."""

    jobs: int = 0
    jids: list[str] = field(default_factory=list[str])

    def add(self, jid: str) -> None:
        """Add one job."""
        self.jobs += 1
        if jid and len(self.jids) < _MAX_JIDS:
            self.jids.append(jid)


@dataclass
class MigrationReport:
    """Count jobs by result. ``skipped`` holds what the last scan of each place found there."""

    moved: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """Counts by source queue and target queue."""
    skipped: dict[str, dict[tuple[SkipReason, str, str], Skipped]] = field(
        default_factory=dict[str, dict[tuple[SkipReason, str, str], Skipped]]
    )
    """Skipped jobs by place (the key), then by reason, queue and class."""
    still_receiving: set[str] = field(default_factory=set[str])
    """Queues in which every scan found more jobs to move: a producer still pushes them there."""
    wrong_type_keys: set[str] = field(default_factory=set[str])
    """Keys that cannot hold jobs: their type is wrong, or their name is not valid text."""

    @property
    def incomplete(self) -> bool:
        """Return whether jobs that should have moved have stayed."""
        reasons = {reason for found in self.skipped.values() for reason, _, _ in found}
        return bool(self.still_receiving) or "wrong type" in reasons

    def start_place(self, place: str) -> None:
        """Start a new scan of a place: forget what the last one found."""
        self.skipped[place] = {}

    def add_skipped(self, place: str, decision: MoveDecision, reason: SkipReason) -> None:
        """Record a job that stays."""
        found = self.skipped[place].setdefault((reason, decision.queue, decision.worker), Skipped())
        found.add(decision.jid)

    def add_moved(self, decision: MoveDecision) -> None:
        """Record a job that was moved, or would be."""
        self.moved[decision.queue, decision.target] += 1


class Quota:
    """The number of jobs that may still be moved, ``None`` for no limit. Shared by everything that one command moves."""

    def __init__(self, limit: int | None = None) -> None:
        self._remaining = limit
        self.stopped = False
        """True after a request to stop: all jobs not moved yet stay."""

    @property
    def exhausted(self) -> bool:
        """True if no further job may be moved."""
        return self.stopped or (self._remaining is not None and self._remaining <= 0)

    @property
    def remaining(self) -> int | None:
        """The number of jobs left, ``None`` for no limit."""
        return 0 if self.stopped else self._remaining

    def use(self, count: int) -> None:
        """Record that jobs were moved."""
        if self._remaining is not None:
            self._remaining -= count
