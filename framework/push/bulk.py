"""Write a bulk push chunk by chunk, and resume it after a failure without writing a chunk twice."""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from framework.errors import BulkPushError, PushError, ShardUnavailableError
from framework.shard.connection import TOKEN_S
from framework.types import Jid

_RESUME_WITHIN_S = TOKEN_S - 30.0
"""A chunk in doubt may be repeated this long after it was sent: well before Redis deletes its token."""


class PreparedChunk(Protocol):
    """Represent the prepared jobs of one chunk. Every try writes the same bytes."""

    @property
    def jids(self) -> Sequence[Jid]:
        """Return the ids of the jobs to write."""
        ...

    def write(self) -> Sequence[Jid | None]:
        """Write the jobs that are not written yet; return ids in input order, ``None`` for dropped jobs.

        Raises:
            ShardUnavailableError: the shard did not confirm the write.
        """
        ...


# Decision 166: a failed bulk push resumes under tokens.
class BulkPush:
    """Write the chunks returned by ``prepare`` until it returns ``None``. Used by one thread at a time."""

    def __init__(
        self,
        prepare: Callable[[], PreparedChunk | None],
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._prepare = prepare
        self._monotonic = monotonic
        self._jids: list[Jid | None] = []
        self._chunk: PreparedChunk | None = None
        self._in_doubt_since: float | None = None
        """When the current chunk was first sent, if it may have been written."""

    def run(self) -> list[Jid | None]:
        """Write all remaining chunks; return the ids of all jobs in input order.

        Raises:
            BulkPushError: a chunk was not or not certainly written, or could not be prepared.
            Exception: preparing the first chunk failed; nothing was written.
        """
        while True:
            try:
                if self._chunk is None:
                    self._chunk = self._prepare()
            except Exception as error:
                # A client middleware may raise anything. The error must name the jobs that are written.
                if not self._jids and not isinstance(error, ShardUnavailableError):
                    raise
                raise self._failure(error) from error
            if self._chunk is None:
                return self._jids
            sent_at = self._monotonic()
            try:
                self._jids += self._chunk.write()
            except ShardUnavailableError as error:
                if error.maybe_written and self._in_doubt_since is None:
                    self._in_doubt_since = sent_at
                raise self._failure(error) from error
            self._chunk = self._in_doubt_since = None

    def _resume(self, start: int) -> list[Jid | None]:
        if self._in_doubt_since is not None and self._monotonic() - self._in_doubt_since > _RESUME_WITHIN_S:
            raise self._failure(
                PushError(
                    f"Its chunk was sent more than {_RESUME_WITHIN_S:.0f} s ago: Redis may no longer know whether it was written."
                )
            )
        return self.run()[start:]

    def _failure(self, cause: Exception) -> BulkPushError:
        start = len(self._jids)
        in_doubt = self._chunk.jids if self._chunk is not None and self._in_doubt_since is not None else ()
        maybe_written = self._in_doubt_since is not None
        return BulkPushError(
            self._jids,
            start,
            cause,
            maybe_written=maybe_written,
            in_doubt=in_doubt,
            resume=lambda: self._resume(start),
        )
