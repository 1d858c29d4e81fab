"""Describe how one run ended: one dataclass per outcome, with its facts.

``execute`` returns one, ``settle`` acts on it. A new dataclass fails the type check (``assert_never``) until it is settled.
``framework/finish/endings.py`` has the table of what each outcome writes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

from framework.declare.progress import StopReason
from framework.errors import NewerVersionError, PayloadError, UnknownWorkerError
from framework.types import Jid, Outcome

DroppedBy: TypeAlias = Literal["job", "middleware", "feature_flag", "limiter", "max_running_jobs", "retired_workers"]
"""The cause that dropped a job: the log field ``dropped_by``."""

HeldBy: TypeAlias = Literal["paused", "concurrency_limit"]
"""Why a policy holds a job: the log status of the job."""


StopFate: TypeAlias = Literal["cancel", "requeue", "kill"]
"""How the run of a job ends that an operator stops: as cancelled, back to its queue, or in the dead set."""


class JobStop(NamedTuple):
    """The order of an operator to stop a running job."""

    fate: StopFate
    by: str


@dataclass(frozen=True, slots=True)
class Succeeded:
    """``perform`` returned."""

    outcome: ClassVar[Outcome] = Outcome.SUCCEEDED


SUCCEEDED = Succeeded()
"""The only instance: most runs end so, and none allocates another."""


@dataclass(frozen=True, slots=True)
class Failed:
    """``perform`` or a middleware raised, or the arguments do not fit."""

    outcome: ClassVar[Outcome] = Outcome.FAILED
    error: BaseException


@dataclass(frozen=True, slots=True)
class Snoozed:
    """The job asked to run again later (``RetryLater``), or a rate limiter did not admit it. It uses up no retry."""

    outcome: ClassVar[Outcome] = Outcome.SNOOZED
    delay_s: float
    reason: str
    over_limit: Mapping[str, Any] | None = None
    """Further fields of the log line of a job that was over the limit of a rate limiter; ``None`` for any other."""


@dataclass(frozen=True, slots=True)
class Yielded:
    """An iterating job stopped at an item, whose cursor is saved: it goes back to its queue. It uses up no retry."""

    outcome: ClassVar[Outcome] = Outcome.YIELDED
    reason: StopReason
    made_progress: bool
    """Whether this run has finished an item."""


@dataclass(frozen=True, slots=True)
class Discarded:
    """The job raised ``Discard``, a server middleware did not yield, or a policy dropped the job."""

    outcome: ClassVar[Outcome] = Outcome.DISCARDED
    reason: str
    by: DroppedBy = "job"


@dataclass(frozen=True, slots=True)
class Expired:
    """The job was to begin at ``expiry`` (epoch seconds) at the latest, and did not: it has not run."""

    outcome: ClassVar[Outcome] = Outcome.EXPIRED
    expiry: float
    late_s: float
    """For how long the job had been too old when that was seen."""

    @property
    def fields(self) -> Mapping[str, Any]:
        """Return further fields of the log line."""
        return {"expired_for_s": round(self.late_s, 6)}


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The job was cancelled: it has not run, or (``ran``) it saw the cancellation in ``perform`` and ended."""

    outcome: ClassVar[Outcome] = Outcome.CANCELLED
    jid: Jid
    ran: bool


@dataclass(frozen=True, slots=True)
class Retired:
    """The class of the job is in the setting ``retired_workers``: the job did not run."""

    outcome: ClassVar[Outcome] = Outcome.RETIRED
    worker: str
    reason: str


@dataclass(frozen=True, slots=True)
class Malformed:
    """The payload cannot be read. ``stored`` is the member that the dead set gets."""

    outcome: ClassVar[Outcome] = Outcome.MALFORMED
    error: PayloadError
    stored: bytes


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The process stops and the job did not end. The shutdown returns the job to its queue."""

    outcome: ClassVar[Outcome] = Outcome.INTERRUPTED


@dataclass(frozen=True, slots=True)
class Deferred:
    """A policy sends the job away for a while (GitLab's deferral). It has not run, and returns by the schedule set."""

    outcome: ClassVar[Outcome] = Outcome.DEFERRED
    delay_s: float
    reason: str
    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further fields of the log line."""


@dataclass(frozen=True, slots=True)
class Held:
    """A policy has moved the job, by a script of its own, to where it waits; ``status`` is the log status."""

    outcome: ClassVar[Outcome] = Outcome.HELD
    status: HeldBy
    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class UnknownClass:
    """This process lacks the class of the job, or that version of it. The job waits for a process that has it."""

    error: UnknownWorkerError | NewerVersionError
    delay_s: float
    count: int
    """How often the job has been deferred for this reason, this time included."""
    since: float
    """When the job was first deferred for this reason, in epoch seconds."""
    gives_up: bool = False
    """Whether the job has waited too long. It then moves to the ``interrupted`` set."""

    @property
    def outcome(self) -> Outcome:
        """Return the outcome: deferred, or interrupted without another run."""
        return Outcome.INTERRUPTED if self.gives_up else Outcome.DEFERRED


@dataclass(frozen=True, slots=True)
class ForeignClass:
    """The class belongs to another application that shares the queue (setting ``foreign_classes``)."""

    outcome: ClassVar[Outcome] = Outcome.DEFERRED
    delay_s: float
    """Seconds until the job is in its queue again. 0: the job returns to its queue at once."""
    count: int
    """How often the job has been returned, this time included."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The script of a policy was fenced: another process owns the job and ends it. No outcome: the job has not run here."""

    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further fields of the log line."""


SettledOutcome: TypeAlias = (
    Succeeded
    | Failed
    | Snoozed
    | Yielded
    | Discarded
    | Expired
    | Cancelled
    | Retired
    | Malformed
    | Deferred
    | Held
    | UnknownClass
    | ForeignClass
)
"""The outcomes that ``Settler.settle`` writes."""

RunOutcome: TypeAlias = SettledOutcome | Interrupted
"""Every outcome. An interrupted job stays in flight, and the shutdown returns it."""

NotAdmitted: TypeAlias = RunOutcome | Lost
"""Why a job does not start."""
