"""The table of endings: outcome -> log status, state, script, counters, waiters.

One row per ending, because an outcome may end in several ways: a failure is retried, killed or deleted.
``tests/finish/test_endings.py`` runs a real job to each row and compares what was written.
"""

from typing import Literal, NamedTuple, TypeAlias, assert_never

from framework.finish.outcome import (
    Cancelled,
    Deferred,
    Discarded,
    DroppedBy,
    Expired,
    Failed,
    ForeignClass,
    Held,
    HeldBy,
    Interrupted,
    Malformed,
    Retired,
    RunOutcome,
    Snoozed,
    Succeeded,
    UnknownClass,
    Yielded,
)
from framework.finish.retry import Delete, Kill, Retry, RetryDecision
from framework.telemetry.job_events import LIMITED_JOBS, SKIPPED_JOBS
from framework.types import JobState, Outcome
from framework.wire.waiters import JobEnd

Line: TypeAlias = Literal["end", "single", "event", "none"]
"""The log line: ``JobLog.end``, ``JobLog.log_not_started``, an event of the process, or no line."""

CountedBy: TypeAlias = Literal["script", "record", "no"]
"""The writer that adds to ``stat:processed``: the script that acknowledges, the process record's heartbeat, or neither."""


class Ending(NamedTuple):
    """The log status, state, script, counters and word of one ending."""

    outcome: Outcome | None
    """``None``: the job is lost to another process, which ends it."""
    how: str
    """Distinguishes the endings of one outcome; empty if there is one."""
    line: Line
    log_status: str
    """The field ``job_status`` (GitLab's words); empty without a line."""
    state: JobState | None
    """The state that a tracked job gets; ``None`` leaves the state as it is."""
    script: str
    """The Lua script that moves the job; ``fetch`` is the acknowledgement, ``finish`` replaces it for a job with resources."""
    processed: CountedBy
    failed: bool = False
    """Whether ``stat:failed`` counts it. A ``BusinessError`` has another counter."""
    counter: str = ""
    """The series of ``aw:counters``: an event of the policy has it, or of the processor for an early end; empty for none."""
    told: JobEnd = ""
    """What is told to what waits for the end of the job (``Hold``); empty if the job is still pending."""


NO_KEY = "missing_key"
"""Reason of a deferral because this process lacks the key of the encrypted arguments."""

NO_STORE = "payload_store"
"""Reason of a deferral because this process cannot read the payload store."""

WAITING_FOR_STORE = "sidekiq_jobs_without_payload_store_total"
"""Deferrals of jobs whose arguments are in a payload store that does not answer."""

UNREADABLE_JOBS = "sidekiq_jobs_without_key_total"
"""Deferrals of jobs whose arguments are encrypted with a key that the process lacks."""

RIGHT_REFUSED, POLICY_REFUSED = "right_refused", "policy_refused"
REFUSED_REASONS = frozenset({RIGHT_REFUSED, POLICY_REFUSED})
"""Reasons of a deferral because Redis refuses a policy's command."""

EXPIRED_JOBS = "sidekiq_jobs_expired_total"
"""Jobs that ended without running because they were too old (``expires_in``)."""
CANCELLED_JOBS = "sidekiq_jobs_cancelled_total"
"""Jobs that ended because they were cancelled."""
YIELDED_JOBS = "sidekiq_jobs_yielded_total"
"""Runs of iterable jobs that stopped at an item and continue later."""
OVER_LIMIT_JOBS = "sidekiq_jobs_over_limit_total"
"""Runs that a rate limiter did not admit, whatever its policy: the job is scheduled again, is dropped, or fails."""

