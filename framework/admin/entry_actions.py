"""Carry out planned actions on the entries of a sorted set: slices of one script call each."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import redis

from framework.admin.entry_plan import (
    SET_KEYS,
    EntryAction,
    JobSetKind,
    PlannedAction,
    Refusal,
    plan_action,
    script_word,
)
from framework.declare.options import due_at
from framework.settings.model import CoreSettings
from framework.store.connect import server_time
from framework.store.script import ACT_ON_ENTRIES
from framework.wire import keys

SLICE_JOBS, SLICE_BYTES = 100, 1_000_000
"""The most that one script call moves (one job always goes), so that others do not wait for Redis."""

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


def act(client: "redis.Redis", terms: ActionTerms, members: Sequence[bytes]) -> Iterator[ActedSlice]:
    """Carry out the action on each member, in slices of one atomic step each; yield after every slice.

    Raises redis errors: the slices before the failed one are done, and the failed one is done as a whole or not at all.
    """
    now = time.time()
    for part in slices(members):
        planned: list[PlannedAction | Refusal] = [
            plan_action(terms.kind, terms.action, member, now, terms.decoded_limit, terms.delay_s) for member in part
        ]
        yield _run(client, terms, planned)


def slices(members: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Yield the members in groups of bounded number and size."""
    part: list[bytes] = []
    size = 0
    for member in members:
        if part and (len(part) == SLICE_JOBS or size + len(member) > SLICE_BYTES):
            yield part
            part, size = [], 0
        part.append(member)
        size += len(member)
    if part:
        yield part


def _run(client: "redis.Redis", terms: ActionTerms, planned: Sequence[PlannedAction | Refusal]) -> ActedSlice:
    moves = [one for one in planned if isinstance(one, PlannedAction)]
    replies: Iterator[int] = iter(())
    trimmed = 0
    if moves:
        reply: Any = ACT_ON_ENTRIES(client, _script_keys(terms, moves), _script_arguments(terms, moves))
        replies, trimmed = iter(reply[0]), int(reply[1])
    outcomes: list[EntryOutcome] = [
        _OUTCOMES[next(replies)] if isinstance(one, PlannedAction) else one for one in planned
    ]
    return ActedSlice(outcomes, trimmed)


def _script_keys(terms: ActionTerms, moves: Sequence[PlannedAction]) -> list[str]:
    queues = (keys.queue(one.queue) if one.queue else keys.DEAD for one in moves)
    return [SET_KEYS[terms.kind], keys.QUEUES, keys.DEAD, keys.COUNTERS, *queues]


def _script_arguments(terms: ActionTerms, moves: Sequence[PlannedAction]) -> list[Any]:
    return [
        *(len(moves), script_word(terms.action), *terms.dead_set),
        "" if terms.score is None else f"{terms.score:.6f}",
        *(part for column in zip(*moves, strict=True) for part in column),
    ]
