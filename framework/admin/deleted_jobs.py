"""Show the jobs that operators have deleted from sets in the last 24 hours, and bring them back."""

from collections.abc import AsyncIterator, Iterator
from typing import cast, get_args

from redis.exceptions import RedisError

from framework.admin import port
from framework.admin.access import iterate
from framework.admin.audit import audited
from framework.admin.entries import SET_KEYS, WAITING_SETS, JobSetKind, on_return, ordered_entries
from framework.admin.job_record import JobRecord
from framework.async_twin import async_items, async_twin
from framework.errors import JobRefusedError, PayloadError
from framework.settings.model import CoreSettings
from framework.shard.redis_errors import unavailable_error
from framework.shard.shard import Shard
from framework.store.connect import server_time
from framework.store.script import UNDO_DELETE
from framework.types import Jid
from framework.wire import keys
from framework.wire.job import clamp_time, decode, rewrite
from framework.wire.json import stored_time
from framework.wire.protected import SIGNATURE
from framework.wire.waiters import held_fields

KEPT_S = 24 * 3_600.0
"""For how long a deletion can be undone: the script trims older ones (``act_on_entries.lua``)."""


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
        kind = self.place
        what = {"place": kind, "jid": self.jid, "class": self.display_class}
        act = audited("DeletedJob.undo", self._restore, what, lambda done: max(0, done))
        try:
            done = act(self._home)
        except (RedisError, OSError) as error:
            raise unavailable_error(self.shard, self._home.endpoint, error) from error
        if done < 0:
            raise JobRefusedError(
                f"the job {self.jid} stays deleted: the key of its set is not a sorted set: remove it."
            )
        return done > 0

    aundo = async_twin(undo)

    def _restore(self, home: Shard) -> int:
        """Return 1 if it is back, 0 if it was gone, -1 if its set's key is of another type. Raises JobRefusedError, redis errors."""
        if self.place is None:
            raise JobRefusedError("the entry stays deleted: it does not name the set that it comes from.")
        data = self._without_waiters()
        delay_s = max(0.0, self.score - server_time(home.client)) if self.place in WAITING_SETS else 0.0
        holds = on_return(self.place, self.payload, delay_s)
        names = [keys.DELETED, SET_KEYS[self.place]]
        done: int = home.run_script(UNDO_DELETE, names, [self.member, f"{self.score:.6f}", data, holds])
        return done

    def _without_waiters(self) -> bytes:
        """Return the payload without the fields of its batch, workflow and caller. Raises JobRefusedError."""
        fields = held_fields().intersection(self.payload)
        if not fields:
            return self.data
        if SIGNATURE in self.payload:
            raise JobRefusedError(
                f"the job {self.jid} stays deleted: its batch has counted it as removed, and its signature names the batch. "
                "Push it again."
            )
        try:
            payload = decode(self.data, self._settings.size_limit.decoded_limit)
            return rewrite(self.data, {name: value for name, value in payload.items() if name not in fields})
        except PayloadError as error:
            raise JobRefusedError(f"the job {self.jid} stays deleted: {error.reason}.") from None


class DeletedJobs:
    """The deleted jobs of one shard or all, the last one first: at most 10,000 and 50 MB of a shard, for 24 hours."""

    def __init__(self, shard: str | None = None) -> None:
        self.shard = shard

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self.shard or 'all shards'}>"

    def __iter__(self) -> Iterator[DeletedJob]:
        """Yield every job. Raises ShardUnavailableError after the last one if a shard did not answer."""
        return iterate(self.shard, read_deleted)

    def __aiter__(self) -> AsyncIterator[DeletedJob]:
        """Yield as a loop without ``async``, without blocking the event loop."""
        return async_items(self)

    def find(self, jid: Jid) -> DeletedJob | None:
        """Return the job with this id that was deleted last, ``None`` if there is none. Raises as a loop."""
        return next((one for one in self if one.jid == jid), None)

    afind = async_twin(find)


def deleted(shard: str | None = None) -> DeletedJobs:
    """Return the jobs that operators have deleted from sets in the last 24 hours. ``DeletedJob.undo`` brings one back."""
    return DeletedJobs(shard)


def read_deleted(home: Shard) -> Iterator[DeletedJob]:
    """Yield the deleted jobs of a shard, the last one first. Raises redis errors."""
    settings, oldest = port.current().settings, server_time(home.client) - KEPT_S
    for member, at in ordered_entries(home.client, keys.DELETED, newest_first=True):
        if at < oldest:
            return
        yield DeletedJob(home, member, at, settings)
