"""Push the jobs of a shard evenly over its time, and know of each whether it was accepted, when, and how surely."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from framework import ApplicationWorker, FrameworkError
from framework.errors import BulkPushError, ShardUnavailableError

Witness = Callable[[], Callable[[], bool]]
"""Called before a push; returns a function that is called after it, and returns whether the push is surely on a
replica, too.
"""

_PAUSE_S = 0.1


@dataclass(frozen=True)
class Load:
    """The number of jobs and of seconds; ``long`` of them take ``long_ms``, the others ``least_ms`` to ``most_ms``."""

    jobs: int
    seconds: float
    head_start: float = 0.1
    """The share of the jobs that waits before the first process starts."""
    long: int = 0
    long_ms: float = 1_500.0
    least_ms: float = 1.0
    most_ms: float = 10.0
    step_s: float = 0.05
    """The time between two batches: a long one means bursts, so that jobs wait."""

    def lengths(self, rng: random.Random) -> list[float]:
        """Draw the milliseconds of each job."""
        found = [round(rng.uniform(self.least_ms, self.most_ms), 1) for _ in range(self.jobs)]
        for _ in range(self.long):
            found[rng.randrange(self.jobs)] = self.long_ms
        return found


class AcceptedPushes(NamedTuple):
    """The accepted push of each serial: when it began, and when its answer was recorded."""

    begun_at: Sequence[float]
    answered_at: Sequence[float]


class Producer:
    """A thread of this process that pushes serials in order. A push is repeated only if it surely was not written, or
    is recorded as doubtful: such a job may legally run twice.
    """

    def __init__(
        self, worker: type[ApplicationWorker], load: Load, rng: random.Random, witness: Witness | None = None
    ) -> None:
        self.doubtful: Counter[int] = Counter()
        """The number of doubtful pushes of a serial, before one was accepted."""
        self.refusals: dict[str, int] = {}
        """The number of failed pushes, by the kind of error."""
        self.reasons: dict[str, int] = {}
        """The same by the text of the error."""
        self.untyped: list[str] = []
        """Errors that are not the framework's: producers were promised typed ones."""
        self.pushed_at: list[float] = []
        """The start of the accepted push of each serial; serials are accepted in order."""
        self.accepted_at: list[float] = []
        """The time when each was accepted."""
        self.witnessed: set[int] = set()
        """The serials that were surely on a replica when they were accepted."""
        self.slowest_s = 0.0
        self._worker, self._load, self._witness = worker, load, witness
        self._args = list(enumerate(load.lengths(rng)))
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="producer", daemon=True)

    @property
    def accepted(self) -> int:
        """Return the number of accepted jobs."""
        return len(self.accepted_at)

    @property
    def accepted_pushes(self) -> AcceptedPushes:
        """Return the times of every accepted push."""
        return AcceptedPushes(self.pushed_at, self.accepted_at)

    @property
    def done(self) -> bool:
        """Return whether every job was accepted."""
        return self.accepted == len(self._args)

    def push_head_start(self) -> None:
        """Push the jobs that wait before the first process starts."""
        self._push_up_to(int(len(self._args) * self._load.head_start))

    def start(self) -> None:
        """Push the rest, from a thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop pushing."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        started, head = time.monotonic(), self.accepted
        while not self.done and not self._stopping.wait(self._load.step_s):
            share = min(1.0, (time.monotonic() - started) / self._load.seconds)
            self._push_up_to(head + int((len(self._args) - head) * share))

    def _push_up_to(self, count: int) -> None:
        while self.accepted < count and not self._stopping.is_set():
            batch = self._args[self.accepted : min(count, self.accepted + 1_000)]
            started = time.monotonic()
            try:
                self._push(batch, started)
            except (BulkPushError, ShardUnavailableError) as error:
                self._refused(batch, error)
                self._stopping.wait(_PAUSE_S)
            except FrameworkError as error:
                self._count(error)
                self._stopping.wait(_PAUSE_S)
            except Exception as error:  # noqa: BLE001 - the round looks for errors of any other kind
                self.untyped.append(repr(error))
                self._doubt(batch)
                self._stopping.wait(_PAUSE_S)
            self.slowest_s = max(self.slowest_s, time.monotonic() - started)

    def _push(self, batch: list[tuple[int, float]], started: float) -> None:
        ask = self._witness() if self._witness is not None else None
        self._worker.perform_bulk(batch)
        self.pushed_at += [started] * len(batch)
        self.accepted_at += [time.monotonic()] * len(batch)
        if ask is not None and ask():
            self.witnessed.update(serial for serial, _ in batch)

    def _refused(self, batch: list[tuple[int, float]], error: FrameworkError) -> None:
        """Record a failed batch, which is one chunk and one round trip: it is written whole, or not, or in doubt."""
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
