"""Define what a feature says about a shard, or about its host, for Prometheus."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, cast

from framework.settings.base import SettingsBase


class Figure(NamedTuple):
    """One figure of a shard, whose name the reader adds to the labels; or of the host."""

    name: str
    labels: Mapping[str, str]
    value: float


class FigureReader:
    """Turn the reply of a feature's Lua part, ``figures_NAME(now, argument)``, into figures. One object reads all shards.

    The part may read a bounded number of entries, whatever the number of jobs. Its errors leave out the figures of this feature only.
    """

    def __init__(self, settings: SettingsBase) -> None:
        self.settings = settings

    def argument(self) -> str:
        """Return the argument of the part: such as the name of the application."""
        return ""

    def read(self, shard: str, reply: Any, now: float) -> Iterator[Figure]:  # noqa: ARG002 - for subclasses
        """Yield the figures of a shard at the time ``now`` of its Redis."""
        yield from ()

    def of_host(self) -> Iterator[Figure]:
        """Yield the figures of this host, without asking Redis."""
        yield from ()


def number(value: Any) -> float:
    """Return a number of a reply; 0 for anything else, such as a field that another program wrote."""
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return found if abs(found) < 1e18 else 0.0


def age(now: float, since: Any) -> float:
    """Return the seconds since a moment in a reply; 0 for one that is no number or is to come."""
    at = number(since)
    return round(max(0.0, now - at), 3) if at else 0.0


def rows(reply: Any, width: int) -> Iterable[list[Any]]:
    """Return the rows of a flat reply."""
    found: list[Any] = list(cast("list[Any]", reply)) if isinstance(reply, list) else []
    return [found[at : at + width] for at in range(0, len(found) - width + 1, width)]