SUCCEEDED = Ending(Outcome.SUCCEEDED, "", "end", "done", "completed", "fetch", "script", told="done")
RETRIED = Ending(Outcome.FAILED, "retried", "end", "fail", "retrying", "schedule", "record", failed=True, told="failed")
KILLED = Ending(Outcome.FAILED, "killed", "end", "fail", "failed", "kill", "record", failed=True, told="dead")
DELETED = Ending(Outcome.FAILED, "deleted", "end", "fail", "failed", "fetch", "script", failed=True, told="dead")
SNOOZED = Ending(Outcome.SNOOZED, "by the job", "end", "snoozed", "queued", "schedule", "record")
SNOOZED_BY_LIMITER = Ending(
    Outcome.SNOOZED, "by a limiter", "end", "snoozed", "queued", "schedule", "record", counter=OVER_LIMIT_JOBS
)
YIELDED = Ending(Outcome.YIELDED, "", "end", "yielded", "queued", "yield_job", "record", counter=YIELDED_JOBS)
DISCARDED = Ending(Outcome.DISCARDED, "by the job", "end", "dropped", "discarded", "fetch", "script", told="done")
DROPPED_BY_FLAG = Ending(
    Outcome.DISCARDED,
    "by the drop flag",
    "single",
    "dropped",
    "discarded",
    "fetch",
    "script",
    counter=SKIPPED_JOBS,
    told="removed",
)
DROPPED_BY_CAPACITY = Ending(
    Outcome.DISCARDED, "by max_running_jobs", "single", "dropped", "discarded", "fetch", "script", told="done"
)
EXPIRED = Ending(
    Outcome.EXPIRED, "", "single", "expired", "expired", "fetch", "script", counter=EXPIRED_JOBS, told="done"
)
CANCELLED = Ending(
    Outcome.CANCELLED,
    "before the run",
    "single",
    "cancelled",
    "cancelled",
    "fetch",
    "script",
    counter=CANCELLED_JOBS,
    told="removed",
)
CANCELLED_RUN = Ending(
    Outcome.CANCELLED,
    "during the run",
    "end",
    "cancelled",
    "cancelled",
    "fetch",
    "script",
    counter=CANCELLED_JOBS,
    told="removed",
)
RETIRED = Ending(Outcome.RETIRED, "", "end", "dropped", "discarded", "drop_retired", "record", told="removed")
# The end line is written only if the payload was decoded, so with compressed arguments that cannot be read.
MALFORMED = Ending(Outcome.MALFORMED, "", "end", "fail", "failed", "kill", "no", told="dead")
DEFERRED = Ending(
    Outcome.DEFERRED, "by a policy", "single", "deferred", "queued", "schedule", "no", counter=SKIPPED_JOBS
)
DEFERRED_REFUSED = Ending(Outcome.DEFERRED, "Redis refuses a policy", "single", "deferred", "queued", "schedule", "no")
DEFERRED_NO_KEY = Ending(
    Outcome.DEFERRED, "no key", "end", "deferred", "queued", "schedule", "no", counter=UNREADABLE_JOBS
)
DEFERRED_NO_STORE = Ending(
    Outcome.DEFERRED, "no payload store", "end", "deferred", "queued", "schedule", "no", counter=WAITING_FOR_STORE
)
UNKNOWN_CLASS = Ending(Outcome.DEFERRED, "unknown class", "single", "deferred", "queued", "schedule", "no")
FOREIGN_RETURNED = Ending(Outcome.DEFERRED, "foreign class, returned", "none", "", None, "requeue", "no")
FOREIGN_DELAYED = Ending(Outcome.DEFERRED, "foreign class, delayed", "none", "", "queued", "schedule", "no")
HELD_BY_LIMIT = Ending(
    Outcome.HELD, "by a limit", "single", "concurrency_limit", None, "admit", "no", counter=LIMITED_JOBS
)
HELD_BY_PAUSE = Ending(Outcome.HELD, "by a pause", "single", "paused", None, "pause/hold", "no")
RETURNED = Ending(Outcome.INTERRUPTED, "returned to its queue", "event", "interrupted", None, "interrupt", "no")
INTERRUPTED_TOO_OFTEN = Ending(
    Outcome.INTERRUPTED, "too often", "event", "quarantined", "failed", "interrupt", "no", told="dead"
)
RECOVERED = Ending(Outcome.INTERRUPTED, "by a death", "event", "recovered", None, "reclaim", "no")
QUARANTINED = Ending(
    Outcome.INTERRUPTED, "by too many deaths", "event", "quarantined", "failed", "reclaim", "no", told="dead"
)
CLASS_NOT_FOUND = Ending(
    Outcome.INTERRUPTED, "unknown class for too long", "event", "quarantined", "failed", "kill", "no", told="dead"
)
# The job had run: its own line and counters were written before the acknowledgement was fenced; the owner writes its state.
LOST_AT_END = Ending(None, "lost at the end of a run", "event", "fenced", None, "fetch", "no")
LOST_BEFORE_RUN = Ending(None, "lost before the run", "single", "fenced", None, "take_slot", "no")

