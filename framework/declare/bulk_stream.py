"""Push the jobs of an iterator chunk by chunk, so that no more than one chunk is in memory."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from framework.declare.bulk import CHUNK_SIZE
from framework.errors import BulkPushError
from framework.types import Jid

PushChunk: TypeAlias = Callable[[Sequence[Any], int], list[Jid | None]]
"""Pushes the jobs of one chunk, whose first has the given index; returns their ids, ``None`` for dropped jobs."""


class BulkStream:
    """Push the jobs of one iterator. Used by one thread at a time.

    Each chunk is checked before it is written. A chunk that fails is kept, so that ``resume`` pushes every job once.
    """

    def __init__(self, jobs: Iterable[Any], push_chunk: PushChunk) -> None:
        self._jobs = iter(jobs)
        self._push_chunk = push_chunk
        self._resume_chunk: Callable[[], list[Jid | None]] | None = None
        """Repeats the current chunk, which may be written."""
        self._chunk: list[Any] = []
        self._start = 0
        self._read_error: Exception | None = None
        self._stopped = False

    def run(self) -> int:
        """Push all jobs; return the number of written ones.

        Raises:
            BulkPushError: a chunk was not or not certainly written, was refused, or could not be read.
            Exception: the first chunk was refused or could not be read; nothing was written.
        """
        written = 0
        while jids := self._push_next():
            written += len(jids) - jids.count(None)
        return written

    def stop(self) -> None:
        """Let ``run`` return after the current chunk. Safe from any thread."""
        self._stopped = True

    def _resume(self) -> list[Jid | None]:
        # The ids of a whole stream would take more memory than its jobs; those of the rest are what the caller must learn.
        jids: list[Jid | None] = []
        while more := self._push_next():
            jids += more
        return jids

    def _push_next(self) -> list[Jid | None]:
        """Push one chunk; return the ids of its jobs, none at the end of the stream."""
        try:
            if not self._chunk and not self._stopped:
                self._read()
            if not self._chunk:
                return []
            repeat = self._resume_chunk
            jids = repeat() if repeat is not None else self._push_chunk(self._chunk, self._start)
        except BulkPushError as error:
            self._resume_chunk = error.resume
            cause = error.__cause__ or error
            raise self._failure(cause, maybe_written=error.maybe_written, in_doubt=error.in_doubt) from cause
        # The iterator, a middleware and an annotation may raise anything; the caller must learn which jobs are written.
        except Exception as error:
            if self._start == 0:
                raise
            raise self._failure(error) from error
        self._start += len(self._chunk)
        self._chunk, self._resume_chunk = [], None
        return jids

    def _read(self) -> None:
        # A generator that raised is at its end: another read would take the failure for the end of the jobs.
        if self._read_error is not None:
            raise self._read_error
        chunk: list[Any] = []
        try:
            for job in self._jobs:
                chunk.append(job)
                if len(chunk) == CHUNK_SIZE:
                    break
        except Exception as error:
            self._read_error = error
            raise
        self._chunk = chunk

    def _failure(
        self, cause: BaseException, *, maybe_written: bool = False, in_doubt: Sequence[Jid] = ()
    ) -> BulkPushError:
        resume = None if cause is self._read_error else self._resume
        return BulkPushError([], self._start, cause, maybe_written=maybe_written, in_doubt=in_doubt, resume=resume)
