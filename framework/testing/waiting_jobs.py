"""Check which jobs wait, in any mode."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeAlias

from framework.application_worker import ApplicationWorker, Setter
from framework.declare.declaration import Declaration
from framework.declare.setter import declaration_of
from framework.testing.fake_clock import epoch_seconds
from framework.testing.json_values import same_json
from framework.typeguards import short_repr
from framework.wire.job import Job

_SHOWN_JOBS = 10
_DUE_WITHIN_S = 1.0
"""How far a job may be due from the expected time: between a push and its check the host's clock goes on."""

WorkerClass: TypeAlias = type[ApplicationWorker] | Setter[...]
"""A worker class, or a function that is registered as a job."""


class WaitingJobs(Protocol):
    """The part of a mode that the check reads."""

    def enqueued(self, worker: WorkerClass | None = None) -> list[Job]:
        """Return the jobs that wait in queues, then those scheduled for later (with their time in ``at``)."""
        ...

    def retries(self, worker: WorkerClass | None = None) -> list[Job]:
        """Return the failed jobs that wait for their retry, with its time in ``at``."""
        ...

    def dead(self, worker: WorkerClass | None = None) -> list[Job]:
        """Return the jobs of the dead set."""
        ...

    @property
    def now(self) -> float:
        """Return the time by which jobs are due, in epoch seconds."""
        ...


def check_enqueued(
    jobs: WaitingJobs,
    worker: WorkerClass,
    args: Sequence[Any],
    at: datetime | timedelta | float | None,
    count: int,
) -> None:
    """Raise AssertionError unless exactly ``count`` jobs of the class wait with these arguments, due at ``at``."""
    # pytest then shows the line of the test.
    __tracebackhide__ = True
    waiting = jobs.enqueued(worker)
    due_at = _due_at(at, jobs.now)
    found = [job for job in waiting if _has_arguments(job, args) and _is_due(job, due_at)]
    if len(found) == count:
        return
    name = declaration_of(worker).class_name
    wanted = f"with the arguments {short_repr(list(args))} " if args else ""
    when = "" if at is None else f"due at {at!r} "
    lines = [f"  {_shown(job)}" for job in waiting[:_SHOWN_JOBS]]
    if len(waiting) > _SHOWN_JOBS:
        lines.append(f"  and {len(waiting) - _SHOWN_JOBS} more")
    listed = "\n".join(lines) if lines else f"  none{_hint(jobs, worker)}"
    raise AssertionError(
        f"expected {count} enqueued {'job' if count == 1 else 'jobs'} of {name} {wanted}{when}and found {len(found)}. "
        f"Enqueued jobs of {name}:\n{listed}"
    )


def belongs_to(job: Job, worker: WorkerClass | None) -> bool:
    """Return whether the job is one of the class, under its name or a former one."""
    if worker is None:
        return True
    declaration: Declaration = declaration_of(worker)
    return job.worker in (declaration.wire_name, *declaration.aliases)


def _has_arguments(job: Job, args: Sequence[Any]) -> bool:
    return not args or same_json(list(args), job.args)


def _due_at(at: datetime | timedelta | float | None, now: float) -> float | None:
    if at is None:
        return None
    return now + at.total_seconds() if isinstance(at, timedelta) else epoch_seconds(at)


def _is_due(job: Job, due_at: float | None) -> bool:
    return due_at is None or ("at" in job and abs(job["at"] - due_at) < _DUE_WITHIN_S)


def _shown(job: Job) -> str:
    when = f" at {datetime.fromtimestamp(job['at']).astimezone().isoformat()}" if "at" in job else ""
    return f"{short_repr(job.args)} in {job.queue}{when}"


def _hint(jobs: WaitingJobs, worker: WorkerClass) -> str:
    for place, found in (("retries", jobs.retries), ("dead", jobs.dead)):
        if number := len(found(worker)):
            return f"; {place}() has {number}"
    return ""
