"""The jobs of a round; loaded by the workers with ``-r tests.chaos.rounds.jobs``."""

import hashlib
import os
import random
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from framework import ApplicationWorker, Deduplicate, Discard, ReenqueuerWorker, limiter
from tests.chaos.rounds.effects import ASIDE, ASKED, BEGUN, ENDED, FOLDER, Recorder, recorder
from tests.chaos.rounds.shared_limit import read_limit
from tests.proofs.end_marks import mark

LOCKED, SEALED, SEPARATE = ASIDE + 100_000_000, ASIDE + 200_000_000, ASIDE + 300_000_000
"""The first serials of the jobs with a limiter, of sealed and of isolated jobs."""

CALLED, PROFILED = ASIDE + 400_000_000, ASIDE + 500_000_000
"""The first serials of called and of profiled jobs."""

PACED = {kind: ASIDE + number * 100_000_000 for number, kind in enumerate(("window", "bucket", "leaky", "points"), 6)}
"""The first serials of the jobs of each other limiter."""

OTHERS = {kind: ASIDE + number * 100_000_000 for number, kind in enumerate(("fair", "ranked", "bounded", "joined"), 10)}
"""The first serials of the jobs of the other kinds."""

CHAIN = ASIDE + 1_400_000_000
"""The serial of the chain of runs."""

_WAYS = ("fails", "discards", "retries", "apart", "returns", "returns")

LOCK_LIMIT, LOCK_S = 2, 4.0
"""The blocks at a time, and the seconds after which the lock of a killed process is free."""

# A short wait: the jobs that a killed process was running are tried one after the other, and each may wait for a dead holder.
_LOCK = limiter.concurrent(
    "chaos_lock", LOCK_LIMIT, wait_timeout=0.1, lock_timeout=LOCK_S, reschedules=10_000, backoff=lambda _: 0.5
)

PACE_S, WINDOW_LIMIT, LEAKY_SIZE = 1.0, 3, 3
POINTS_CAPACITY, POINTS_ESTIMATE, POINTS_USED = 6, 3, 2
"""All points come back within ``PACE_S``. A killed job has taken its estimate, any other what it has used."""


def _again_soon(_: int) -> float:
    return 0.5


_WINDOW = limiter.window("chaos_window", WINDOW_LIMIT, PACE_S, wait_timeout=0, reschedules=10_000, backoff=_again_soon)
_BUCKET = limiter.bucket("chaos_bucket", WINDOW_LIMIT, PACE_S, wait_timeout=0, reschedules=10_000, backoff=_again_soon)
_LEAKY = limiter.leaky("chaos_leaky", LEAKY_SIZE, PACE_S, wait_timeout=0, reschedules=10_000, backoff=_again_soon)
_POINTS = limiter.points(
    "chaos_points",
    POINTS_CAPACITY,
    POINTS_CAPACITY / PACE_S,
    wait_timeout=0,
    reschedules=10_000,
    backoff=_again_soon,
)
_RANDOM_BYTES = 2_000


class StampWorker(ApplicationWorker):
    """Records the start of job ``serial``, takes the given time, records its end."""

    wire_name = "StampWorker"
    feature_category = "not_owned"
    max_retries_after_interruption = -1  # the same job may be killed by chance again and again
    queue = "chaos"

    def perform(self, serial: int, milliseconds: float) -> None:
        effects = self._recorder()
        effects.write(BEGUN, serial)
        time.sleep(milliseconds / 1000)
        effects.write(ENDED, serial)
        mark(self.jid)

    def _recorder(self) -> Recorder:
        return recorder(isolated=self.isolation == "process")


class ControlWorker(StampWorker):
    """The same on the other shard, which has no faults."""

    wire_name = "ControlWorker"
    queue = "control"


def _limit() -> int:
    return read_limit(Path(os.environ[FOLDER]))


class LimitedWorker(StampWorker):
    """Runs at most some at a time over all processes: the limit is read from a file again and again."""

    wire_name = "LimitedWorker"
    concurrency_limit = staticmethod(_limit)


class KeyedWorker(StampWorker):
    """Exists once for each ``key``, waiting or running; and two of them run at a time."""

    wire_name = "KeyedWorker"
    idempotent = True
    deduplicate = Deduplicate("until_executed", ttl=timedelta(seconds=60))
    concurrency_limit = 2

    @classmethod
    def idempotency_arguments(cls, args: list[Any]) -> list[Any]:
        """Return the key."""
        return args[2:]

    def perform(self, serial: int, milliseconds: float, key: int) -> None:  # type: ignore[override]
        del key
        super().perform(serial, milliseconds)


class LockedWorker(StampWorker):
    """Runs within a limiter."""

    wire_name = "LockedWorker"

    def perform(self, serial: int, milliseconds: float) -> None:
        with _LOCK.within():
            super().perform(serial, milliseconds)


class WindowWorker(StampWorker):
    """Runs within a window limiter, and records when it asks."""

    wire_name = "WindowWorker"

    def perform(self, serial: int, milliseconds: float) -> None:
        self._recorder().write(ASKED, serial)
        with _WINDOW.within():
            super().perform(serial, milliseconds)


class BucketWorker(StampWorker):
    """The same within a bucket limiter."""

    wire_name = "BucketWorker"

    def perform(self, serial: int, milliseconds: float) -> None:
        self._recorder().write(ASKED, serial)
        with _BUCKET.within():
            super().perform(serial, milliseconds)


