"""What a migration did, or would do, on one shard."""

from collections import Counter
from dataclasses import dataclass, field

from framework.migrate.plan import Reason, Verdict

_SHOWN = 3


@dataclass
class Left:
    """Jobs that are left in place for one reason: how many, and the ids of a few. Never their arguments."""

    jobs: int = 0
    jids: list[str] = field(default_factory=list[str])

    def add(self, jid: str) -> None:
        """One more."""
        self.jobs += 1
        if jid and len(self.jids) < _SHOWN:
            self.jids.append(jid)


@dataclass
class Account:
    """Jobs by what became of them. ``left`` is what the last look at each place has found there."""

    moved: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """By queue they were in and queue they went to."""
    left: dict[str, dict[tuple[Reason, str, str], Left]] = field(
        default_factory=dict[str, dict[tuple[Reason, str, str], Left]]
    )
    """By place (the key), and by reason, queue and class."""
    arriving: set[str] = field(default_factory=set[str])
    """Queues in which jobs were found again and again that belong elsewhere: somebody still pushes them there."""
    odd: set[str] = field(default_factory=set[str])
    """Keys in which no jobs can be, as they are of another type, or are named by what is no text."""

    @property
    def undone(self) -> bool:
        """Whether jobs that should have moved have not."""
        reasons = {reason for found in self.left.values() for reason, _, _ in found}
        return bool(self.arriving) or "wrong type" in reasons

    def begin(self, place: str) -> None:
        """A place is looked at anew."""
        self.left[place] = {}

    def leave(self, place: str, verdict: Verdict, reason: Reason) -> None:
        """A job is left in place."""
        found = self.left[place].setdefault((reason, verdict.queue, verdict.name), Left())
        found.add(verdict.jid)

    def move(self, verdict: Verdict) -> None:
        """A job was moved, or would be."""
        self.moved[verdict.queue, verdict.target] += 1


class Allowance:
    """How many jobs may yet be moved; ``None``: as many as there are. Shared by all that one command moves."""

    def __init__(self, most: int | None = None) -> None:
        self._left = most
        self.stopped = False
        """Somebody has asked to stop: whatever is not moved yet stays."""

    @property
    def spent(self) -> bool:
        """Nothing more may be moved."""
        return self.stopped or (self._left is not None and self._left <= 0)

    @property
    def left(self) -> int | None:
        """How many there are left; ``None``: no matter how many."""
        return 0 if self.stopped else self._left

    def take(self, count: int) -> None:
        """So many were moved."""
        if self._left is not None:
            self._left -= count
