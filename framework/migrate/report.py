"""What a migration did, or would do, on one shard."""

from collections import Counter
from dataclasses import dataclass, field

from framework.migrate.plan import MoveDecision, SkipReason

_MAX_JIDS = 3


@dataclass
class Skipped:
    """Jobs that are left in place for one reason: how many, and the ids of a few. Never their arguments."""

    jobs: int = 0
    jids: list[str] = field(default_factory=list[str])

    def add(self, jid: str) -> None:
        """One more."""
        self.jobs += 1
        if jid and len(self.jids) < _MAX_JIDS:
            self.jids.append(jid)


@dataclass
class MigrationReport:
    """Jobs by what became of them. ``left`` is what the last look at each place has found there."""

    moved: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """By queue they were in and queue they went to."""
    skipped: dict[str, dict[tuple[SkipReason, str, str], Skipped]] = field(
        default_factory=dict[str, dict[tuple[SkipReason, str, str], Skipped]]
    )
    """By place (the key), and by reason, queue and class."""
    still_receiving: set[str] = field(default_factory=set[str])
    """Queues in which jobs were found again and again that belong elsewhere: somebody still pushes them there."""
    wrong_type_keys: set[str] = field(default_factory=set[str])
    """Keys in which no jobs can be, as they are of another type, or are named by what is no text."""

    @property
    def incomplete(self) -> bool:
        """Whether jobs that should have moved have not."""
        reasons = {reason for found in self.skipped.values() for reason, _, _ in found}
        return bool(self.still_receiving) or "wrong type" in reasons

    def start_place(self, place: str) -> None:
        """A place is looked at anew."""
        self.skipped[place] = {}

    def add_skipped(self, place: str, decision: MoveDecision, reason: SkipReason) -> None:
        """A job is left in place."""
        found = self.skipped[place].setdefault((reason, decision.queue, decision.worker), Skipped())
        found.add(decision.jid)

    def add_moved(self, decision: MoveDecision) -> None:
        """A job was moved, or would be."""
        self.moved[decision.queue, decision.target] += 1


class Quota:
    """How many jobs may yet be moved; ``None``: as many as there are. Shared by all that one command moves."""

    def __init__(self, limit: int | None = None) -> None:
        self._remaining = limit
        self.stopped = False
        """Somebody has asked to stop: whatever is not moved yet stays."""

    @property
    def exhausted(self) -> bool:
        """Nothing more may be moved."""
        return self.stopped or (self._remaining is not None and self._remaining <= 0)

    @property
    def remaining(self) -> int | None:
        """How many there are left; ``None``: no matter how many."""
        return 0 if self.stopped else self._remaining

    def use(self, count: int) -> None:
        """So many were moved."""
        if self._remaining is not None:
            self._remaining -= count
