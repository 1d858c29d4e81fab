"""The sorted sets of jobs as the data API shows them: scheduled, retries, dead, interrupted."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeVar, Unpack

from redis.exceptions import RedisError

from framework.admin import port
from framework.admin.access import (
    TIME_LIMIT_S,
    answering_shards,
    collect,
    deadline_of,
    iterate,
    raise_first,
    sum_of,
)
from framework.admin.audit import audited
from framework.admin.entries import ACTIONS, EntryAction, EntryOutcome, JobSetKind
from framework.admin.groups import JobGroups, count_groups
from framework.admin.job_record import JobCriteria, JobFilter, JobQuota, job_filter
from framework.admin.shard_job_set import SetRecord, ShardJobSet, ShardResult
from framework.admin.statistics import ignore_progress
from framework.async_twin import async_items, async_twin
from framework.errors import JobRefusedError, ShardUnavailableError
from framework.shard.redis_errors import unavailable_error
from framework.shard.shard import Shard
from framework.text import decode_escaped
from framework.typeguards import is_text, short_repr
from framework.types import Jid

When = datetime | timedelta | float

T = TypeVar("T")


class JobEntry(SetRecord):
    """One job of a set, with the actions of that set.

    An action returns whether it was carried out: ``False`` means that the job was not in the set any more, and nothing was written.
    """

    def __init__(self, home: Shard, record: SetRecord) -> None:
        settings = port.current().settings
        super().__init__(home.name, record.kind, record.data, record.score, settings)
        self._home = home
        self._set = ShardJobSet(home, record.kind, settings)

    def retry(self) -> bool:
        """Move the job to its queue; the run does not use up one of its retries. For a failed or a dead job.

        Raises:
            JobRefusedError: the job cannot go there, and stays as it is; so for every action.
            ReadOnlyError: inside of a ``read_only`` block; so for every action.
            ShardUnavailableError: its shard does not answer; so for every action. The action may have been carried out.
            ValueError: the set has no such action; so for every action.
        """
        return self._act("retry")

    def enqueue_now(self) -> bool:
        """Move the job to its queue before it is due. The errors are those of ``retry``."""
        return self._act("enqueue_now")

    def requeue(self) -> bool:
        """Move an interrupted job to its queue for one more run. The errors are those of ``retry``."""
        return self._act("requeue")

    def kill(self) -> bool:
        """Move the job to the dead set, which is trimmed. No death handler is called. The errors are those of ``retry``."""
        return self._act("kill")

    def delete(self) -> bool:
        """Delete the job: it never runs. The errors are those of ``retry``."""
        return self._act("delete")

    def reschedule(self, at: When) -> bool:
        """Let the job be due at a time (aware datetime, or epoch seconds), or after a delay.

        Raises:
            ArgumentsError: ``at`` is no time. The other errors are those of ``retry``.
        """
        return self._act("reschedule", at)

    aretry = async_twin(retry)
    aenqueue_now = async_twin(enqueue_now)
    arequeue = async_twin(requeue)
    akill = async_twin(kill)
    adelete = async_twin(delete)
    areschedule = async_twin(reschedule)

    def _act(self, action: EntryAction, at: object = None) -> bool:
        what = {"place": self.kind, "jid": self.jid, "class": self.display_class}
        act = audited(f"JobEntry.{action}", lambda _: self._set.act_on(action, self.data, at), what, _done)
        _check_action(self.kind, action)
        try:
            outcome = act(self._home)
        except (RedisError, OSError) as error:
            raise unavailable_error(self.shard, self._home.endpoint, error) from error
        if outcome in ("done", "gone"):
            return outcome == "done"
        name = self.jid or decode_escaped(self.data[:40])
        raise JobRefusedError(f"the job {name} ({self.kind}) stays as it is: {refusal_text(outcome, self.queue)}.")


@dataclass(slots=True)
class BulkResult:
    """The results of an action on all matching jobs. Every job is in exactly one of the counts below ``matched``."""

    matched: int = 0
    done: int = 0
    gone: int = 0
    """Jobs that another operator, a poller or Sidekiq's Web had taken before: nothing was written for them."""
    refused: dict[EntryOutcome, int] = field(default_factory=dict[EntryOutcome, int])
    """Jobs that stay as they were, by the reason: ``malformed``, ``in transfer``, ``wrong type``, ``again``."""
    in_doubt: int = 0
    """Jobs of a step whose reply was lost: all of them are done, or none."""
    scanned: int = 0
    trimmed: int = 0
    """Old entries that the dead set lost to make room."""
    completed: bool = True
    """Whether the whole set was scanned. Else the time limit ended, or a shard did not answer."""
    resume: str = ""
    """Where to go on: pass it as ``resume`` to the same action; empty when completed."""
    unanswered: dict[str, ShardUnavailableError] = field(default_factory=dict[str, ShardUnavailableError])

    def add(self, shard: str, result: ShardResult) -> None:
        """Add what was done on one shard."""
        for name in ("matched", "done", "gone", "in_doubt", "scanned", "trimmed"):
            setattr(self, name, getattr(self, name) + getattr(result, name))
        for reason, count in result.refused.items():
            self.refused[reason] = self.refused.get(reason, 0) + count
        if not result.completed:
            self.completed = False
            self.resume = join_resume(self.resume, shard, result.cursor)
        if result.failure is not None:
            self.unanswered[shard] = result.failure


