"""Let the code that pushes learn which jobs of its push were recorded, and name the events that they replace."""

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from framework.features.tasks.claim import SeenEvent


@dataclass(slots=True)
class PushScope:
    """One bulk push of at most one chunk."""

    replaces: "Sequence[SeenEvent]" = ()
    """The events of failed jobs that the jobs run again, by the place of each job; empty for new events."""
    recorded: set[int] = field(default_factory=set[int])
    """The places of the jobs that were recorded: the others were dropped by a client middleware."""


PUSH_SCOPE: ContextVar[PushScope | None] = ContextVar("aw_push_scope", default=None)
