"""Transfer due jobs to another shard. No move between shards is atomic: write there first, then remove here.

1. ``enqueue_due.lua`` marks the job, still here and still due, with a token that names the other shard (field ``aw_transfer``).
2. ``receive_transfer.lua`` writes it to its queue there and, in the same step, a guard named by the token: never one without
   the other. In that step a job of a deduplicated class takes its lock there, or is dropped as a duplicate.
3. ``enqueue_due.lua`` removes it here, with its lock here.

At a crash: a death after 1 or 2 leaves the job in its set here. The next poll, of any process, finds the mark and continues
with the same token; the guard then shows that the job is already there. Competing pollers use the same token too.

A marked job may have another way meanwhile: the rules, or a move between shards, have changed, or this process knows them before or
after others. It may be written there already, and a suspended poller may still write it. So its transfer is called off there first
(decision 287): if it was written, it is removed here; else a guard refuses every later write, and ``enqueue_due.lua`` removes the
mark.
"""

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol, TypeAlias, cast

import redis
from redis.exceptions import RedisError

from framework.process_clock import process_clock
from framework.shard.shard import Shard
from framework.store.connect import server_time
from framework.store.script import FIND_OWNERS, RECEIVE_TRANSFER
from framework.telemetry.job_events import JobsEnqueued
from framework.types import Jid, Payload
from framework.wire import keys
from framework.wire.job import TRANSFER, decode, rewrite
from framework.wire.json import dumps, loads_object
from framework.wire.resources import FENCE_MS, former_owner

GUARD_S = 86_400
"""The lifetime of a guard while the job may still be on its old shard: longer than an outage of that shard."""

TRANSFERRED_GUARD_S = 60
"""The lifetime of a guard after the job is removed there: longer than ``TRANSFER_WITHIN_S``."""

TRANSFER_WITHIN_S = 30.0
"""How long the read of the old shard is valid. A later transfer, by a poller that was suspended, writes nothing: the job may be
removed and its guard expired."""

ANSWER_WITHIN_S = 0.5
"""How long the due jobs of this shard wait for another one that does not answer, once in ``UNAVAILABLE_S``."""

UNAVAILABLE_S = 10.0
"""How long a shard that did not answer is skipped. Its jobs are delayed without a timeout per page."""

_STAYS = -2
"""The reply for a job whose transfer is called off."""


class PollEvents(Protocol):
    """Receive the events of the poller."""

    def due_job_malformed(self, source: str, data: bytes, error: BaseException) -> None:
        """Report a member that could not be read and went to the dead set (``wire/malformed.py``)."""

    def due_job_failed(self, source: str, error: BaseException) -> None:
        """Report a client middleware that raised for a due job. The job stays in its set and is due again in a minute."""

    def due_job_dropped(self, source: str, payload: Payload) -> None:
        """Report a due job that a client middleware dropped by not yielding, as at a push."""

    def due_set_wrong_type(self, source: str, error: BaseException) -> None:
        """Report that the key of ``retry`` or ``schedule`` has another type."""

    def shard_failed(self, shard: str, error: BaseException) -> None:
        """Report another shard that did not receive its due jobs. They are due again in a minute."""

    def queue_wrong_type(self, queue: str) -> None:
        """Report a queue whose key is not a list. The job is due again in a minute."""

    def trimmed(self, count: int) -> None:
        """Report old entries removed from the dead set."""


Action: TypeAlias = Literal["queue", "dead", "mark", "delay", "remove"]
"""The actions of ``enqueue_due.lua``."""


@dataclass(frozen=True, slots=True)
class DueAction:
    """Hold the action for one due job; ``data`` are the bytes to write.

    ``before`` is called before the action and may raise redis errors: then nothing is done. ``on_done`` is called after it.
    """

    member: bytes
    action: Action
    data: bytes = b""
    queue: str = ""
    before: Callable[[], None] | None = None
    on_done: Callable[[], None] | None = None
    lock_argument: bytes | str = b""
    """The lock request of a job that goes to its queue; the resources of a job that ends."""
    enqueued: JobsEnqueued | None = None
    """Emitted when the job is in its queue."""
    on_duplicate: Callable[[Jid], None] | None = None
    """Called with the jid of the lock's owner if the job was dropped as its duplicate."""


@dataclass(frozen=True, slots=True)
class ShardTransfer:
    """Hold one due job for another shard: written there under ``token``, then removed here."""

    member: bytes
    data: bytes
    queue: str
    shard: str
    token: str
    lock_request: bytes = b""
    """The request for its lock on the other shard."""
    resources: str = ""
    """Its resources on this shard."""
    on_duplicate: Callable[[Jid], None] | None = None
    """As in ``DueAction``."""
    enqueued: JobsEnqueued | None = None
    looks_here: bool = False
    """Whether an equal job on this shard has the lock: jobs are moving between shards."""
    calls_off: bool = False
    """Whether the job has another way now: it is not written there any more, unless it has been."""


