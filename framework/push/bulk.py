"""One bulk push: slices written one after the other; where it stops, it can go on without writing a slice twice."""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from framework.errors import BulkPushError, PushError, ShardUnavailableError
from framework.shard.transaction import TOKEN_S
from framework.types import Jid

_RESUME_WITHIN_S = TOKEN_S - 30.0
"""How long after it was sent a slice in doubt may be repeated: well before Redis forgets its token."""


class PreparedChunk(Protocol):
    """The jobs of one slice, made and judged, as they are written however often that is tried."""

    @property
    def jids(self) -> Sequence[Jid]:
        """Return the ids of the jobs that are to be written."""
        ...

    def write(self) -> Sequence[Jid | None]:
        """Write what is not in yet; return ids aligned with the slice, ``None`` where dropped. Raises ShardUnavailableError."""
        ...


# Decision 166: a failed bulk push resumes under tokens.
class BulkPush:
    """Takes slices from ``prepare``, which returns ``None`` after the last one. For one thread at a time."""

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
        """When the slice was first sent, if it may be in."""

    def run(self) -> list[Jid | None]:
        """Write all slices that are left; return the ids of all jobs, aligned with the input.

        Raises:
            BulkPushError: a slice was not, or not surely, written, or could not be prepared.
            Exception: what preparing the first slice raised: nothing was written.
        """
        while True:
            try:
                if self._chunk is None:
                    self._chunk = self._prepare()
            except Exception as error:  # a client middleware may raise anything; the caller must learn what is in
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
                    f"its slice was sent more than {_RESUME_WITHIN_S:.0f} s ago, and Redis may have forgotten it."
                )
            )
        return self.run()[start:]

    def _failure(self, cause: Exception) -> BulkPushError:
        start = len(self._jids)
        doubted = self._chunk.jids if self._chunk is not None and self._in_doubt_since is not None else ()
        maybe_written = self._in_doubt_since is not None
        return BulkPushError(
            self._jids,
            start,
            cause,
            maybe_written=maybe_written,
            in_doubt=doubted,
            resume=lambda: self._resume(start),
        )
