"""Define the fields of a batch's jobs, and the argument of the script that writes them (``batch_push.lua``)."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from framework.errors import PayloadError
from framework.typeguards import is_mapping
from framework.types import Payload
from framework.wire.json import dumps, loads
from framework.wire.workflow_fields import StepPart

BID = "bid"
"""Field of a job: the id of its batch (Sidekiq Pro's). Other writers' batches have ids of another form, and are left alone."""

BATCH_EVENT = "aw_batch_event"
"""Field of a callback: the batch and the event that enqueued it, ``[BID, EVENT]``."""

KEPT = "aw_kept"
"""Field of a job whose batch keeps the results of its jobs: its place among them, by which they are ordered."""

BatchEventName: TypeAlias = Literal["complete", "success", "death", "finished"]
"""Complete: every job has run. Success: all succeeded. Death: the first job died. Finished: every job has ended."""

EVENTS: tuple[BatchEventName, ...] = ("complete", "success", "death", "finished")

BatchMembers: TypeAlias = Literal["failed", "dead", "children"]
"""The sets of a batch: jobs that failed and will run again, jobs that died, nested batches."""

BatchAction: TypeAlias = Literal["invalidate", "cancel", "delete", "callback"]
"""The actions of ``batch_change.lua`` on a batch."""

KEEPS_RESULTS = "keeps_results"
"""Field of a batch: the results of its jobs are kept."""

RESULTS_FULL = b":full"
"""Field of the results of a batch: one of them did not fit into the limit of all. Fields of jobs begin with no colon."""

_PREFIX = "aw-"
_KEPT_AT = "of"


def new_bid() -> str:
    """Return the id of a new batch."""
    return _PREFIX + secrets.token_urlsafe(9)


def is_bid(value: object) -> bool:
    """Return whether a value is the id of a batch of this framework."""
    return isinstance(value, str) and value.startswith(_PREFIX) and len(value) > len(_PREFIX)


def bid_of(payload: Payload | None) -> str:
    """Return the id of the batch of a job, empty for none. A batch of Sidekiq Pro does not count."""
    bid = None if payload is None else payload.get(BID)
    return str(bid) if is_bid(bid) else ""


def answer_of_batch(answer: str, bid: str, place: int) -> str:
    """Return an answer that names the batch that keeps it, and its place there: a signature covers both."""
    return f"{answer[:-1]},{dumps({_KEPT_AT: [bid, place]}).decode()[1:]}"


def kept_at(answer: bytes) -> Any:
    """Return the batch and the place that an answer names, ``None`` for none."""
    try:
        fields: Any = loads(answer, None)
    except PayloadError:
        return None
    found: Any = fields.get(_KEPT_AT) if is_mapping(fields) else None
    return found


class Callback(NamedTuple):
    """A callback, ready to be enqueued: its queue, empty for a queue of another shard, and its payload without times."""

    queue: str
    payload: bytes

    def encode(self) -> list[str]:
        """Return the callback as the script stores it."""
        return [self.queue, self.payload.decode()]


@dataclass(slots=True)
class NewBatch:
    """The facts of a batch that the next write creates."""

    description: str
    parent: str
    callback_queue: str
    callbacks: Mapping[BatchEventName, Sequence[Callback]]
    keeps_results: bool = False

    def fields(self) -> dict[str, str]:
        """Return the fields of its HASH, without the counts."""
        found = {"description": self.description, "parent": self.parent, "callback_queue": self.callback_queue}
        if self.keeps_results:
            found[KEEPS_RESULTS] = "1"
        for event, callbacks in self.callbacks.items():
            found[f"on_{event}"] = dumps([one.encode() for one in callbacks]).decode()
        return {name: value for name, value in found.items() if value}


@dataclass(slots=True)
class BatchGroup:
    """Jobs of one write for one queue, or (an empty queue) for the schedule set, oldest first."""

    queue: str
    payloads: list[bytes] = field(default_factory=list[bytes])
    dues: list[str] = field(default_factory=list[str])
    """For the schedule set, one for each job: epoch seconds, or ``+SECONDS`` after the write, by Redis's clock."""
    lock_requests: dict[int, str] = field(default_factory=dict[int, str])
    """The lock requests of deduplicated jobs, by the index of the job (``LockRequest.encode``)."""


@dataclass(slots=True)
class BatchWrite:
    """The jobs of a block that one step writes, with the counts of the batch."""

    bid: str
    token: str
    """A write with the same token is done once."""
    ttl_s: int
    create: NewBatch | None = None
    opens: bool = False
    """Whether more jobs of the block follow in a later write: no event but a death happens before the last write."""
    closes: bool = False
    """Whether this is the last write of a block that had opened the batch."""
    groups: Sequence[BatchGroup] = ()
    statuses: Sequence[Sequence[str]] = ()
    """The SET commands of tracked jobs, without their first word."""
    part: StepPart | None = None
    """The part of a workflow's step that this write has."""

    def head(self, token_ms: int) -> bytes:
        """Return the first argument of the script."""
        create = None if self.create is None else self.create.fields()
        groups = [{"queue": one.queue, "n": len(one.payloads), "dues": one.dues} for one in self.groups]
        found: dict[str, Any] = {
            "bid": self.bid,
            "token_ms": token_ms,
            "ttl_s": self.ttl_s,
            "create": create,
            "opens": self.opens,
            "closes": self.closes,
            "groups": groups,
            "locks": [{str(index): text for index, text in one.lock_requests.items()} for one in self.groups],
            "statuses": [list(one) for one in self.statuses],
            "part": None if self.part is None else asdict(self.part),
        }
        return dumps(found)

    def payloads(self) -> list[bytes]:
        """Return the payloads of all groups, in their order."""
        return [payload for one in self.groups for payload in one.payloads]


class BatchReply(NamedTuple):
    """The answer of ``batch_push.lua``."""

    code: int
    """1: written; 2: a part of a step that was written before; else one of the constants below, and nothing was written."""
    owners: Sequence[Sequence[Any]]
    """Of each dropped duplicate: group and index, from 0, and the jid of the job that it duplicates."""


WRITTEN_BEFORE, WRITTEN, UNKNOWN, SUCCEEDED, CANCELLED, NO_PARENT, PARENT_CANCELLED = 2, 1, 0, -1, -2, -3, -4
"""Codes: the part of a step was written before; written; there is no such batch; it has succeeded; it was cancelled; its parent is
unknown, succeeded or cancelled."""