# No move between two servers is atomic. The job is marked on its old shard with a token; the new shard writes it with a guard key of
# that token; then the old one removes it. It runs twice only if its old shard is away for a day in between.
class CrossShardTransfer:
    """Transfer jobs from ``local_shard``, whose client is ``client``, to the others of ``shards``."""

    def __init__(
        self,
        client: "redis.Redis",
        local_shard: str,
        shards: Mapping[str, Shard],
        events: PollEvents,
    ) -> None:
        self._client = client
        self._local_shard = local_shard
        self._shards = shards
        self._events = events
        self._unavailable_until: dict[str, float] = {}
        self._asking: dict[str, redis.Redis] = {}

    def is_remote(self, shard: str) -> bool:
        return shard != self._local_shard

    def may_have(self, shard: str) -> bool:
        """Return whether it is another shard of the settings, which may have a job that is marked with its name."""
        return self.is_remote(shard) and shard in self._shards

    def is_unavailable(self, shard: str) -> bool:
        return process_clock.monotonic() < self._unavailable_until.get(shard, 0.0)

    def pool(self, shard: str) -> "redis.Redis":
        """Return the application's client of a job's shard, for middlewares."""
        return self._shards[shard].pool

    def transfer(self, source: str, transfers: Sequence[ShardTransfer]) -> list[DueAction]:
        """Write due jobs of ``source`` to their shards; return the actions that remain here. Raises redis errors of this shard."""
        groups: dict[tuple[str, bool], list[ShardTransfer]] = {}
        for transfer in transfers:
            # Apart, as a full shard refuses jobs, but not that one stays here.
            groups.setdefault((transfer.shard, transfer.calls_off), []).append(transfer)
        return [action for (shard, _), group in groups.items() for action in self._transfer_to(source, shard, group)]

    def _transfer_to(self, source: str, shard: str, group: Sequence[ShardTransfer]) -> list[DueAction]:
        there = self._shards[shard].client
        # A frozen shard would hold the due jobs of this one for the whole timeout of a command, so a client with less patience asks.
        asking = self._asking.get(shard)
        if asking is None:
            asking = self._asking[shard] = self._shards[shard].open_client("transfer", read_timeout_s=ANSWER_WITHIN_S)
        try:
            now = server_time(asking)
        except (RedisError, OSError) as error:
            return self._delay(shard, group, error)
        # The page may be old (a slow middleware): do not write jobs that have been removed since.
        present = self._still_due(source, group)
        if not present:
            return []
        names = [keys.QUEUES]
        for one in present:
            names += [keys.transferred(one.token), keys.queue(one.queue)]
        until = f"{now + TRANSFER_WITHIN_S:.6f}"
        data, queues = [one.data for one in present], [one.queue for one in present]
        try:
            lock_requests = self._lock_requests(present) if any(one.lock_request for one in present) else []
            replies: Any = RECEIVE_TRANSFER(
                there, names, [len(present), GUARD_S * 1000, until, *data, *queues, *lock_requests]
            )
        except (RedisError, OSError) as error:
            return self._delay(shard, present, error)
        return [self._action_after(one, reply) for one, reply in zip(present, replies, strict=bool(replies))]

    def _lock_requests(self, group: Sequence[ShardTransfer]) -> list[bytes]:
        """Return the lock requests with the owners of these locks here, as a push to another shard looks for them (decision 285)."""
        if not any(one.looks_here for one in group):
            return [one.lock_request for one in group]
        requests: list[dict[str, Any]] = [loads_object(one.lock_request) for one in group]
        asked = [one for one in requests if one]
        calls: list[tuple[list[str], list[Any]]] = [
            (
                [one["key"]],
                [dumps([one["jid"]]), "1" if one["drops"] else "", FENCE_MS, dumps({"positions": one["positions"]})],
            )
            for one in asked
        ]
        for one, reply in zip(asked, FIND_OWNERS.each(self._client, calls), strict=True):
            # A key of another type, or without the right to it, is no lock.
            owners = cast("list[Any]", reply) if isinstance(reply, list) else [b""]
            if found := former_owner(owners[0]):
                one["former"] = found
        return [dumps(one) if one else b"" for one in requests]

    def _still_due(self, source: str, group: Sequence[ShardTransfer]) -> list[ShardTransfer]:
        members: list[Any] = [one.member for one in group]
        scores: Any = self._client.zmscore(source, members)
        return [one for one, score in zip(group, scores, strict=True) if score is not None]

    def _delay(self, shard: str, group: Sequence[ShardTransfer], error: Exception) -> list[DueAction]:
        self._unavailable_until[shard] = process_clock.monotonic() + UNAVAILABLE_S
        self._events.shard_failed(shard, error)
        return [DueAction(one.member, "delay") for one in group]

    def _action_after(self, transfer: ShardTransfer, reply: int | bytes) -> DueAction:
        if isinstance(reply, bytes):
            if transfer.on_duplicate is not None:
                transfer.on_duplicate(reply.decode(errors="replace"))
        elif reply == _STAYS:
            # Behind the mark's removal only a poller that was suspended needs the guard.
            on_done = partial(self._shorten_guard_ttl, transfer)
            return DueAction(transfer.member, "mark", _unmarked(transfer.member), on_done=on_done)
        elif reply < 0:
            self._events.queue_wrong_type(transfer.queue)
            return DueAction(transfer.member, "delay")
        return DueAction(
            transfer.member,
            "remove",
            on_done=partial(self._shorten_guard_ttl, transfer),
            lock_argument=transfer.resources,
            # A duplicate is not in the queue.
            enqueued=None if isinstance(reply, bytes) else transfer.enqueued,
        )

    def _shorten_guard_ttl(self, transfer: ShardTransfer) -> None:
        """Shorten the guard's lifetime: no job with its token is here any more, so only a late transfer needs it."""
        try:
            self._shards[transfer.shard].client.expire(keys.transferred(transfer.token), TRANSFERRED_GUARD_S)
        # The guard expires by itself.
        except (RedisError, OSError) as error:
            self._events.shard_failed(transfer.shard, error)


def token_for(shard: str) -> str:
    """Return a new token for the transfer of a job to a shard."""
    return f"{uuid.uuid4().hex}:{shard}"


def shard_of_token(token: str) -> str:
    """Return the shard that a token names; empty for a token of another program."""
    return token.partition(":")[2]


def _unmarked(member: bytes) -> bytes:
    payload = decode(member, None)
    payload.pop(TRANSFER, None)
    return rewrite(member, payload)