ENDINGS: tuple[Ending, ...] = (
    *(
        SUCCEEDED,
        RETRIED,
        KILLED,
        DELETED,
        SNOOZED,
        SNOOZED_BY_LIMITER,
        YIELDED,
        DISCARDED,
        DROPPED_BY_FLAG,
        DROPPED_BY_CAPACITY,
        EXPIRED,
        CANCELLED,
    ),
    *(CANCELLED_RUN, RETIRED),
    *(
        MALFORMED,
        DEFERRED,
        DEFERRED_REFUSED,
        DEFERRED_NO_KEY,
        DEFERRED_NO_STORE,
        UNKNOWN_CLASS,
        FOREIGN_RETURNED,
        FOREIGN_DELAYED,
    ),
    *(HELD_BY_LIMIT, HELD_BY_PAUSE),
    *(RETURNED, INTERRUPTED_TOO_OFTEN, RECOVERED, QUARANTINED, CLASS_NOT_FOUND, LOST_AT_END, LOST_BEFORE_RUN),
)


_BY_OUTCOME: dict[type[RunOutcome], Ending] = {
    Succeeded: SUCCEEDED,
    Yielded: YIELDED,
    Expired: EXPIRED,
    Retired: RETIRED,
    Malformed: MALFORMED,
    Interrupted: RETURNED,
}
_DROPPED_BY: dict[DroppedBy, Ending] = {"feature_flag": DROPPED_BY_FLAG, "max_running_jobs": DROPPED_BY_CAPACITY}
_DEFERRED_BY = {
    NO_KEY: DEFERRED_NO_KEY,
    NO_STORE: DEFERRED_NO_STORE,
    **dict.fromkeys(REFUSED_REASONS, DEFERRED_REFUSED),
}
_HELD_BY: dict[HeldBy, Ending] = {"paused": HELD_BY_PAUSE, "concurrency_limit": HELD_BY_LIMIT}


def ending_of(outcome: RunOutcome, decision: RetryDecision | None) -> Ending:
    """Return the row of a run's outcome; ``decision`` is what the retry policy decided for a failure."""
    match outcome:
        case Failed():
            return _ending_of_failure(decision)
        case Snoozed(over_limit=over_limit):
            return SNOOZED if over_limit is None else SNOOZED_BY_LIMITER
        case Discarded(by=by):
            return _DROPPED_BY.get(by, DISCARDED)
        case Cancelled(ran=ran):
            return CANCELLED_RUN if ran else CANCELLED
        case Deferred() | UnknownClass() | ForeignClass():
            return _ending_of_deferral(outcome)
        case Held(status=status):
            return _HELD_BY[status]
        case _:
            return _BY_OUTCOME[type(outcome)]


def _ending_of_deferral(outcome: Deferred | UnknownClass | ForeignClass) -> Ending:
    match outcome:
        case Deferred(reason=reason):
            return _DEFERRED_BY.get(reason, DEFERRED)
        case UnknownClass(gives_up=gives_up):
            return CLASS_NOT_FOUND if gives_up else UNKNOWN_CLASS
        case ForeignClass(delay_s=delay_s):
            return FOREIGN_DELAYED if delay_s else FOREIGN_RETURNED


def _ending_of_failure(decision: RetryDecision | None) -> Ending:
    match decision:
        case Retry():
            return RETRIED
        case Kill():
            return KILLED
        case Delete():
            return DELETED
        case None:
            raise ValueError("a failure has no ending before decide_retry")
        case _:
            assert_never(decision)
