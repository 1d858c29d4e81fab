"""Write a kept push to its shard, once where Redis can tell, and say where a job may run twice."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from redis.exceptions import NoPermissionError

from framework.errors import ShardUnavailableError
from framework.features.reliable_push.kept_push import KeptPush
from framework.push.job_batch import JobBatch
from framework.shard.connection import TOKEN_S
from framework.shard.shard import Shard
from framework.types import Jid

# Redis deletes a token after TOKEN_S. The margin is for clocks that differ, and for commands on their way.
_TOKEN_VALID_S = TOKEN_S - 30.0


class ReplayResult(NamedTuple):
    """Say what a replay did.

    ``written``: Redis has the jobs now. ``found``: it had them before. ``doubtful``: it has them now, and perhaps had them before,
    so that they may run twice.
    """

    outcome: Literal["written", "found", "doubtful"]
    owners: Sequence[Jid] = ()
    """For each job of a deduplicated class the job that owns its lock, empty for none."""


def write_kept_push(shard: Shard, push: KeptPush, tried_at: float | None, now: float) -> ReplayResult:
    """Write the jobs of a push, unless they are in Redis already.

    Raises:
        ShardUnavailableError: the shard does not answer, or refuses.
    """
    batch = push.batch
    token_expired = tried_at is not None and not 0 <= now - tried_at <= _TOKEN_VALID_S
    # Asked before each try, also after a refusal: a transaction that Redis refused in part leaves its token, which this call
    # deletes. The script of a deduplicated class reads the token itself.
    if batch.unique is None and _is_pushed(shard, push.token):
        return ReplayResult("found")
    doubtful = push.in_doubt or token_expired
    if doubtful and _is_waiting(shard, batch):
        return ReplayResult("found")
    owners = _write(shard, push.at_replay(now, shard.time()), push.token)
    return ReplayResult("doubtful" if doubtful else "written", owners)


def _is_pushed(shard: Shard, token: str) -> bool:
    try:
        return shard.is_pushed(token)
    except ShardUnavailableError as error:
        # Without the right to tokens they were not written either.
        if isinstance(error.__cause__, NoPermissionError):
            return False
        raise


def _is_waiting(shard: Shard, batch: JobBatch) -> bool:
    """Return whether the jobs wait in Redis. A job that runs, or has run, is not found."""
    # All jobs of a chunk are written or none, and the last is taken last.
    last = batch.payloads[-1]
    try:
        return shard.is_waiting(None if batch.dues is not None else batch.queue, last)
    except ShardUnavailableError as error:
        if isinstance(error.__cause__, NoPermissionError):
            return False
        raise


def _write(shard: Shard, batch: JobBatch, token: str) -> Sequence[Jid]:
    if batch.unique is not None:
        return shard.enqueue_unique(batch.queue if batch.dues is None else None, batch.unique, token)
    if batch.dues is None:
        shard.enqueue(batch.queue, batch.payloads, token, batch.statuses)
    else:
        entries = [(due.at, payload) for due, payload in zip(batch.dues, batch.payloads, strict=True)]
        shard.schedule(entries, token, batch.statuses)
    return ()
