"""Find the jobs that the database says wait and that no key of Redis has, and enqueue them again with the same id.

A job is lost if four walks over the keys of every shard did not find it, no process reports to run it, and its event did not change
meanwhile. A walk misses a job only if the job moves during it. The start and the end of a run write the event; in a row there are at
most three moves without one (to another shard, from the schedule to a queue, to a working list). So one of the walks sees the job.

At a crash: first the event is claimed, in the state that was read, then the job is written. A kill in between leaves an event that
waits: the next heal finds it. Two heals at a time claim each event once.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeAlias

from sqlalchemy import ColumnElement, Connection, and_, or_, select

from framework.admin.process_list import read_work
from framework.admin.search import search
from framework.errors import TaskError
from framework.features.tasks.apply import apply_changes
from framework.features.tasks.change import LOST, EventChange, EventEnd, Message
from framework.features.tasks.database import OPEN_STATUSES, TaskDatabase, events, sql_errors, tasks
from framework.features.tasks.reconcile import STALE_S, locate
from framework.features.tasks.store import count_changes
from framework.process_clock import process_clock
from framework.settings.model import SizeLimitSettings
from framework.shard.shard import Shard
from framework.text import format_count
from framework.types import Jid
from framework.wire.job import generate_jid, set_fields, wire_timestamp

_PAGE = 20_000
_CHUNK = 500
_PAUSE_S = 1.0
"""The time between the two pairs of walks: a start that was written by another process reaches the database."""
_MAX_SEARCHES = 200
"""The most jobs that are searched one by one: those without a kept payload, whose form in Redis is not known."""

_HEALED = "no key of Redis had the job; it was enqueued again"
_CANCELLED = "no key of Redis had the job, and its task is cancelled"

_Sleep: TypeAlias = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class LostJob:
    """A job that waits by its event, and that no key of Redis has."""

    id: int
    """The id of the event."""
    jid: Jid
    task_id: str | None
    worker: str
    queue: str
    shard: str
    status: str
    state: str
    """``deleted`` if the leader has given it up."""
    changed_at: float
    has_payload: bool
    """Whether the event has the job as it was pushed, so that it can be enqueued again."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Healed:
    enqueued: int = 0
    cancelled: int = 0
    """Jobs of cancelled tasks: their events have ended."""
    moved: int = 0
    """Jobs whose events changed before they were claimed: they are not lost."""
    without_payload: int = 0
    """Jobs that cannot be enqueued again."""

    def __add__(self, other: "Healed") -> "Healed":
        return Healed(*(one + two for one, two in zip(self.as_json().values(), other.as_json().values(), strict=True)))

    def as_json(self) -> dict[str, int]:
        return asdict(self)


