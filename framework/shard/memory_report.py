"""Say what fills the memory of a shard, and which classes are held back: the report that one process writes.

Pushes, ``jobs explain`` and the metrics read it here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from framework.typeguards import is_mapping
from framework.wire.json import dumps, loads_object

OTHER = "other"
"""The place of the memory that is in none of the others: connections, buffers, keys of other programs, and errors of estimates."""

NO_CLASS = ""
"""The class of keys that belong to none, such as the state of a job."""

NEAR, RELEASED = 0.9, 0.95
"""The shares of the budget from which it is near, and below which no class is held back any more."""

_SMALL = 0.05
"""A class with at most this share of the budget is never held back."""
_MOST_PARTS = 200


class HeldClass(NamedTuple):
    """The jobs of a class that is held back, and their bytes."""

    jobs: int
    bytes: int


class MemoryPart(NamedTuple):
    """The memory that the jobs of a class, or other keys, take in one place."""

    cls: str
    """The class; empty for keys of no class."""
    place: str
    jobs: int
    """The jobs, or keys."""
    bytes: int


@dataclass(frozen=True, slots=True)
class ShardMemory:
    """The memory of a shard at one moment."""

    used: int
    maxmemory: int
    """0: without a limit."""
    policy: str
    total: int
    """The memory of its host, as Redis reports it; 0 where it does not."""
    parts: Sequence[MemoryPart]
    """The largest first. Their bytes together are ``used``, the part ``other`` included."""
    is_estimate: bool

    @property
    def explained(self) -> float:
        """The share of the used memory, without that of an empty server, that is in the places."""
        other = sum(one.bytes for one in self.parts if one.place == OTHER)
        return 1.0 - max(0, other) / self.used if self.used else 1.0

    def by_class(self) -> dict[str, tuple[int, int]]:
        """Return the jobs and bytes of each class in all places."""
        return bytes_by_class(self.parts)


def bytes_by_class(parts: Sequence[MemoryPart]) -> dict[str, tuple[int, int]]:
    """Return the jobs and bytes of each class in these parts."""
    found: dict[str, tuple[int, int]] = {}
    for one in parts:
        if one.cls:
            jobs, size = found.get(one.cls, (0, 0))
            found[one.cls] = jobs + one.jobs, size + one.bytes
    return found


class MemoryReport(NamedTuple):
    """What is known of the memory of a shard."""

    used: int
    budget: int
    """0: none is known."""
    held: Mapping[str, HeldClass]
    """The classes whose pushes are held back."""
    parts: Sequence[MemoryPart] = ()

    def encode(self) -> bytes:
        held = {name: list(one) for name, one in self.held.items()}
        parts = [list(one) for one in self.parts[:_MOST_PARTS]]
        return dumps({"used": self.used, "budget": self.budget, "held": held, "parts": parts})


def large_classes(report: MemoryReport) -> frozenset[str]:
    """Return the classes of a report for whose pushes no reserve is kept: those that are, or may be, held back."""
    sizes = bytes_by_class(report.parts)
    return frozenset(name for name, (_, size) in sizes.items() if size > report.budget * _SMALL).union(report.held)


def read_report(data: bytes | None) -> MemoryReport | None:
    """Return the report in a reply; ``None`` without one, or for a value that another program wrote."""
    if not data:
        return None
    fields = loads_object(data)
    try:
        parts = [MemoryPart(str(one[0]), str(one[1]), int(one[2]), int(one[3])) for one in fields.get("parts", ())]
        return MemoryReport(int(fields["used"]), int(fields["budget"]), _held_classes(fields.get("held")), parts)
    except (KeyError, TypeError, ValueError, IndexError):
        return None


def _held_classes(held: Any) -> dict[str, HeldClass]:
    return {str(name): HeldClass(*map(int, one)) for name, one in held.items()} if is_mapping(held) else {}


def budget_of(setting: float, maxmemory: int, total: int) -> int:
    """Return the budget in bytes: a number of bytes, or a share of maxmemory, else of the machine's memory; 0 if neither is known."""
    if isinstance(setting, int):
        return setting
    return int(setting * (maxmemory or total))


def classes_above_fair_share(used: int, classes: Mapping[str, tuple[int, int]], budget: int) -> dict[str, HeldClass]:
    """Return the classes that fill the memory: those with more than a fair share of what the budget leaves to classes.

    The share is so large that all classes together fit, if none has more than it. So a class with few jobs is below it, however much
    another one has. ``classes`` has the jobs and bytes of each class.
    """
    sizes = sorted(size for _, size in classes.values())
    # Released a little below the budget, so that the state does not change at every measurement.
    left = budget * RELEASED - (used - sum(sizes))
    least = max(_fair_share(sizes, left), budget * _SMALL)
    return {name: HeldClass(*one) for name, one in classes.items() if one[1] > least}


def _fair_share(sizes: Sequence[int], left: float) -> float:
    """Return the largest share with which all fit in ``left``; ``sizes`` are in ascending order."""
    for at, size in enumerate(sizes):
        share = left / (len(sizes) - at)
        if size > share:
            return max(0.0, share)
        left -= size
    return float(sizes[-1]) if sizes else 0.0
