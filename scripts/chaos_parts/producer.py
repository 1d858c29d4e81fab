"""Pushes the jobs of a round evenly over its length, and knows of each whether it was accepted."""

import random
import threading
import time

from chaos_parts.jobs import StampWorker
from framework import FrameworkError
from framework.errors import BulkPushError, ShardUnavailableError

_STEP_S = 0.05
_HEAD_START = 0.1
"""The part of the jobs that waits before the first process is up."""


class Producer:
    """A thread of our own process that pushes ``jobs`` serials. Nothing is pushed again unless it surely was not written,
    or is remembered as doubtful: such a job may legally run twice.
    """

    def __init__(self, jobs: int, seconds: float, rng: random.Random, *, long_jobs: int, long_ms: float) -> None:
        self.doubtful: set[int] = set()
        self.refusals: dict[str, int] = {}
        """How often a push failed, by the kind of error."""
        self.reasons: dict[str, int] = {}
        """The same by the text of the error."""
        self.untyped: list[str] = []
        """Errors that are none of the framework's: producers were promised clear ones."""
        self.accepted = 0
        self.slowest_s = 0.0
        lengths = [rng.uniform(1, 10) for _ in range(jobs)]
        for _ in range(long_jobs):
            lengths[rng.randrange(jobs)] = long_ms
        self._args = [(serial, round(length, 1)) for serial, length in enumerate(lengths)]
        self._seconds = seconds
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="producer", daemon=True)

    def start(self) -> None:
        """Push the head start now, the rest from a thread."""
        self._push_up_to(int(len(self._args) * _HEAD_START))
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether every job was accepted."""
        return self.accepted == len(self._args)

    def stop(self) -> None:
        """Push no more."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        started, head = time.monotonic(), self.accepted
        while not self.done and not self._stopping.wait(_STEP_S):
            share = min(1.0, (time.monotonic() - started) / self._seconds)
            self._push_up_to(head + int((len(self._args) - head) * share))

    def _push_up_to(self, count: int) -> None:
        while self.accepted < count and not self._stopping.is_set():
            batch = self._args[self.accepted : min(count, self.accepted + 1_000)]
            started = time.monotonic()
            try:
                StampWorker.perform_bulk(batch)
                self.accepted += len(batch)
            except (BulkPushError, ShardUnavailableError) as error:
                self._refused(batch, error)
                self._stopping.wait(0.1)
            except FrameworkError as error:
                self._count(error)
                self._stopping.wait(0.1)
            except Exception as error:  # noqa: BLE001 - that an error of any other kind comes out is what we look for
                self.untyped.append(repr(error))
                self._doubt(batch)
                self._stopping.wait(0.1)
            self.slowest_s = max(self.slowest_s, time.monotonic() - started)

    def _refused(self, batch: list[tuple[int, float]], error: FrameworkError) -> None:
        """A batch is one slice, one round trip: all of it is in, or none, or nobody knows."""
        cause = error.__cause__ if isinstance(error, BulkPushError) else error
        self._count(cause or error)
        if getattr(cause, "maybe_written", True):
            self._doubt(batch)

    def _doubt(self, batch: list[tuple[int, float]]) -> None:
        self.doubtful.update(serial for serial, _ in batch)

    def _count(self, error: BaseException) -> None:
        doubt = ", maybe written" if getattr(error, "maybe_written", False) else ""
        name = f"{type(error).__name__}{doubt}"
        self.refusals[name] = self.refusals.get(name, 0) + 1
        self.reasons[str(error)] = self.reasons.get(str(error), 0) + 1
