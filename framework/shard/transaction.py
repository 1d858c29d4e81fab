"""Build the transaction of a bulk push's chunk: it writes the jobs and records its token, so that it can be repeated."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

from framework.store.script import NOTE_PUSHED
from framework.wire import keys

TOKEN_S = 600
"""How long Redis keeps the token of a written chunk. Until then the chunk may be repeated."""

TOKEN_MS = TOKEN_S * 1_000
_SENTINEL = b""

Command: TypeAlias = tuple[Any, ...]


class Transaction(Protocol):
    """Hold the commands between MULTI and EXEC, and the commands that write the same jobs without a token."""

    @property
    def key(self) -> str:
        """Return the key of the token."""
        ...

    @property
    def commands(self) -> Sequence[Command]:
        """Return the commands that are executed as a whole or not at all."""
        ...

    @property
    def job_commands(self) -> slice:
        """Return the slice of the commands that write the jobs."""
        ...

    def plain_commands(self) -> Sequence[Command]:
        """Return the commands for a Redis that refuses the token."""
        ...

    def remaining_commands(self) -> Sequence[Command]:
        """Return the commands still to send if Redis refused MULTI and the token but executed the others at once."""
        ...


class QueueTransaction:
    """Append jobs, oldest first, to a queue.

    The last job passes through the token's key: RPUSH of a sentinel and that job, then LMOVE into the queue. Afterwards the
    key holds only the sentinel if the jobs are written, and also the job if the queue was of another type. A script that
    checks the type would say the same, but costs Redis 16 us per chunk where these commands cost 6 (decision 166).
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
        return [("LPUSH", self._queue_key, *self._payloads)]

    def remaining_commands(self) -> Sequence[Command]:
        return [("LPUSH", self._queue_key, self._payloads[-1])]


class ScheduleTransaction:
    """Add jobs to the ``schedule`` set.

    No command moves a member between sorted sets, so a script checks the type of the set and records the token.
    """

    def __init__(self, token: str, writes: Sequence[Command]) -> None:
        self.key = keys.pushed(token)
        self._writes = writes
        self.commands: Sequence[Command] = (*writes, ("EVAL", NOTE_PUSHED.code, 2, self.key, keys.SCHEDULE, TOKEN_MS))
        self.job_commands = slice(0, len(writes))

    def plain_commands(self) -> Sequence[Command]:
        return self._writes

    def remaining_commands(self) -> Sequence[Command]:
        """See ``Transaction``. Empty, because no job passes through the token's key."""
        return ()