class Ledger:
    """Compare the events of a database with the jobs of all shards. Used by one thread at a time."""

    def __init__(
        self,
        shards: Mapping[str, Shard],
        database: TaskDatabase,
        sizes: SizeLimitSettings,
        *,
        grace_s: float = STALE_S,
        sleep: _Sleep = time.sleep,
    ) -> None:
        self._shards = shards
        self._database = database
        self._sizes = sizes
        self._grace_s = grace_s
        self._sleep = sleep

    def lost(self, shard: str, *, given_up_s: float = 0.0, among: Collection[Jid] | None = None) -> Iterator[LostJob]:
        """Yield the lost jobs of a shard, with those that the leader gave up within the last ``given_up_s`` seconds.

        With ``among`` it looks only for these jobs.

        Raises:
            TaskError: a shard keeps events that are not in the database yet.
            TaskDatabaseError, redis errors: what is lost is not known.
        """
        after = 0
        while page := self._page(shard, after, given_up_s):
            yield from self.missing([one for one in page if among is None or one.jid in among])
            after = page[-1].id

    def heal(self, jobs: Sequence[LostJob]) -> Healed:
        """Enqueue lost jobs again; return the counts of the results. Safe to repeat.

        Raises:
            ShardUnavailableError: a shard does not answer. The claimed jobs are found again after the grace period.
            TaskDatabaseError: the database does not answer.
        """
        found = Healed()
        for start in range(0, len(jobs), _CHUNK):
            found += self._heal(jobs[start : start + _CHUNK])
        return found

    def _page(self, shard: str, after: int, given_up_s: float) -> list[LostJob]:
        now = process_clock.now()
        states: list[ColumnElement[bool]] = [
            and_(events.c.status.in_(OPEN_STATUSES), events.c.changed_at < now - self._grace_s)
        ]
        if given_up_s > 0:
            states.append(and_(events.c.state == LOST.state, events.c.changed_at > now - given_up_s))
        names = ("id", "jid", "task_id", "worker", "queue", "shard", "status", "state", "changed_at")
        columns: list[Any] = [*(events.c[name] for name in names), events.c.payload.is_not(None)]
        wanted = select(*columns).where(
            events.c.shard == shard, or_(*states), events.c.stands_for.is_(None), events.c.id > after
        )
        with sql_errors(self._database), self._database.reading() as connection:
            return [LostJob(*row) for row in connection.execute(wanted.order_by(events.c.id).limit(_PAGE))]

    # --- looking --------------------------------------------------------------------------------------------------

    def missing(self, jobs: Sequence[LostJob]) -> list[LostJob]:
        """Return the jobs that no key has, and whose events did not change during the walks. Raises as ``lost``."""
        left = list(jobs)
        for turn in (0, 1):
            if turn:
                self._sleep(_PAUSE_S)
            for backwards in (False, True):
                if not left:
                    return []
                left = self._walk(left, backwards=backwards)
        running = {job.jid for shard in self._shards.values() for job in read_work(shard, self._sizes)}
        left = self._searched([one for one in left if one.jid not in running])
        if left:
            self._check_spools()
        return list(self._unchanged(left))

    def _walk(self, jobs: Sequence[LostJob], *, backwards: bool) -> list[LostJob]:
        wanted = {one.jid for one in jobs}
        for shard in self._shards.values():
            wanted -= locate(shard.client, wanted, backwards=backwards).keys()
        return [one for one in jobs if one.jid in wanted]

    def _searched(self, jobs: Sequence[LostJob]) -> list[LostJob]:
        """Leave out the jobs without a kept payload that a search finds: in Redis they may not have the mark of a recorded job."""
        found: list[LostJob] = []
        searches = 0
        for one in jobs:
            if not one.has_payload:
                searches += 1
                if searches > _MAX_SEARCHES or self._has_key(one.jid):
                    continue
            found.append(one)
        return found

    def _has_key(self, jid: Jid) -> bool:
        return any(search(shard.client, jid, lambda _key, _jobs: None) for shard in self._shards.values())

    def _check_spools(self) -> None:
        for name, shard in self._shards.items():
            if count := count_changes(shard.client):
                raise TaskError(
                    f"shard {name} keeps {format_count(count, 'event')} for the database, so what is lost is not known. Its leader "
                    "writes all within a minute: try again then."
                )

    def _unchanged(self, jobs: Sequence[LostJob]) -> Iterator[LostJob]:
        for start in range(0, len(jobs), _CHUNK):
            chunk = jobs[start : start + _CHUNK]
            with sql_errors(self._database), self._database.reading() as connection:
                wanted = select(events.c.id, events.c.changed_at).where(events.c.id.in_([one.id for one in chunk]))
                seen = {row.id: row.changed_at for row in connection.execute(wanted)}
            yield from (one for one in chunk if seen.get(one.id) == one.changed_at)

    # --- healing --------------------------------------------------------------------------------------------------

    def _heal(self, jobs: Sequence[LostJob]) -> Healed:
        now = process_clock.now()
        with sql_errors(self._database):
            rows = self._database.write(partial(_claim, jobs=[one for one in jobs if one.has_payload], now=now))
        waiting = [row for row in rows if row.cancelled_at is None]
        for name in {row.shard for row in waiting}:
            _write(self._shards[name], [row for row in waiting if row.shard == name], now)
        counts = Counter(one.has_payload for one in jobs)
        return Healed(len(waiting), len(rows) - len(waiting), counts[True] - len(rows), counts[False])


def _claim(connection: Connection, jobs: Sequence[LostJob], now: float) -> list[Any]:
    """Change the events that are as they were read, and return their rows from before."""
    seen = {one.id: one.changed_at for one in jobs}
    columns = [events.c[name] for name in ("id", "jid", "queue", "shard", "changed_at", "payload", "due_at")]
    cancelled_at = select(tasks.c.cancelled_at).where(tasks.c.id == events.c.task_id).scalar_subquery()
    wanted = select(*columns, cancelled_at.label("cancelled_at"))
    locked = (
        wanted.where(events.c.id.in_(seen), events.c.payload.is_not(None))
        .order_by(events.c.jid)
        .with_for_update(of=events)
    )
    rows: list[Any] = [row for row in connection.execute(locked) if row.changed_at == seen[row.id]]
    apply_changes(connection, [_change(row, now) for row in rows])
    return rows


def _change(row: Any, now: float) -> EventChange:
    if row.cancelled_at is not None:
        end, reason = EventEnd("failed", "cancelled"), _CANCELLED
    else:
        end, reason = EventEnd("enqueue", "scheduled" if _is_due_later(row, now) else "queued"), _HEALED
    change = EventChange(row.jid, "mend", now, *end, reason=reason, seen_at=row.changed_at)
    change.messages.append(Message(reason, now))
    return change


def _is_due_later(row: Any, now: float) -> bool:
    return row.due_at is not None and row.due_at > now


def _write(shard: Shard, rows: Sequence[Any], now: float) -> None:
    """Write jobs as their push did: to their queues, or to the schedule set. Raises ShardUnavailableError."""
    later = [(row.due_at, row.payload.encode()) for row in rows if _is_due_later(row, now)]
    if later:
        shard.schedule(later, generate_jid())
    by_queue: dict[str, list[bytes]] = {}
    for row in rows:
        if not _is_due_later(row, now):
            payload = set_fields(row.payload.encode(), {"enqueued_at": wire_timestamp(now)})
            by_queue.setdefault(row.queue, []).append(payload)
    for queue, payloads in by_queue.items():
        shard.enqueue(queue, payloads, generate_jid())
