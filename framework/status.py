"""Look up the states of tracked jobs. ``status_expiration`` of a class or of a push makes a job tracked.

    jid = RebuildIndexWorker.set(status_expiration=timedelta(hours=1)).perform_async(42)
    status.of(jid)                     # "queued"

A job has one of these states, each kept for ``status_expiration`` after it began:

    queued      waits in its queue, or until its time (scheduled, or snoozed with RetryLater)
    running     has run for some 5 ms; also while a job waits to run again after its process was killed or stopped
    retrying    failed, and waits for its retry
    completed   ``perform`` has returned
    failed      will not run again: in the dead set, deleted, or quarantined
    discarded   ended by ``Discard``, by a middleware that did not yield, or because its class is retired
    expired     ended without running, because it was to begin after its ``expires_in``
    cancelled   ended by ``framework.cancel``, before or during its run
    unknown     never tracked, expired, or no such job

A job without a key is unknown (GitLab reports it as completed). A job runs at least once, so an ended job may start again after a
crash; its state is then running.

A function named after a state counts exactly that state. GitLab's ``running?`` and ``num_running`` count every job that has not
ended: use ``num_unfinished`` for them, and ``ended`` and ``all_ended`` for the opposite.

Raises:
    TypeError, ValueError: a value cannot be a job's id.
    ShardUnavailableError: a shard does not answer. A state is merged over all shards, so none is certain without all of them.
"""

from collections.abc import Iterable

from framework.declare import port
from framework.typeguards import short_repr
from framework.types import Jid, JobState
from framework.wire.job import check_jid

__all__ = [
    "JobState",
    "all_completed",
    "all_ended",
    "completed",
    "completed_jids",
    "ended",
    "look_up",
    "num_completed",
    "num_running",
    "num_unfinished",
    "of",
    "running",
]

_UNFINISHED = frozenset[JobState]({"queued", "running", "retrying"})
_ENDED = frozenset[JobState]({"completed", "failed", "discarded", "expired", "cancelled"})


def look_up(jids: Iterable[Jid]) -> dict[Jid, JobState]:
    """Return the state of each job. Each 1,000 jobs take one round trip to each shard."""
    if isinstance(jids, str):
        raise TypeError(
            f"look_up({short_repr(jids)}): give an iterable of ids, such as [jid]; for one job there is of(jid)"
        )
    return port.current().look_up([check_jid(jid, index) for index, jid in enumerate(jids)])


def of(jid: Jid) -> JobState:
    """Return the state of one job."""
    return look_up([jid])[jid]


def running(jid: Jid) -> bool:
    """Return whether the job runs now."""
    return of(jid) == "running"


def completed(jid: Jid) -> bool:
    """Return whether the job has completed."""
    return of(jid) == "completed"


def ended(jid: Jid) -> bool:
    """Return whether the job has ended, successfully or not."""
    return of(jid) in _ENDED


def num_running(jids: Iterable[Jid]) -> int:
    """Return the number of jobs that run now."""
    return _count(jids, frozenset[JobState]({"running"}))


def num_unfinished(jids: Iterable[Jid]) -> int:
    """Return the number of jobs that wait, run or will be retried (GitLab's ``num_running``)."""
    return _count(jids, _UNFINISHED)


def num_completed(jids: Iterable[Jid]) -> int:
    """Return the number of completed jobs."""
    return _count(jids, frozenset[JobState]({"completed"}))


def all_completed(jids: Iterable[Jid]) -> bool:
    """Return whether every job has completed; ``True`` for no jobs."""
    return all(state == "completed" for state in look_up(jids).values())


def all_ended(jids: Iterable[Jid]) -> bool:
    """Return whether every job has ended; ``True`` for no jobs, ``False`` with an unknown one."""
    return _ENDED.issuperset(look_up(jids).values())


def completed_jids(jids: Iterable[Jid]) -> list[Jid]:
    """Return the ids of completed jobs, in the given order."""
    return [jid for jid, state in look_up(jids).items() if state == "completed"]


def _count(jids: Iterable[Jid], states: frozenset[JobState]) -> int:
    return sum(state in states for state in look_up(jids).values())
