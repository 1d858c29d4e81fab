"""Define a likely cause of trouble, and what finds causes; order causes, the likeliest first.

A cause is certain to a degree, and has an effect on a number of jobs: both together are its place in the answer. A cause that
explains another one hides it: jobs of a paused queue need no further process.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from framework.admin.diagnosis.facts import ShardEvidence

CauseCode: TypeAlias = str
"""What kind of cause it is, for programs: ``limit_reached``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One likely cause on one shard."""

    code: CauseCode
    shard: str
    cause: str
    """One sentence."""
    evidence: Sequence[str]
    """Figures that were read now, with names and times."""
    remedy: str
    """A command that can be pasted."""
    effect: str
    """What the remedy would do."""
    certainty: float
    """How likely it is the cause, if it has an effect on one job: 1 is a hint, 10 is certain, more concerns a whole shard."""
    jobs: int = 0
    """The number of jobs that it has an effect on."""
    classes: frozenset[str] = frozenset()
    """The wire names of the classes that it has an effect on; empty for all of its queues."""
    queues: frozenset[str] = frozenset()
    """The queues that it has an effect on; empty for all of its classes, or of the shard."""
    hides: frozenset[CauseCode] = frozenset()
    """The causes that it explains, of its classes and queues."""

    @property
    def weight(self) -> float:
        """Its place in the answer: ten times as many jobs count as much as one more degree of certainty."""
        return self.certainty * (1.0 + math.log10(1 + self.jobs))

    def explains(self, other: "Cause") -> bool:
        """Return whether the other cause follows from this one."""
        if other is self or other.shard != self.shard or other.code not in self.hides:
            return False
        return self.overlaps(other.classes, other.queues)

    def as_json(self) -> Mapping[str, Any]:
        """Return its JSON."""
        return {
            "code": self.code,
            "shard": self.shard,
            "cause": self.cause,
            "evidence": list(self.evidence),
            "remedy": self.remedy,
            "effect": self.effect,
            "jobs": self.jobs,
            "classes": sorted(self.classes),
            "queues": sorted(self.queues),
        }

    def overlaps(self, classes: frozenset[str], queues: frozenset[str]) -> bool:
        """Return whether it concerns these classes and queues. Without a name it concerns all."""
        return _meet(self.classes, classes) and _meet(self.queues, queues)


class CauseReader:
    """Find the causes of one kind on one shard: the part ``causes`` of a feature's record.

    What it reads is bounded, however many jobs there are: heads, samples and counts. Redis errors may leave it.
    """

    alerts: ClassVar[Mapping[CauseCode, Sequence[str]]] = {}
    """The causes that it may find, each with the names of the alerts that it can raise."""

    def __init__(self, facts: ShardEvidence) -> None:
        self.facts = facts

    def causes(self) -> Iterable[Cause]:
        """Yield the causes."""
        raise NotImplementedError


def in_order(causes: Iterable[Cause]) -> list[Cause]:
    """Return the causes, the likeliest first, without those that another one explains."""
    found = list(causes)
    left = [one for one in found if not any(other.explains(one) for other in found)]
    return sorted(left, key=lambda one: (-one.weight, one.shard, one.code, one.cause))


def _meet(ours: frozenset[str], theirs: frozenset[str]) -> bool:
    return not ours or not theirs or bool(ours & theirs)
