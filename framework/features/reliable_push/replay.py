"""Write a kept push to its shard, once where Redis can tell, and say where a job may run twice."""

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from time import monotonic
from typing import Literal, NamedTuple

from redis.exceptions import NoPermissionError

from framework.errors import BacklogFullError, ShardUnavailableError
from framework.features.reliable_push.kept_push import DamagedRecordError, KeptPush
from framework.features.reliable_push.push_file import Entry, PushFile
from framework.process_clock import process_clock
from framework.push.job_batch import JobBatch
from framework.shard.connection import TOKEN_S
from framework.shard.redis_errors import is_outage
from framework.shard.shard import Shard
from framework.telemetry import logs
from framework.telemetry.logs import LogRateLimit
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
        BacklogFullError: the backlog of the class is full.
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
        # Of a class that has moved since it goes to its old shard, which forwards it.
        unique = batch.unique._replace(former=[()] * len(batch.jids))
        return shard.enqueue_unique(batch.queue if batch.dues is None else None, unique, token, batch.counted)
    if batch.dues is None:
        shard.enqueue(batch.queue, batch.payloads, token, batch.statuses, batch.lists, batch.counted)
    else:
        entries = [(due.at, payload) for due, payload in zip(batch.dues, batch.payloads, strict=True)]
        shard.schedule(entries, token, batch.statuses, batch.counted)
    return ()


# The number of pushes that are marked as tried with one wait for the disk.
_GROUP_SIZE = 100
_LOG_INTERVAL_S = 60.0


@dataclass(slots=True)
class ReplayProgress:
    """Hold what one round did, and the shards and queues that it could not write to."""

    written: int = 0
    """Jobs that Redis has now, and had not before as far as it can tell."""
    found: int = 0
    """Jobs that Redis had already."""
    oldest_kept_at: float = math.inf
    """The time of the oldest push that is done."""
    up: set[str] = field(default_factory=set[str])
    """Shards that answered."""
    down: set[str] = field(default_factory=set[str])
    """Shards that do not answer."""
    refused: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    """Shards and queues whose jobs Redis refuses."""

    full: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    """Shards and classes whose backlog is full."""
    only: str | None = None
    """The shard whose pushes are replayed; ``None``: all."""

    def blocks(self, destination: tuple[str, str]) -> bool:
        """Return whether jobs of this shard and queue must wait, so that they keep their order."""
        is_left_out = self.only not in (None, destination[0])
        return is_left_out or destination[0] in self.down or destination in self.refused


class ReplayRound:
    """Replay pushes in one thread at a time. ``lock`` protects the entries of the files."""

    def __init__(self, shards: Mapping[str, Shard], lock: Callable[[], threading.Lock]) -> None:
        self._shards = shards
        self._lock = lock
        self._log_limit = LogRateLimit(_LOG_INTERVAL_S)

    def run(self, file: PushFile, result: ReplayProgress) -> None:
        """Replay the pushes of one file, as far as ``result`` does not block them, and add to it.

        Raises:
            OSError: the marks cannot be written.
        """
        with self._lock():
            pending = iter(list(file.entries.values()))
        while group := list(islice((entry for entry in pending if self._is_free(entry, result)), _GROUP_SIZE)):
            before = [entry.tried_at for entry in group]
            file.mark_tried(group, process_clock.now())
            for entry, tried_at in zip(group, before, strict=True):
                if result.blocks(entry.destination):
                    # Not tried after all.
                    entry.tried_at = tried_at
                else:
                    self._replay(file, entry, tried_at, result)

    def _is_free(self, entry: Entry, result: ReplayProgress) -> bool:
        """Return whether an entry may be tried; ask its shard first, so that an outage needs no wait for the disk."""
        if result.blocks(entry.destination):
            return False
        name, _ = entry.destination
        if name in result.up:
            return True
        shard = self._shards.get(name)
        if shard is None:
            result.refused.add(entry.destination)
            self._log_refused(entry, f"the configuration has no shard {name!r}", None)
            return False
        try:
            shard.time()
        except ShardUnavailableError:
            result.down.add(name)
            return False
        result.up.add(name)
        return True

    def _replay(self, file: PushFile, entry: Entry, tried_at: float | None, result: ReplayProgress) -> None:
        """Replay one push, and note that it is done."""
        shard = self._shards[entry.destination[0]]
        try:
            push = file.read(entry)
            if shard.held_back.next_at <= monotonic():
                shard.held_back.check(entry.worker)
            counted = push.batch.counted
            if counted is not None and (shard.name, counted.limit.worker) in result.full:
                entry.tried_at = tried_at
                return
            done = write_kept_push(shard, push, tried_at, process_clock.now())
        except ShardUnavailableError as error:
            if not error.maybe_written:
                entry.tried_at = tried_at
            if is_outage(error):
                result.down.add(shard.name)
            else:
                result.refused.add(entry.destination)
                self._log_refused(entry, "Redis refuses it", error)
            return
        except BacklogFullError as error:
            # Only its own class waits: jobs of others may pass it.
            entry.tried_at = tried_at
            result.full.add((shard.name, error.worker))
            return
        except DamagedRecordError:
            # The disk has lost what it had: the file is set aside at its end.
            with self._lock():
                file.damaged += 1
                file.forget(entry)
            return
        with self._lock():
            file.mark_done(entry)
        _count(push, done, result)
        _log(push, done)

    def _log_refused(self, entry: Entry, reason: str, error: ShardUnavailableError | None) -> None:
        shard, queue = entry.destination
        self._log_limit.error(
            f"{shard} {queue}",
            f"a kept push stays in its file: {reason}. It is tried again; look at the error",
            "push.replay_refused",
            shard=shard,
            queue=queue,
            error=error,
        )


def _count(push: KeptPush, done: ReplayResult, result: ReplayProgress) -> None:
    result.oldest_kept_at = min(result.oldest_kept_at, push.kept_at)
    if done.outcome == "found":
        result.found += len(push.batch.jids)
    else:
        result.written += len(push.batch.jids)


def _log(push: KeptPush, done: ReplayResult) -> None:
    """Log what a caller of the push cannot know: duplicates, and jobs that may run twice."""
    jids = push.batch.jids
    about = {"shard": push.shard, "queue": push.batch.queue}
    if done.outcome == "found":
        logs.logger(jid=jids[0], **about).info(
            "a kept push was not written again: Redis has its jobs already",
            event_name="push.duplicate",
            jobs=len(jids),
        )
    if done.outcome == "doubtful":
        logs.logger(jid=jids[0], **about).warning(
            "a job may run twice: the reply to its push was lost, and Redis does not tell whether it has run. It is pushed again",
            event_name="push.maybe_twice",
            jobs=len(jids),
        )
    for jid, owner in zip(jids, done.owners, strict=False):
        if owner:
            logs.logger(jid=jid, **about).info(
                "a kept push found the lock of an equal job",
                event_name="push.duplicate",
                **{"duplicate-of": owner},
            )
