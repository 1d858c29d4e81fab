"""What one run came to. ``execute`` says it, ``settle`` acts on it; a new outcome fails the type check until it is settled."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from framework.errors import NewerVersionError, PayloadError, UnknownWorkerError


@dataclass(frozen=True, slots=True)
class Succeeded:
    """``perform`` returned."""


SUCCEEDED = Succeeded()
"""The one there is; most runs end so."""


@dataclass(frozen=True, slots=True)
class Failed:
    """``perform`` or a middleware raised, or the arguments do not fit."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Snoozed:
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
class Malformed:
    """The payload cannot be read: to the dead set, where it is ``stored``."""

    error: PayloadError
    stored: bytes


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
class Held:
    """A policy has taken it out of the working list, in a step of its own, to where it waits; ``status`` is its log status."""

    status: str
    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class UnknownClass:
    """This process lacks the class of the job, or that version of it. The job has not run, and waits for a process that has it."""

    error: UnknownWorkerError | NewerVersionError
    delay_s: float
    count: int
    """How often it has been put off for this, this time included."""
    since: float
    """When it was put off first, epoch seconds."""
    gives_up: bool = False
    """Whether it has waited for too long: then it goes to the ``interrupted`` set."""


@dataclass(frozen=True, slots=True)
class ForeignClass:
    """The class belongs to another application that shares the queue (setting ``foreign_classes``): the job goes back to it."""

    delay_s: float
    """0: straight back into its queue."""
    count: int
    """How often it has gone back, this time included."""


Outcome: TypeAlias = (
    Succeeded
    | Failed
    | Snoozed
    | Discarded
    | Retired
    | Malformed
    | Interrupted
    | AwaitsTurn
    | Deferred
    | Held
    | UnknownClass
    | ForeignClass
)
"""All there are."""
