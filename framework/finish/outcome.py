"""What one run came to. ``execute`` says it, ``settle`` acts on it; a new outcome fails the type check until it is settled."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from framework.errors import PayloadError


@dataclass(frozen=True, slots=True)
class Succeeded:
    """``perform`` returned."""


SUCCEEDED = Succeeded()
"""The one there is; most runs end so."""


@dataclass(frozen=True, slots=True)
class Failed:
    """``perform`` or a middleware raised, the class is unknown, or the arguments do not fit."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Postponed:
    """The job asked to run again later (``RetryLater``); no retry is used up."""

    delay_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class Discarded:
    """The job asked to be forgotten (``Discard``), or a server middleware did not yield."""

    reason: str


@dataclass(frozen=True, slots=True)
class Retired:
    """Its class was removed, and the setting ``retired_workers`` says so: it was not run."""

    worker: str
    reason: str


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The payload cannot be read; its bytes go to the dead set as they are."""

    error: PayloadError


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The process is stopping and the job did not end; shutdown gives it back."""


@dataclass(frozen=True, slots=True)
class AwaitsTurn:
    """It has not begun: an async job that a death interrupted, and others of the kind are before it."""


@dataclass(frozen=True, slots=True)
class Deferred:
    """A policy sends it away for a while (GitLab's deferral): it has not run, and comes back through the schedule set."""

    delay_s: float
    reason: str
    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What the line says besides."""


@dataclass(frozen=True, slots=True)
class Parked:
    """A policy has taken it out of the working list, in a step of its own, to where it waits; ``status`` is its log status."""

    status: str
    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])


Outcome: TypeAlias = (
    Succeeded | Failed | Postponed | Discarded | Retired | Unreadable | Interrupted | AwaitsTurn | Deferred | Parked
)
"""All there are."""
