"""Mend the events of jobs that moved without an event: after a kill, by another program, or by Redis losing them.

One pass looks for the open events of a shard that have not changed for a while, and finds their jobs in every key that may hold
one. If a job is at a place that contradicts its event, the event gets the state of that place. A job counts as lost only if it was
in no key in two passes, and then in no key by a search for this job alone: a job that moves during one pass is seen in the other.
A mend changes an event only in the state that was read.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

import redis
from sqlalchemy import Connection, select, update

from framework.admin.search import (
    JobStore,
    StoreKind,
    list_job_stores,
    payload_of_member,
    scan_members,
    search,
    search_lists,
)
from framework.features.tasks.apply import StoredEvent, apply_changes, ended_rows, note_completion, reason_of_duplicate
from framework.features.tasks.change import (
    DEAD,
    DUPLICATE,
    INTERRUPTED,
    LOST,
    QUARANTINED,
    EventChange,
    EventEnd,
    Message,
)
from framework.features.tasks.database import OPEN_STATUSES, TaskDatabase, events, tasks
from framework.process_clock import process_clock
from framework.types import Jid
from framework.wire.json import loads_object

STALE_S = 60.0
"""An open event that has not changed for this long is compared with Redis."""

ABANDONED_S = 86_400.0
"""A task that its producer has not closed for this long takes no more jobs."""

_PAGE = 20_000
_MAX_SEARCHES = 200
_MOST_JIDS = 500
"""Jobs of one query by their ids."""
_MARK = b'"track":true'
_JID = re.compile(rb'"jid":"((?:[^"\\]|\\.)*)"')
_JID_FIELD = b'"jid":"'
_LISTS = ("queue", "in flight", "migrating")

Places: TypeAlias = Mapping[Jid, StoreKind]


@dataclass(frozen=True, slots=True)
class OpenEvent:
    id: int
    jid: Jid
    status: str
    state: str
    stands_for: str | None
    changed_at: float
    has_payload: bool = False


def mend_of(event: OpenEvent, place: StoreKind | None) -> tuple[EventEnd, str] | None:
    """Return the correct end of an event by the place of its job (``None``: no key has it), with the reason. Pure."""
    match place:
        case None if event.stands_for is not None:
            return EventEnd(
                "finish", DUPLICATE.state
            ), f"the job {event.stands_for} stood for it, and is in no key any more"
        case None:
            return LOST, "no key of Redis has the job: it was deleted by hand, or Redis lost it"
        case "dead":
            return DEAD, "it was moved to the dead set"
        case "interrupted":
            return QUARANTINED, "it is in the interrupted set"
        case "in flight" | "migrating" | "running":
            return None
        case _ if event.status == "working":
            return INTERRUPTED, "its process ended; the job waits again"
        case _:
            return None


class Standing(NamedTuple):
    """The last job that stands for a duplicate, and its event if that has ended."""

    jid: Jid
    end: StoredEvent | None


def _last_of(jid: Jid, nearest: dict[Jid, Jid]) -> Jid:
    """Follow the chain of jobs that stand for each other to its end; shorten it for the next call."""
    passed = dict[Jid, None]()
    while jid in nearest and jid not in passed:
        passed[jid] = None
        jid = nearest[jid]
    nearest.update(dict.fromkeys(passed, jid))
    return jid


def _change_by_end(event: OpenEvent, standing: Mapping[Jid, Standing], now: float) -> EventChange | None:
    """Return the end of a duplicate by the end of the job that stands for it; ``None`` if that has not ended."""
    found = standing.get(event.jid)
    if found is None or found.end is None:
        return None
    reason = reason_of_duplicate(found.jid, found.end.state, found.end.reason)
    return _change(event, EventEnd(found.end.current, DUPLICATE.state), reason, now)


def _job_of(event: OpenEvent, standing: Mapping[Jid, Standing]) -> Jid:
    found = standing.get(event.jid)
    return found.jid if found is not None else event.stands_for or event.jid


class EventReconciler:
    """Mend the events of one shard. ``step`` is called by one thread at a time.

    ``others`` are the clients of the other shards, to which a job may have moved since its push. With ``heals`` the ledger
    enqueues lost jobs again, so that their events stay open.
    """

    def __init__(
        self,
        client: "redis.Redis",
        shard: str,
        database: TaskDatabase,
        *,
        others: Sequence["redis.Redis"] = (),
        heals: bool = False,
        stale_s: float = STALE_S,
    ) -> None:
        self._client = client
        self._shard = shard
        self._database = database
        self._others = others
        self._heals = heals
        self._stale_s = stale_s
        self._after = 0
        self.lost: set[Jid] = set()
        """With ``heals``: the jobs of this step that two rounds in a row did not find, whatever the clocks of producers say."""
        self._missing: dict[Jid, float] = {}
        """The jobs that the last round over all pages did not find, with the last change of their events."""
        self._missing_now: dict[Jid, float] = {}
        """Those of this round so far."""

    def step(self) -> int:
        """Make one pass over a page of stale events; return the number of mended ones. Raises redis errors and SQLAlchemyError."""
        now = process_clock.now()
        with self._database.reading() as connection:
            found = self._stale(connection, now)
            standing = self._standing(connection) if any(one.stands_for is not None for one in found) else {}
        self.lost = set()
        by_ends = [change for one in found if (change := _change_by_end(one, standing, now)) is not None]
        ended = {change.jid for change in by_ends}
        rest = [one for one in found if one.jid not in ended]
        mended = self._mend(by_ends + (self._changes(rest, standing, now) if rest else []))
        # The events of the next page are compared in the next step.
        self._after = found[-1].id if len(found) == _PAGE else 0
        if not self._after:
            self._missing, self._missing_now = self._missing_now, {}
        self._database.write(partial(_close_abandoned, now=now))
        return mended

    def _stale(self, connection: Connection, now: float) -> list[OpenEvent]:
        names = ("id", "jid", "status", "state", "stands_for", "changed_at")
        columns: list[Any] = [*(events.c[name] for name in names), events.c.payload.is_not(None)]
        wanted = select(*columns).where(
            events.c.shard == self._shard,
            events.c.status.in_(OPEN_STATUSES),
            events.c.changed_at < now - self._stale_s,
            events.c.id > self._after,
        )
        return [OpenEvent(*row) for row in connection.execute(wanted.order_by(events.c.id).limit(_PAGE))]

    def _standing(self, connection: Connection) -> dict[Jid, "Standing"]:
        """Return the last job that stands for each open duplicate: one may stand for another that stands for the first."""
        chosen = select(events.c.jid, events.c.stands_for).where(
            events.c.shard == self._shard, events.c.stands_for.is_not(None), events.c.status.in_(OPEN_STATUSES)
        )
        nearest: dict[Jid, Jid] = {row[0]: row[1] for row in connection.execute(chosen)}
        last = {jid: _last_of(jid, nearest) for jid in nearest}
        jids = sorted(set(last.values()))
        parts = [jids[start : start + _MOST_JIDS] for start in range(0, len(jids), _MOST_JIDS)]
        ended = {row.jid: row for part in parts for row in ended_rows(connection, part)}
        return {jid: Standing(owner, ended.get(owner)) for jid, owner in last.items()}

    def _mend(self, changes: Sequence[EventChange]) -> int:
        """Write the changes; return their number."""
        if changes:
            for change in changes:
                change.shard = self._shard
            self._database.write(partial(apply_changes, changes=changes))
        return len(changes)

    def _changes(self, found: Sequence[OpenEvent], standing: Mapping[Jid, "Standing"], now: float) -> list[EventChange]:
        """Return the changes of events whose jobs are at a place that contradicts them, or are lost."""
        places = locate(self._client, {_job_of(one, standing) for one in found})
        changes: list[EventChange] = []
        searches = 0
        for one in found:
            jid = _job_of(one, standing)
            place = places.get(jid)
            if place is None:
                self._missing_now[one.jid] = one.changed_at
                if self._missing.get(one.jid) != one.changed_at:
                    continue
                if self._heals and one.has_payload:
                    self.lost.add(one.jid)
                    continue
                if searches >= _MAX_SEARCHES:
                    continue
                searches += 1
                place = _searched(self._client, jid)
                # The shard of an event is that of its push. A job on another shard writes its event itself.
                if place is None and any(_searched(other, jid) is not None for other in self._others):
                    continue
            elif one.stands_for is not None:
                continue
            mend = mend_of(one, place)
            if mend is not None:
                changes.append(_change(one, *mend, now))
        return changes


def _close_abandoned(connection: Connection, now: float) -> None:
    abandoned = (tasks.c.closed_at.is_(None)) & (tasks.c.created_at < now - ABANDONED_S)
    ids = list(connection.execute(select(tasks.c.id).where(abandoned).limit(1_000)).scalars())
    if ids:
        # A producer may have closed its task since it was read.
        connection.execute(update(tasks).where(tasks.c.id.in_(ids), tasks.c.closed_at.is_(None)).values(closed_at=now))
        note_completion(connection, ids, now)


def locate(client: "redis.Redis", jids: set[Jid], *, backwards: bool = False) -> dict[Jid, StoreKind]:
    """Return the place of each of these jobs that a key has. Raises redis errors.

    Only payloads with the mark of recorded jobs are read; a job without it is found by ``search``. The keys are walked in the order
    of a job's way, or against it.
    """
    found: dict[Jid, StoreKind] = {}
    for store, data in _recorded_jobs(client, backwards=backwards):
        jid = _jid_of(data)
        if jid in jids:
            found[jid] = store.kind
    return found


def _jid_of(data: bytes) -> Jid:
    if data.count(_JID_FIELD) > 1:
        # An argument has such a field too.
        return str(loads_object(data).get("jid", ""))
    match = _JID.search(data)
    return "" if match is None else match[1].decode("utf-8", "replace")


def _recorded_jobs(client: "redis.Redis", *, backwards: bool) -> Iterator[tuple[JobStore, bytes]]:
    stores = list_job_stores(client)
    for is_list, group in groupby(reversed(stores) if backwards else stores, lambda store: store.kind in _LISTS):
        if is_list:
            for location in search_lists(client, list(group), _MARK, lambda _key, _jobs: None):
                yield location.store, location.data
            continue
        for store in group:
            for page in scan_members(client, store.key, _MARK):
                held = store.kind in ("waiting", "paused")
                yield from ((store, payload_of_member(member) if held else member) for member, _ in page)


def _searched(client: "redis.Redis", jid: Jid) -> StoreKind | None:
    locations = search(client, jid, lambda _key, _jobs: None)
    return locations[0].store.kind if locations else None


def _change(event: OpenEvent, end: EventEnd, reason: str, now: float) -> EventChange:
    change: Any = EventChange(event.jid, "mend", now, end.status, end.state, reason=reason)
    change.seen_at, change.stands_for = event.changed_at, event.stands_for
    change.messages.append(Message(reason, now))
    found: EventChange = change
    return found