class MatchingJobs:
    """The jobs of a set that match a filter: loop over them, count them, or act on all of them.

    An action goes through the set in bounded steps, each one atomic, until ``time_limit`` (seconds, a timedelta, or ``None``
    for none). A job that moves meanwhile is acted on once or not at all. With ``resume`` of an earlier result it goes on from there.
    """

    def __init__(self, kind: JobSetKind, shard: str | None, wanted: JobFilter) -> None:
        self._kind: JobSetKind = kind
        self._shard = shard
        self._wanted = wanted

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._kind}: {self._wanted or 'all'}>"

    def __iter__(self) -> Iterator[JobEntry]:
        """Yield the jobs in no order. Raises ShardUnavailableError after the last one if a shard did not answer."""
        found = iterate(
            self._shard,
            lambda home: (
                JobEntry(home, one) for one in _opened(home, self._kind).matching(self._wanted, ignore_progress)
            ),
        )
        return JobQuota(self._wanted).of(found)

    def __aiter__(self) -> AsyncIterator[JobEntry]:
        """Yield as a loop without ``async``, without blocking the event loop."""
        return async_items(self)

    def count(self) -> int:
        """Return the number of jobs.

        Raises:
            ShardUnavailableError: a shard does not answer, so the number would be incomplete.
        """
        quota = JobQuota(self._wanted)

        def count(home: Shard) -> int:
            return sum(1 for _ in quota.of(_opened(home, self._kind).matching(self._wanted, ignore_progress)))

        return sum_of(self._shard, count)

    def retry(self, *, time_limit: timedelta | float | None = TIME_LIMIT_S, resume: str = "") -> BulkResult:
        """Move the jobs to their queues, as ``JobEntry.retry``.

        Raises:
            ReadOnlyError: inside of a ``read_only`` block; so for every action.
            ValueError: the set has no such action, or ``resume`` is not of a result; so for every action.
            UnknownShardError: ``resume`` names no shard of the configuration.
        """
        return self._act("retry", time_limit, resume)

    def enqueue_now(self, *, time_limit: timedelta | float | None = TIME_LIMIT_S, resume: str = "") -> BulkResult:
        """Move the jobs to their queues before they are due. The errors are those of ``retry``."""
        return self._act("enqueue_now", time_limit, resume)

    def requeue(self, *, time_limit: timedelta | float | None = TIME_LIMIT_S, resume: str = "") -> BulkResult:
        """Move interrupted jobs to their queues for one more run. The errors are those of ``retry``."""
        return self._act("requeue", time_limit, resume)

    def kill(self, *, time_limit: timedelta | float | None = TIME_LIMIT_S, resume: str = "") -> BulkResult:
        """Move the jobs to the dead set, which is trimmed as they come. The errors are those of ``retry``."""
        return self._act("kill", time_limit, resume)

    def delete(self, *, time_limit: timedelta | float | None = TIME_LIMIT_S, resume: str = "") -> BulkResult:
        """Delete the jobs: they never run. The errors are those of ``retry``."""
        return self._act("delete", time_limit, resume)

    def reschedule(
        self, at: When, *, time_limit: timedelta | float | None = TIME_LIMIT_S, resume: str = ""
    ) -> BulkResult:
        """Let the jobs be due at a time, or after a delay. Raises ArgumentsError for no time, else as ``retry``."""
        return self._act("reschedule", time_limit, resume, at)

    def top(self, by: str = "class", *, limit: int = 10, exact: bool = False) -> JobGroups:
        """Return the largest groups of the jobs: ``framework.admin.top`` of this set. Raises as that function."""
        return count_groups(self._kind, by, self._wanted, limit, exact=exact, shard=self._shard)

    acount = async_twin(count)
    atop = async_twin(top)
    aretry = async_twin(retry)
    aenqueue_now = async_twin(enqueue_now)
    arequeue = async_twin(requeue)
    akill = async_twin(kill)
    adelete = async_twin(delete)
    areschedule = async_twin(reschedule)

    def _act(
        self, action: EntryAction, time_limit: timedelta | float | None, resume: str, at: object = None
    ) -> BulkResult:
        cursors = resume_cursors(resume, port.current().shards)
        quota = JobQuota(self._wanted)

        def act(home: Shard) -> ShardResult:
            return _opened(home, self._kind).act_on_matching(
                self._wanted,
                action,
                deadline,
                ignore_progress,
                quota=quota,
                cursor=cursors.get(home.name, 0),
                at=at,
            )

        what = {"place": self._kind, "jobs": self._wanted or "all"}
        step = audited(f"{type(self).__name__}.{action}", act, what, lambda done: done.done)
        _check_action(self._kind, action)
        deadline = deadline_of(time_limit)
        result = BulkResult()
        for home, late in answering_shards(self._shard):
            if resume and home.name not in cursors:
                continue
            cursor = cursors.get(home.name, 0)
            done = ShardResult(cursor=cursor, failure=late)
            if late is None:
                try:
                    done = step(home)
                # The record: nothing was done. The step itself reports what was done before an error.
                except (RedisError, OSError) as error:
                    done = ShardResult(cursor=cursor, failure=unavailable_error(home.name, home.endpoint, error))
            result.add(home.name, done)
        return result


