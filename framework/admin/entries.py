"""Read the entries of sorted sets of jobs, plan actions on them, and carry them out in slices of one script call each."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import redis

from framework.declare import registry
from framework.declare.options import due_at
from framework.errors import PayloadError
from framework.finish.endings import CANCELLED_JOBS
from framework.settings.model import CoreSettings
from framework.store.connect import server_time
from framework.store.script import ACT_ON_ENTRIES
from framework.store.steps import BoundedSteps
from framework.telemetry.counters import series_name
from framework.telemetry.job_events import SKIPPED_JOBS
from framework.types import JobState, Payload
from framework.wire import keys
from framework.wire.job import (
    BUFFERED_AT,
    DEFERRED,
    EXPIRY,
    TRANSFER,
    clear_unknown_class,
    decode,
    rewrite,
    whole_number,
    wire_timestamp,
)
from framework.wire.json import loads_object
from framework.wire.malformed import dead_set_entry
from framework.wire.resources import JobResources, lock_of
from framework.wire.status_key import StatusCommand, tracked_job
from framework.wire.sub_queues import arrival_queue
from framework.wire.waiters import JobEnd, awaited_job_of

T = TypeVar("T")

JobSetKind: TypeAlias = Literal["scheduled", "retry", "dead", "interrupted"]
"""A sorted set of jobs, by the name that commands and the API give it."""

EntryAction: TypeAlias = Literal["retry", "enqueue_now", "requeue", "kill", "delete", "purge", "cancel", "reschedule"]
"""What an operator does with an entry; ``purge``: delete it without a copy, so that its memory is free."""

Refusal: TypeAlias = Literal["malformed", "in transfer", "wrong type"]
"""Why an entry stays as it was: its payload cannot run, it is on its way to another shard, its destination is no list or set."""

SET_KEYS: Mapping[JobSetKind, str] = {
    "scheduled": keys.SCHEDULE,
    "retry": keys.RETRY,
    "dead": keys.DEAD,
    "interrupted": keys.INTERRUPTED,
}

ACTIONS: Mapping[JobSetKind, tuple[EntryAction, ...]] = {
    "scheduled": ("enqueue_now", "reschedule", "kill", "delete"),
    "retry": ("retry", "enqueue_now", "reschedule", "kill", "delete"),
    "dead": ("retry", "enqueue_now", "delete"),
    "interrupted": ("requeue", "kill", "delete"),
}
"""The actions of each set. A dead job is not killed, and only jobs that are due later have another time."""

WAITING_SETS: frozenset[JobSetKind] = frozenset({"scheduled", "retry"})
"""The sets whose jobs run by themselves. The jobs of the others have ended: their state stays when they are deleted."""

_DEFAULT_QUEUE = "default"
"""The queue of a payload that names none (Sidekiq's)."""

_DELETIONS = frozenset[EntryAction]({"delete", "purge"})

TO_QUEUE = frozenset[EntryAction]({"retry", "enqueue_now", "requeue"})
"""The actions that move a job to its queue."""
_SCRIPT_WORDS: Mapping[EntryAction, str] = {
    **dict.fromkeys(TO_QUEUE, "queue"),
    "kill": "dead",
    "delete": "remove",
    "purge": "remove",
    "cancel": "remove",
    "reschedule": "time",
}


class PlannedAction(NamedTuple):
    """The action of ``act_on_entries.lua`` on one entry."""

    member: bytes
    data: bytes = b""
    """The payload at its next place; of a deletion that can be undone the name of its set."""
    queue: str = ""
    resources: str = ""
    """The resources that the job holds at its next place (``parts/release.lua``)."""
    series: str = ""
    """The counter of jobs that an operator kept from running; empty for an action that keeps none."""


def script_word(action: EntryAction) -> str:
    """Return the action's word in ``act_on_entries.lua``."""
    return _SCRIPT_WORDS[action]


# Operators act without the application's code: at night they have a shell, and not always the application. One script moves an entry,
# found by its bytes; Sidekiq's data API removes it and pushes it again, and a crash in between loses the job.
def plan_action(
    kind: JobSetKind, action: EntryAction, member: bytes, now: float, decoded_limit: int, delay_s: float = 0.0
) -> PlannedAction | Refusal:
    """Return the planned action on ``member`` of the set, or why it stays. ``delay_s`` is that of ``reschedule``.

    A malformed payload can be deleted and killed: it runs nowhere.
    """
    try:
        payload = decode(member, decoded_limit)
    except PayloadError as error:
        return _plan_malformed(kind, action, member, error, now)
    # Its copy on the other shard may be written already: the poller ends the transfer.
    if kind in WAITING_SETS and isinstance(payload.get(TRANSFER), str):
        return "in transfer"
    if action in TO_QUEUE:
        return _plan_enqueue(kind, action, member, payload, now)
    if action == "kill":
        return PlannedAction(member, member, resources=_on_end(payload, "failed", "dead"))
    if action in _DELETIONS:
        return _plan_delete(kind, action, member, payload)
    if action == "cancel":
        series = series_name(CANCELLED_JOBS, {"worker": str(payload.get("class"))})
        return PlannedAction(member, resources=_on_end(payload, "cancelled", "removed"), series=series)
    state: JobState = "retrying" if kind == "retry" else "queued"
    return PlannedAction(member, resources=_on_delay(payload, state, delay_s))


def _plan_malformed(
    kind: JobSetKind, action: EntryAction, member: bytes, error: PayloadError, now: float
) -> PlannedAction | Refusal:
    readable = loads_object(member)
    if action == "kill":
        return PlannedAction(member, dead_set_entry(member, error, now), resources=_on_end(readable, "failed", "dead"))
    return _plan_delete(kind, action, member, readable) if action in _DELETIONS else "malformed"


def _plan_enqueue(
    kind: JobSetKind, action: EntryAction, member: bytes, payload: Payload, now: float
) -> PlannedAction | Refusal:
    # As the poller does: remove the fields of a job outside of queues, and of a past wait for a slot. The time to wait begins again.
    for name in ("at", DEFERRED, BUFFERED_AT, TRANSFER, EXPIRY):
        payload.pop(name, None)
    queue = payload.get("queue")
    payload["queue"] = queue if isinstance(queue, str) and queue else _DEFAULT_QUEUE
    payload.setdefault("created_at", wire_timestamp(now))
    payload["enqueued_at"] = wire_timestamp(now)
    count = whole_number(payload.get("retry_count"))
    # Sidekiq's rule: a retry by hand does not use up one of the job's own.
    if action == "retry" and count is not None:
        payload["retry_count"] = count - 1
    if action == "requeue":
        # A process without the class would give the job up at once, because it has waited for so long.
        clear_unknown_class(payload)
    try:
        data = rewrite(member, payload)
    except PayloadError:
        return "malformed"
    return PlannedAction(member, data, arrival_queue(payload, payload["queue"]), _on_requeue(kind, payload))


def _plan_delete(kind: JobSetKind, action: EntryAction, member: bytes, payload: Payload) -> PlannedAction:
    # The name of the set stays with the bytes: the deletion can be undone (``admin/deleted_jobs.py``).
    kept = kind.encode() if action == "delete" else b""
    if kind not in WAITING_SETS:
        # A job that has died stays dead for its batch.
        return PlannedAction(member, kept, resources=_on_end(payload, None, "deleted"))
    labels = {"worker": str(payload.get("class")), "action": "dropped", "reason": "operator"}
    resources = _on_end(payload, "discarded", "removed")
    return PlannedAction(member, kept, resources=resources, series=series_name(SKIPPED_JOBS, labels))


def _on_end(payload: Payload, state: JobState | None, end_word: JobEnd) -> str:
    held, tracked = _held_by(payload), tracked_job(payload)
    held.end_word = end_word
    status = tracked.command(state) if tracked is not None and state is not None else None
    return held.on_end(status) if held.lock is not None or held.awaited is not None or status is not None else ""


def _on_requeue(kind: JobSetKind, payload: Payload) -> str:
    held, status = _held_by(payload), _status_of(payload, "queued", 0.0)
    # A job of the dead set may succeed now: its batch no longer counts it as dead.
    held.end_word = "" if kind in WAITING_SETS else "revived"
    if held.lock is None and status is None and held.awaited is None:
        return ""
    return held.on_requeue(status, counted=kind not in WAITING_SETS)


def on_return(kind: JobSetKind, payload: Payload, delay_s: float) -> str:
    """Return what a deleted job holds again in its set: the state of a job that waits. Its lock became free at its deletion."""
    if kind not in WAITING_SETS:
        return ""
    return _on_delay(payload, "retrying" if kind == "retry" else "queued", delay_s)


def _on_delay(payload: Payload, state: JobState, delay_s: float) -> str:
    held, status = _held_by(payload), _status_of(payload, state, delay_s)
    return held.on_delay(delay_s, status) if held.lock is not None or status is not None else ""


def _status_of(payload: Payload, state: JobState, delay_s: float) -> StatusCommand | None:
    tracked = tracked_job(payload)
    return None if tracked is None else tracked.command(state, delay_s=delay_s)


def _held_by(payload: Payload) -> JobResources:
    """Return the resources that the job may hold: its lock, and its place in a batch. No job of a sorted set has a slot."""
    worker: Any = registry.find(str(payload.get("class")))
    lock = lock_of(payload, None if worker is None else worker.declaration().lock_ttl_s)
    return JobResources(lock, awaited=awaited_job_of(payload), end_word="")


SLICE_JOBS, SLICE_BYTES = (10, 150), 1_000_000
"""The fewest and the most jobs that one step moves, and its most bytes (one job always goes): a job takes up to 27 us of Redis."""

EntryOutcome: TypeAlias = Literal["done", "gone", "again"] | Refusal
"""The outcome for one entry; ``gone``: it was not there any more, and nothing was written; ``again``: the same call had acted on
it, so it was left alone.
"""

_OUTCOMES: dict[int, EntryOutcome] = {1: "done", 0: "gone", -1: "wrong type"}


@dataclass(frozen=True, slots=True)
class ActionTerms:
    """One action on one set: the limits of the dead set, of the memory of a payload, and the new time of ``reschedule``."""

    kind: JobSetKind
    action: EntryAction
    dead_set: tuple[int, float]
    decoded_limit: int
    score: float | None = None
    delay_s: float = 0.0

    @classmethod
    def of(
        cls, kind: JobSetKind, action: EntryAction, settings: CoreSettings, client: "redis.Redis", at: object = None
    ) -> "ActionTerms":
        """Return the terms; ``at`` is the new time of ``reschedule``, as ``perform_in`` and ``perform_at`` take it.

        Raises:
            ArgumentsError: ``at`` is no time.
            redis errors: with ``at``, the time of Redis's clock is asked for.
        """
        dead = settings.dead
        limits = (dead.max_jobs, dead.timeout_days * 86_400.0)
        if action != "reschedule":
            return cls(kind, action, limits, settings.size_limit.decoded_limit)
        now = server_time(client)
        due = due_at("reschedule()", at, now)
        score = now if due is None else due.at
        return cls(kind, action, limits, settings.size_limit.decoded_limit, score, max(0.0, score - now))


class ActedSlice(NamedTuple):
    """The entries of one script call with the outcome of each, and how many old entries the dead set lost to make room."""

    outcomes: Sequence[EntryOutcome]
    trimmed: int


def act(client: "redis.Redis", terms: ActionTerms, members: Sequence[bytes], steps: BoundedSteps) -> ActedSlice:
    """Carry out the action on the members in one atomic step. Raises redis errors: then all of it is done, or nothing."""
    now = time.time()
    planned: list[PlannedAction | Refusal] = [
        plan_action(terms.kind, terms.action, member, now, terms.decoded_limit, terms.delay_s) for member in members
    ]
    return _run(client, terms, planned, steps)


def next_slice(jobs: Sequence[T], start: int, most: int, size_of: Callable[[T], int]) -> Sequence[T]:
    """Return the jobs from ``start`` on that one step may move: at most ``most``, and of a bounded size, but at least one."""
    end, size = start, 0
    for job in jobs[start : start + most]:
        size += size_of(job)
        if end > start and size > SLICE_BYTES:
            break
        end += 1
    return jobs[start:end]


def _run(
    client: "redis.Redis", terms: ActionTerms, planned: Sequence[PlannedAction | Refusal], steps: BoundedSteps
) -> ActedSlice:
    moves = [one for one in planned if isinstance(one, PlannedAction)]
    replies: Iterator[int] = iter(())
    trimmed = 0
    if moves:
        names, arguments = _script_keys(terms, moves), _script_arguments(terms, moves)
        with steps.step(len(moves)):
            reply: Any = ACT_ON_ENTRIES(client, names, arguments)
        replies, trimmed = iter(reply[0]), int(reply[1])
    outcomes: list[EntryOutcome] = [
        _OUTCOMES[next(replies)] if isinstance(one, PlannedAction) else one for one in planned
    ]
    return ActedSlice(outcomes, trimmed)


def _script_keys(terms: ActionTerms, moves: Sequence[PlannedAction]) -> list[str]:
    elsewhere = keys.DELETED if terms.action == "delete" else keys.DEAD
    queues = (keys.queue(one.queue) if one.queue else elsewhere for one in moves)
    return [SET_KEYS[terms.kind], keys.QUEUES, keys.DEAD, keys.COUNTERS, *queues]


def _script_arguments(terms: ActionTerms, moves: Sequence[PlannedAction]) -> list[Any]:
    return [
        *(len(moves), script_word(terms.action), *terms.dead_set),
        "" if terms.score is None else f"{terms.score:.6f}",
        *(part for column in zip(*moves, strict=True) for part in column),
    ]


PAGE, OVERLAP = 50, 50
"""Entries that each step reads, and entries of the step before that it reads again: as many may leave between two steps
without hiding another entry."""


def ordered_entries(client: "redis.Redis", key: str, *, newest_first: bool) -> Iterator[tuple[bytes, float]]:
    """Yield each entry that stays in the set during the read, once, with its score: the lowest score first, or the highest.

    A page begins at the score of the last entry, not at a number of entries: entries that come or go meanwhile, before
    it or after it, hide none. Raises redis errors.
    """
    edge: str | float = "+inf" if newest_first else "-inf"
    limit = "-inf" if newest_first else "+inf"
    # The entries that have the score of the edge, and were yielded.
    seen: set[bytes] = set()
    offset = 0
    while True:
        reply: Any = client.zrange(
            key,
            # redis-py sends the bounds as they are: the higher one comes first in the descending order.
            edge,  # pyright: ignore[reportArgumentType]
            limit,  # pyright: ignore[reportArgumentType]
            desc=newest_first,
            withscores=True,
            byscore=True,
            offset=offset,
            num=PAGE + OVERLAP,
        )
        page: list[tuple[bytes, float]] = reply
        if offset and (not page or page[0][0] not in seen):
            # More entries of this score have left than the overlap has: read all of them again.
            offset = 0
            continue
        fresh = [(member, score) for member, score in page if member not in seen]
        if not fresh:
            return
        for member, score in fresh:
            if score != edge:
                edge, seen = score, set()
            seen.add(member)
            yield member, score
        offset = max(0, len(seen) - OVERLAP)
