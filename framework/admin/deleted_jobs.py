"""Show the jobs that operators have deleted from sets in the last 24 hours, and bring them back."""

import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal, TypeAlias, Unpack, cast, get_args

from redis.exceptions import RedisError

from framework.admin import port
from framework.admin.access import TIME_LIMIT_S, answering_shards, deadline_of, iterate
from framework.admin.audit import audited
from framework.admin.entries import SET_KEYS, WAITING_SETS, JobSetKind, on_return, ordered_entries
from framework.admin.job_record import JobCriteria, JobFilter, JobQuota, JobRecord, job_filter
from framework.async_twin import async_items, async_twin
from framework.errors import JobRefusedError, PayloadError, ShardUnavailableError
from framework.settings.model import CoreSettings
from framework.shard.redis_errors import unavailable_error
from framework.shard.shard import Shard
from framework.store.connect import server_time
from framework.store.script import UNDO_DELETE
from framework.text import Sentence
from framework.types import Jid
from framework.wire import keys
from framework.wire.job import clamp_time, decode, rewrite
from framework.wire.json import stored_time
from framework.wire.protected import SIGNATURE
from framework.wire.waiters import held_fields

KEPT_S = 24 * 3_600.0
"""For how long a deletion can be undone: the script trims older ones (``act_on_entries.lua``)."""


UndoOutcome: TypeAlias = Literal["done", "gone", "no set", "signed", "unreadable", "wrong type"]
"""What became of one deleted job; ``gone``: another operator has brought it back, or it was trimmed."""

REFUSALS: Mapping[UndoOutcome, str] = {
    "no set": Sentence("the entry does not name the set that it comes from"),
    "signed": Sentence("its batch has counted it as removed, and its signature names the batch. Push it again"),
    "unreadable": Sentence("its payload cannot be read, and it names a batch that has counted it as removed"),
    "wrong type": Sentence("the key of its set is not a sorted set: remove it"),
}
"""Why a job stays deleted."""


class DeletedJob(JobRecord):
    """A job that an operator has deleted from a set. It never runs, unless it is brought back."""

    def __init__(self, home: Shard, member: bytes, deleted_at: float, settings: CoreSettings) -> None:
        place, _, data = member.partition(b"\n")
        name, _, score = place.decode(errors="replace").partition(" ")
        super().__init__(home.name, data, settings.size_limit)
        self._home = home
        self._settings = settings
        self.member = member
        self.place: JobSetKind | None = cast("JobSetKind", name) if name in get_args(JobSetKind) else None
        """The set that it was deleted from; ``None`` for bytes that another program wrote."""
        self.score = stored_time(score) or 0.0
        self.deleted_at = clamp_time(deleted_at)

    def undo(self) -> bool:
        """Bring the job back to the set that it was deleted from, with its score there; return false if it is gone.

        Its deletion has freed its lock, and its batch, workflow or caller has counted it as removed: it comes back without
        them, and without the lock. One that is due by now runs at once.

        Raises:
            JobRefusedError: a signed job of a batch, whose signature covers this; or the key of its set is of another type.
            ReadOnlyError: inside of a ``read_only`` block.
            ShardUnavailableError: its shard does not answer. It may be back.
        """
        what = {"place": self.place, "jid": self.jid, "class": self.display_class}
        act = audited("DeletedJob.undo", self.restore, what, lambda done: int(done == "done"))
        try:
            outcome = act(self._home)
        except (RedisError, OSError) as error:
            raise unavailable_error(self.shard, self._home.endpoint, error) from error
        if outcome in REFUSALS:
            raise JobRefusedError(
                Sentence("the job {jid} stays deleted: {reason}.", jid=self.jid, reason=REFUSALS[outcome])
            )
        return outcome == "done"

    aundo = async_twin(undo)

    def restore(self, home: Shard) -> UndoOutcome:
        """Bring the job back, without a record in the audit log. Raises redis errors."""
        if self.place is None:
            return "no set"
        data = self.data
        if fields := held_fields().intersection(self.payload):
            if SIGNATURE in self.payload:
                return "signed"
            try:
                payload = decode(data, self._settings.size_limit.decoded_limit)
                data = rewrite(data, {name: value for name, value in payload.items() if name not in fields})
            except PayloadError:
                return "unreadable"
        delay_s = max(0.0, self.score - server_time(home.client)) if self.place in WAITING_SETS else 0.0
        holds = on_return(self.place, self.payload, delay_s)
        names = [keys.DELETED, SET_KEYS[self.place]]
        done: int = home.run_script(UNDO_DELETE, names, [self.member, f"{self.score:.6f}", data, holds])
        return "done" if done > 0 else "gone" if done == 0 else "wrong type"


