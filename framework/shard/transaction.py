"""A slice of a bulk push as a transaction: what writes its jobs also notes that they are in, so that it can be repeated."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

from framework.store.script import NOTE_PUSHED
from framework.wire import keys

TOKEN_S = 600
"""How long a slice of a bulk push is known to be in: until then it may be repeated."""

TOKEN_MS = TOKEN_S * 1_000
_SENTINEL = b""

Command: TypeAlias = tuple[Any, ...]


class Transaction(Protocol):
    """The commands between MULTI and EXEC, and the same jobs without a note of them."""

    @property
    def key(self) -> str:
        """Return the key that notes it."""
        ...

    @property
    def commands(self) -> Sequence[Command]:
        """Return what is carried out as a whole or not at all."""
        ...

    @property
    def job_commands(self) -> slice:
        """Return which of the commands write the jobs."""
        ...

    def plain_commands(self) -> Sequence[Command]:
        """Return the commands for a Redis that refuses the note."""
        ...

    def remaining_commands(self) -> Sequence[Command]:
        """Return the commands that are left where the note and MULTI are refused: Redis carried out the others at once."""
        ...


class QueueTransaction:
    """Append jobs, oldest first, to a queue.

    The last job goes into its queue by way of the token's key: RPUSH of a mark and of that job, then LMOVE. So the key holds the
    mark alone where the jobs are in, and the job as well where the queue turned out to be of another type. A script that looks at
    the type says the same, but costs Redis 16 us a slice where these commands cost 6 (decision 166).
    """

    def __init__(self, token: str, queue: str, payloads: Sequence[bytes]) -> None:
        self.key = keys.pushed(token)
        self._queue_key = keys.queue(queue)
        self._payloads = payloads
        writes: list[Command] = [("LMOVE", self.key, self._queue_key, "RIGHT", "LEFT")]
        if len(payloads) > 1:
            writes.insert(0, ("LPUSH", self._queue_key, *payloads[:-1]))
        self.commands: Sequence[Command] = (
            ("RPUSH", self.key, _SENTINEL, payloads[-1]),
            *writes,
            ("PEXPIRE", self.key, TOKEN_MS),
        )
        self.job_commands = slice(1, 1 + len(writes))

    def plain_commands(self) -> Sequence[Command]:
        """See ``Transaction``."""
        return [("LPUSH", self._queue_key, *self._payloads)]

    def remaining_commands(self) -> Sequence[Command]:
        """See ``Transaction``."""
        return [("LPUSH", self._queue_key, self._payloads[-1])]


class ScheduleTransaction:
    """Put jobs into the ``schedule`` set. No command moves a member between such sets: a script looks at the type and notes it."""

    def __init__(self, token: str, writes: Sequence[Command]) -> None:
        self.key = keys.pushed(token)
        self._writes = writes
        self.commands: Sequence[Command] = (*writes, ("EVAL", NOTE_PUSHED.code, 2, self.key, keys.SCHEDULE, TOKEN_MS))
        self.job_commands = slice(0, len(writes))

    def plain_commands(self) -> Sequence[Command]:
        """See ``Transaction``."""
        return self._writes

    def remaining_commands(self) -> Sequence[Command]:
        """See ``Transaction``: none, as no job goes by way of the note."""
        return ()