class JobSet:
    """A sorted set of jobs of one shard or all. A loop yields the next due job first, or the one that ended last; shard by shard.

    Jobs that come or go during a loop hide no other job.
    """

    def __init__(self, kind: JobSetKind, shard: str | None = None) -> None:
        self.kind: JobSetKind = kind
        self.shard = shard

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.kind} on {self.shard or 'all shards'}>"

    def __iter__(self) -> Iterator[JobEntry]:
        """Yield every job. Raises ShardUnavailableError after the last one if a shard did not answer."""
        return iterate(self.shard, lambda home: (JobEntry(home, one) for one in _opened(home, self.kind).ordered()))

    def __aiter__(self) -> AsyncIterator[JobEntry]:
        """Yield as a loop without ``async``, without blocking the event loop."""
        return async_items(self)

    @property
    def size(self) -> int:
        """The number of jobs.

        Raises:
            ShardUnavailableError: a shard does not answer, so the number would be incomplete.
        """
        return sum_of(self.shard, lambda home: _opened(home, self.kind).size())

    async def asize(self) -> int:
        """Return ``size`` without blocking the event loop, with its errors."""
        return await asyncio.to_thread(lambda: self.size)

    def find(self, jid: Jid) -> JobEntry | None:
        """Return the job with this id, ``None`` if the set does not have it. The set is scanned, in bounded steps.

        Raises:
            ShardUnavailableError: no shard that answers has it, and one does not answer.
        """
        if not is_text(jid):
            return None
        found = collect(self.shard, lambda home: [(home, one) for one in _opened(home, self.kind).find(jid)])
        if found:
            return JobEntry(*found[0])
        raise_first(found.unanswered)
        return None

    def scan(self, match: str) -> MatchingJobs:
        """Return the jobs whose payload has this text as it is stored; ``*`` stands for any characters. Compressed arguments
        are not searched.

        Raises:
            ValueError: the text is empty, or no Unicode text.
        """
        if not match.strip("*") or not is_text(match):
            raise ValueError(
                f"scan({short_repr(match)}): give a text that the payloads have; for all jobs there is where()"
            )
        return MatchingJobs(self.kind, self.shard, JobFilter(text=match))

    def where(self, **criteria: Unpack[JobCriteria]) -> MatchingJobs:
        """Return the jobs that match every criterion; all jobs without one. ``JobCriteria`` explains each.

        Raises:
            TypeError, ValueError: a criterion is unknown, empty, or of a wrong type.
        """
        return MatchingJobs(self.kind, self.shard, job_filter(**criteria))

    def top(self, by: str = "class", *, limit: int = 10, exact: bool = False) -> JobGroups:
        """Return the largest groups of the jobs: ``framework.admin.top`` of this set. Raises as that function."""
        return self.where().top(by, limit=limit, exact=exact)

    afind = async_twin(find)
    atop = async_twin(top)