class LeakyWorker(StampWorker):
    """The same within a leaky bucket."""

    wire_name = "LeakyWorker"

    def perform(self, serial: int, milliseconds: float) -> None:
        self._recorder().write(ASKED, serial)
        with _LEAKY.within():
            super().perform(serial, milliseconds)


class PointsWorker(StampWorker):
    """The same within a points limiter; it uses less than its estimate."""

    wire_name = "PointsWorker"

    def perform(self, serial: int, milliseconds: float) -> None:
        self._recorder().write(ASKED, serial)
        with _POINTS.within(estimate=POINTS_ESTIMATE) as permit:
            super().perform(serial, milliseconds)
            permit.points_used(POINTS_USED)


class SealedWorker(StampWorker):
    """Has a large argument, which is encrypted and offloaded; another text than the pushed one fails."""

    wire_name = "SealedWorker"
    encrypt = True
    retry = 0

    def perform(self, serial: int, milliseconds: float, text: str) -> None:  # type: ignore[override]
        body, _, digest = text.rpartition(" ")
        if hashlib.sha256(body.encode()).hexdigest() != digest:
            raise ValueError("the text was changed")
        super().perform(serial, milliseconds)


class SeparateWorker(StampWorker):
    """Runs in a process of its own."""

    wire_name = "SeparateWorker"
    isolation = "process"


def way_of(serial: int) -> str:
    """Return how a called job ends: each way for jobs that are waited for in a thread, and on an event loop."""
    return _WAYS[serial // 2 % len(_WAYS)]


class FairWorker(StampWorker):
    """Waits in one of three sub-queues, which are served in turns."""

    wire_name = "FairWorker"

    @staticmethod
    def fair_by(arguments: tuple[Any, ...]) -> str:
        """Return the key of the sub-queue."""
        return str(arguments[0] % 3)


class RankedWorker(StampWorker):
    """Is pushed with a priority."""

    wire_name = "RankedWorker"
    priority = "normal"


class BoundedWorker(StampWorker):
    """Has a time to live. With a time-out it hangs in its first run, and is repeated."""

    wire_name = "BoundedWorker"
    expires_in = timedelta(minutes=10)
    retry = 10

    @classmethod
    def retry_in(cls, count: int, error: BaseException, job: Any) -> float:
        """Retry soon."""
        del count, error, job
        return 0.5

    def perform(self, serial: int, milliseconds: float) -> None:
        payload = self._aw_job or {}
        while "timeout" in payload and "retry_count" not in payload:
            time.sleep(0.01)
        super().perform(serial, 0 if "timeout" in payload else milliseconds)


class JoinedWorker(ApplicationWorker):
    """Collects the serials of several pushes in one job."""

    wire_name = "JoinedWorker"
    feature_category = "not_owned"
    max_retries_after_interruption = -1
    queue = "chaos"
    idempotent = True
    deduplicate = Deduplicate("accumulate", window=timedelta(seconds=1.2))

    def perform(self, key: int, serials: list[int]) -> None:
        del key
        effects = recorder()
        for serial in serials:
            effects.write(BEGUN, serial)
        time.sleep(0.03)
        for serial in serials:
            effects.write(ENDED, serial)
        mark(self.jid)


class ChainWorker(ReenqueuerWorker):
    """Runs again and again, one run at a time, until a time of the monotonic clock."""

    wire_name = "ChainWorker"
    feature_category = "not_owned"
    max_retries_after_interruption = -1
    queue = "chaos"
    lease_timeout = timedelta(seconds=4)
    minimum_duration = 0.1

    def perform(self, serial: int, until: float) -> bool:
        effects = recorder()
        effects.write(BEGUN, serial)
        time.sleep(0.05)
        goes_on = time.monotonic() < until
        if not goes_on:
            effects.write(ENDED, serial)
        mark(self.jid)
        return goes_on


class CalledWorker(StampWorker):
    """Returns its serial and its process, or ends as its serial says."""

    wire_name = "CalledWorker"
    retry = False

    def perform(self, serial: int, milliseconds: float) -> dict[str, int]:  # type: ignore[override]
        way = way_of(serial - CALLED)
        if way == "retries" and "retry_count" not in (self._aw_job or {}):
            raise LookupError("not yet")
        super().perform(serial, milliseconds)
        if way == "fails":
            raise LookupError("no row")
        if way == "discards":
            raise Discard("no such row")
        return {"serial": serial - CALLED, "pid": self._recorder().pid}


class CalledTwiceWorker(CalledWorker):
    """Fails once, and has the answer of its second run."""

    wire_name = "CalledTwiceWorker"
    retry = 3

    @classmethod
    def retry_in(cls, count: int, error: BaseException, job: Any) -> float:
        """Retry soon."""
        del count, error, job
        return 0.5


class CalledApartWorker(CalledWorker):
    """Answers from a process of its own."""

    wire_name = "CalledApartWorker"
    isolation = "process"


class ProfiledWorker(StampWorker):
    """Runs under a profiler, if its push says so."""

    wire_name = "ProfiledWorker"


def sealed_text(marker: str, rng: random.Random) -> str:
    """Return a text that begins with the marker, and ends with its digest."""
    body = f"{marker} {rng.randbytes(_RANDOM_BYTES).hex()}"
    return f"{body} {hashlib.sha256(body.encode()).hexdigest()}"
