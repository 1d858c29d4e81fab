"""The values that ``framework.tasks`` returns: the progress of a task, the event of a job, and its messages."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import RowMapping

from framework.features.tasks.change import Status
from framework.features.tasks.model import STATUSES
from framework.types import Jid


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """How far a task is."""

    counts: Mapping[Status, int]
    """The number of jobs by status; every status is there."""
    total: int
    """The number of jobs."""
    items: int
    """The number of items of all jobs: more than jobs after ``perform_split``."""
    elapsed_s: float
    """Seconds from the start of the task until now, or until its end."""
    is_complete: bool
    """Whether the task takes no more jobs, and all have ended."""
    is_cancelled: bool

    @property
    def ended(self) -> int:
        """The number of jobs that have ended, well or not."""
        return self.total - self.open

    @property
    def open(self) -> int:
        """The number of jobs that wait or run."""
        return self.counts["enqueue"] + self.counts["working"]

    @property
    def failed(self) -> int:
        """The number of jobs that ended without doing their work: ``failed`` and ``error``."""
        return self.counts["failed"] + self.counts["error"]

    @property
    def share(self) -> float:
        """The share of jobs that have ended, from 0 to 1."""
        return self.ended / self.total if self.total else float(self.is_complete)

    @property
    def rate(self) -> float:
        """The jobs that ended per second since the start of the task."""
        return self.ended / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def eta_s(self) -> float | None:
        """The seconds until the last job ends at this rate; ``None`` while no job has ended, 0 for a complete task."""
        if not self.open:
            return 0.0
        return self.open / self.rate if self.rate else None

    def as_json(self) -> dict[str, Any]:
        """Return the progress as JSON values."""
        return {
            "counts": dict(self.counts),
            "total": self.total,
            "items": self.items,
            "ended": self.ended,
            "failed": self.failed,
            "share": round(self.share, 6),
            "rate": round(self.rate, 3),
            "eta_s": None if self.eta_s is None else round(self.eta_s, 1),
            "elapsed_s": round(self.elapsed_s, 3),
            "is_complete": self.is_complete,
            "is_cancelled": self.is_cancelled,
        }


@dataclass(frozen=True, slots=True)
class EventMessage:
    """One message of a job, with its time."""

    id: int
    at: float
    """Epoch seconds, as every time of a task."""
    text: str
    fields: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        """Return the message as JSON values."""
        return {"id": self.id, "at": self.at, "text": self.text, "fields": dict(self.fields)}


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One recorded job: its status, its state and reason, and its messages."""

    id: int
    """Grows with each event: pages begin after it."""
    jid: Jid
    task_id: str | None
    worker: str
    queue: str
    shard: str
    status: Status
    state: str
    """Says more than the status: the end or the waiting place."""
    reason: str | None
    error_class: str | None
    params: Sequence[Any]
    """The arguments, as log lines show them, or all of them (setting ``tasks.params``)."""
    items: int
    runs: int
    """How often the job was started."""
    stands_for: Jid | None
    """For a duplicate: the job that stands for it."""
    created_at: float
    started_at: float | None
    ended_at: float | None
    messages: Sequence[EventMessage] = field(default=())
    """The newest messages of the job, oldest first."""

    def as_json(self) -> dict[str, Any]:
        """Return the event as JSON values."""
        plain = {name: getattr(self, name) for name in self.__slots__}
        return {**plain, "params": list(self.params), "messages": [one.as_json() for one in self.messages]}


def progress_of(row: RowMapping, now: float) -> TaskProgress:
    """Return the progress in a row of ``aw_tasks``."""
    counts: dict[Status, int] = {status: max(0, row[status]) for status in STATUSES}  # type: ignore[misc]
    completed: float | None = row["completed_at"]
    return TaskProgress(
        counts,
        row["total"],
        row["items"],
        max(0.0, (now if completed is None else completed) - row["created_at"]),
        completed is not None,
        row["cancelled_at"] is not None,
    )


def event_of(row: RowMapping, found: Sequence[EventMessage]) -> JobEvent:
    """Return the event in a row of ``aw_events``."""
    columns: dict[str, Any] = {name: row[name] for name in JobEvent.__slots__ if name not in ("params", "messages")}
    return JobEvent(**columns, params=load_json(row["params"], []), messages=found)


def message_of(row: RowMapping) -> EventMessage:
    """Return the message in a row of ``aw_messages``."""
    return EventMessage(row["id"], row["at"], row["text"], load_json(row["fields"], {}))


def load_json(text: str | None, missing: Any) -> Any:
    """Return a stored JSON value; ``missing`` if there is none, or it was cut."""
    if text is None:
        return missing
    try:
        return json.loads(text)
    except ValueError:
        return missing