def scheduled(shard: str | None = None) -> JobSet:
    """Return the jobs that are due later: ``retry`` does not apply to them."""
    return JobSet("scheduled", shard)


def retries(shard: str | None = None) -> JobSet:
    """Return the failed jobs that wait for their next run."""
    return JobSet("retry", shard)


def dead(shard: str | None = None) -> JobSet:
    """Return the jobs whose retries are used up, and unreadable payloads."""
    return JobSet("dead", shard)


def interrupted(shard: str | None = None) -> JobSet:
    """Return the jobs that were stopped, or whose processes died, too often."""
    return JobSet("interrupted", shard)


def refusal_text(outcome: EntryOutcome, queue: str) -> str:
    """Return why an entry stays as it was, and the remedy."""
    match outcome:
        case "malformed":
            return "its payload cannot run: delete it, or push the job again"
        case "in transfer":
            return "it is on its way to another shard, where it runs when that shard answers"
        case "wrong type":
            return f"the key queue:{queue or 'NAME'} is not a list, or `dead` is not a sorted set: remove that key"
        case _:
            return "it was acted on before by the same call"


def _opened(home: Shard, kind: JobSetKind) -> ShardJobSet:
    return ShardJobSet(home, kind, port.current().settings)


def _done(outcome: EntryOutcome) -> int:
    return int(outcome == "done")


def _check_action(kind: JobSetKind, action: EntryAction) -> None:
    if action not in ACTIONS[kind]:
        allowed = ", ".join(f"{one}()" for one in ACTIONS[kind])
        raise ValueError(f"{action}() is no action for {kind} jobs, and nothing was changed: there are {allowed}")


def resume_cursors(resume: str, shards: Mapping[str, Shard]) -> dict[str, int]:
    """Return where to go on, by shard; empty for an empty text.

    Raises:
        ValueError: it is not the ``resume`` of a result.
        UnknownShardError: it names no shard of the configuration.
    """
    parts = [part.rpartition(":") for part in resume.split(",") if part]
    if not all(name and cursor.isascii() and cursor.isdigit() for name, _, cursor in parts):
        raise ValueError(f"resume={short_repr(resume)}: pass the field `resume` of an earlier result")
    return {shards[name].name: int(cursor) for name, _, cursor in parts}


def join_resume(resume: str, shard: str, cursor: int) -> str:
    """Return the ``resume`` of a result with one more shard whose set was not scanned to its end."""
    return f"{resume}{',' if resume else ''}{shard}:{cursor}"