@dataclass(slots=True)
class UndoResult:
    """The results of an undo of all matching deletions. Every job is in exactly one of the counts below ``matched``."""

    matched: int = 0
    done: int = 0
    gone: int = 0
    """Jobs that another operator has brought back meanwhile, or that were trimmed."""
    refused: dict[UndoOutcome, int] = field(default_factory=dict[UndoOutcome, int])
    """Jobs that stay deleted, by the reason (``REFUSALS``)."""
    in_doubt: int = 0
    """Jobs whose reply was lost: each is back, or deleted."""
    completed: bool = True
    """Whether all deleted jobs were looked at. Else the time limit ended, or a shard did not answer."""
    unanswered: dict[str, ShardUnavailableError] = field(default_factory=dict[str, ShardUnavailableError])

    def add(self, other: "UndoResult") -> None:
        """Add what was done on another shard."""
        for name in ("matched", "done", "gone", "in_doubt"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for reason, count in other.refused.items():
            self.refused[reason] = self.refused.get(reason, 0) + count
        self.completed = self.completed and other.completed
        self.unanswered |= other.unanswered


def undo_matching(
    home: Shard, wanted: JobFilter, settings: CoreSettings, deadline: float, *, quota: JobQuota
) -> UndoResult:
    """Bring the matching jobs of a shard back, each in one atomic step, until ``deadline`` (monotonic clock).

    Of several deletions of one of the ids of the filter, the last is undone. An error of Redis ends it, and is in the result.
    """
    result, undone = UndoResult(), set[Jid]()
    try:
        for one in matching_deleted(home, wanted, settings):
            if wanted.jids and one.jid in undone:
                continue
            if time.monotonic() > deadline:
                result.completed = False
                break
            if not quota.take():
                break
            undone.add(one.jid)
            result.matched += 1
            result.in_doubt += 1
            outcome = one.restore(home)
            result.in_doubt -= 1
            match outcome:
                case "done":
                    result.done += 1
                case "gone":
                    result.gone += 1
                case reason:
                    result.refused[reason] = result.refused.get(reason, 0) + 1
    except ShardUnavailableError as error:
        result.completed, result.unanswered[home.name] = False, error
    except (RedisError, OSError) as error:
        result.completed = False
        result.unanswered[home.name] = unavailable_error(home.name, home.endpoint, error)
    return result


class DeletedJobs:
    """The deleted jobs of one shard or all, the last one first: at most 10,000 and 50 MB of a shard, for 24 hours."""

    def __init__(self, shard: str | None = None) -> None:
        self.shard = shard

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self.shard or 'all shards'}>"

    def __iter__(self) -> Iterator[DeletedJob]:
        """Yield every job. Raises ShardUnavailableError after the last one if a shard did not answer."""
        settings = port.current().settings
        return iterate(self.shard, lambda home: read_deleted(home, settings))

    def __aiter__(self) -> AsyncIterator[DeletedJob]:
        """Yield as a loop without ``async``, without blocking the event loop."""
        return async_items(self)

    def find(self, jid: Jid) -> DeletedJob | None:
        """Return the job with this id that was deleted last, ``None`` if there is none. Raises as a loop."""
        return next((one for one in self if one.jid == jid), None)

    afind = async_twin(find)

    def undo(
        self, *, time_limit: timedelta | float | None = TIME_LIMIT_S, **criteria: Unpack[JobCriteria]
    ) -> UndoResult:
        """Bring all jobs back that match every criterion, as ``DeletedJob.undo``; all of them without one. ``older_than`` is the time
        since the deletion.

        Raises:
            ReadOnlyError: inside of a ``read_only`` block.
            ValueError: a criterion is not allowed.
        """
        wanted, deadline, settings = job_filter(**criteria), deadline_of(time_limit), port.current().settings
        quota = JobQuota(wanted)
        step = audited(
            "DeletedJobs.undo",
            lambda home: undo_matching(home, wanted, settings, deadline, quota=quota),
            {"jobs": wanted or "all"},
            lambda done: done.done,
        )
        result = UndoResult()
        for home, late in answering_shards(self.shard):
            done = UndoResult(completed=False, unanswered={} if late is None else {home.name: late})
            if late is None:
                try:
                    done = step(home)
                # The record: nothing was done.
                except (RedisError, OSError) as error:
                    done.unanswered[home.name] = unavailable_error(home.name, home.endpoint, error)
            result.add(done)
        return result

    aundo = async_twin(undo)


def deleted(shard: str | None = None) -> DeletedJobs:
    """Return the jobs that operators have deleted from sets in the last 24 hours. ``DeletedJob.undo`` brings one back."""
    return DeletedJobs(shard)


def read_deleted(home: Shard, settings: CoreSettings) -> Iterator[DeletedJob]:
    """Yield the deleted jobs of a shard, the last one first. Raises redis errors."""
    oldest = server_time(home.client) - KEPT_S
    for member, at in ordered_entries(home.client, keys.DELETED, newest_first=True):
        if at < oldest:
            return
        yield DeletedJob(home, member, at, settings)


def matching_deleted(home: Shard, wanted: JobFilter, settings: CoreSettings) -> Iterator[DeletedJob]:
    """Yield the matching deleted jobs of a shard, the last one first. Raises redis errors."""
    now = server_time(home.client)
    return (one for one in read_deleted(home, settings) if wanted.matches(one, one.deleted_at, now))
