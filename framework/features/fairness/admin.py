"""Change the priority of a job that waits: it moves behind the other jobs of its new level, in one step."""

from typing import Any, Literal, NamedTuple, TypeAlias, cast

import redis

from framework.admin.access import ask, check_jid, check_writable, raise_first
from framework.admin.audit import audited
from framework.admin.search import JobLocation, search
from framework.admin.statistics import OnProgress, ignore_progress
from framework.async_twin import async_twin
from framework.errors import JobRefusedError
from framework.features.fairness.store import CHANGE_PRIORITY
from framework.store.script import REPLACE
from framework.text import did_you_mean
from framework.types import Jid, Priority
from framework.wire import keys
from framework.wire.job import rewrite
from framework.wire.sub_queues import LEVELS, PRIORITY, SUB_QUEUE, at_level, list_of, parent_of

PriorityOutcome: TypeAlias = Literal["done", "same", "gone", "wrong type", "held", "no priority", "not waiting"]
"""The outcome for one job; ``gone``: another program moved it meanwhile, and nothing was written."""

_SETS = {"scheduled": keys.SCHEDULE, "retry": keys.RETRY}
_REPLIES: dict[int, PriorityOutcome] = {1: "done", 0: "gone", -1: "wrong type"}


class PriorityChange(NamedTuple):
    """One job that was found, with its outcome."""

    shard: str
    place: str
    jid: Jid
    outcome: PriorityOutcome


def check_level(level: str) -> Priority:
    if level not in LEVELS:
        raise ValueError(f"{level!r} is no priority{did_you_mean(level, LEVELS)}: give one of {', '.join(LEVELS)}")
    return level


def change_on_shard(
    client: "redis.Redis", shard: str, jid: Jid, level: Priority, on_progress: OnProgress = ignore_progress
) -> list[PriorityChange]:
    """Change the priority of the job at each place of the shard where it is. Raises redis errors."""
    return [
        PriorityChange(shard, one.store.kind, jid, _change(client, one, level))
        for one in search(client, jid, on_progress)
    ]


def _change(client: "redis.Redis", found: JobLocation, level: Priority) -> PriorityOutcome:
    payload, kind = found.payload, found.store.kind
    if kind in ("waiting", "paused", "migrating"):
        return "held"
    if kind != "queue" and kind not in _SETS:
        return "not waiting"
    field, name = at_level(payload.get(SUB_QUEUE), level), found.store.name
    # It may have moved on to a queue whose processes know of no levels.
    if field is None or (kind == "queue" and parent_of(field) != parent_of(name)):
        return "no priority"
    target = list_of(field)
    # A job that waits in the queue's own list is the next to run, or has been returned.
    if payload[SUB_QUEUE] == field and (kind != "queue" or name == target):
        return "same"
    payload[PRIORITY], payload[SUB_QUEUE] = level, field
    data = rewrite(found.data, payload)
    if kind == "queue":
        moved: Any = CHANGE_PRIORITY(
            client, [keys.queue(name), keys.queue(target), keys.QUEUES], [found.data, data, name, target]
        )
        return _REPLIES[moved]
    (replaced,) = cast("list[int]", REPLACE(client, [_SETS[kind]], [1, found.data, data]))
    return _REPLIES[replaced]


def outcome_text(outcome: PriorityOutcome) -> str:
    """Return the outcome as text, with the remedy for a job that stays as it was."""
    return _TEXTS[outcome]


_TEXTS: dict[PriorityOutcome, str] = {
    "done": "has the priority now, behind the other jobs of the level",
    "same": "had the priority before",
    "gone": "not there any more: another program moved it meanwhile; run it again",
    "wrong type": "stays as it is: the key of the new level is not a list: remove that key",
    "held": "stays as it is: it is held at a limit or by a pause; run it again when it is back in its queue",
    "no priority": "stays as it is: no process looks for its level; declare the attribute priority in its class, and push it again",
    "not waiting": "stays as it is: it runs, or has ended; `jobs explain JID` says where it is",
}


def set_priority(jid: Jid, level: Priority, shard: str | None = None) -> bool:
    """Give a job in a queue, or one that is due later, another priority: it waits behind the other jobs of that level.

    Returns false if no shard has the job, or if another program moved it meanwhile: nothing was written then.

    Raises:
        TypeError, ValueError: ``level`` is no priority, or ``jid`` cannot be a job's id.
        JobRefusedError: the job is held, runs or has ended, or its class declares no priority.
        ReadOnlyError: the call is inside of a ``read_only`` block.
        ShardUnavailableError: a shard does not answer.
        UnknownShardError: the configuration has no such shard.
    """
    check_writable("set_priority()")
    level = check_level(level)
    check_jid(jid)
    change = audited(
        "set_priority",
        lambda one: change_on_shard(one.client, one.name, jid, level),
        {"jid": jid, "level": level},
        lambda changes: sum(one.outcome == "done" for one in changes),
    )
    answers = ask(shard, change)
    outcomes: list[PriorityOutcome] = [one.outcome for changes in answers.by_shard.values() for one in changes]
    if "done" in outcomes or "same" in outcomes:
        return True
    raise_first(answers.unanswered)
    for outcome in outcomes:
        if outcome != "gone":
            raise JobRefusedError(f"the job {jid} {outcome_text(outcome)}.")
    return False


aset_priority = async_twin(set_priority)
