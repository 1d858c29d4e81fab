"""Add jobs with a rate limiter, isolated jobs and sealed jobs (encrypted and offloaded) to a round; then check what was promised.

The jobs record when they run (``effects``), so the number of running blocks is known for every instant.
"""

import base64
import os
import random
import time
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from redis import Redis

from framework import ApplicationWorker
from framework.features.encryption.blob_store import FolderStore
from framework.features.encryption.offload import BLOBS, PayloadOffload
from framework.features.encryption.sweep import PayloadSweeper
from framework.process_clock import process_clock
from tests.chaos.rounds.account import Account, Run, account, runs_of
from tests.chaos.rounds.class_load import ClassLoad, Others
from tests.chaos.rounds.effects import Effect
from tests.chaos.rounds.faults import Injection
from tests.chaos.rounds.jobs import LOCK_LIMIT, LOCK_S, LOCKED, SEALED, SEPARATE, sealed_text
from tests.chaos.rounds.limiter_load import LimiterLoad, Paced
from tests.chaos.rounds.policy_load import most_running
from tests.chaos.rounds.producer import AcceptedPushes

MARKER = "the text of a sealed job"
_PERIOD_S = 0.25
_KEEP_S = 3_600.0
_MOST_OF_A_KIND = 10_000_000
_LOAD_S = 1.0
"""The time between the take of a lock and the record of its block, on a loaded machine."""


class Guards(NamedTuple):
    """The results."""

    locked: Account
    """The results of the jobs with a limiter."""
    most_blocks: int
    """The most blocks of the limiter that ran at a time, by their records."""
    over: list[str]
    sealed: Account
    readable: list[str]
    """The files of servers, logs and the payload store in which a sealed text can be read."""
    blobs_left: int
    """Blobs without a job after all work, before the sweep."""
    blobs_kept: int
    """Those that the sweep, twice, did not delete."""
    separate: Account
    """The results of the isolated jobs."""
    overlapping: list[str]
    """The isolated jobs of which two runs were at work at once."""
    paced: list[Paced]
    """The results of the jobs with the other limiters."""
    others: Others
    """The results of the jobs of the other kinds."""
    pushes: int


def key_settings() -> Mapping[str, Any]:
    """Return the settings without which no round can load the classes of the jobs, of which one encrypts."""
    return {"encryption": {"keys": {1: base64.b64encode(os.urandom(32)).decode()}}}


def signed_settings() -> Mapping[str, Any]:
    """Return the settings of a round in which each job has to be signed."""
    return {
        **key_settings(),
        "signatures": {"keys": {1: base64.b64encode(os.urandom(32)).decode()}, "required": True},
    }


def settings(folder: Path) -> Mapping[str, Any]:
    """Return the settings of the round: keys, and a payload store in the folder."""
    return {
        **key_settings(),
        "size_limit": {"compression_threshold": 1_000},
        "payload_offload": {"url": f"file://{folder}/payloads", "threshold": 1_000, "keep": _KEEP_S},
    }


@dataclass
class GuardLoad:
    """``step`` is called often during the round. ``workers`` are the classes by the first serial of their jobs."""

    workers: Mapping[int, type[ApplicationWorker]]
    folder: Path
    seconds: float
    rng: random.Random
    accepted: list[int] = field(default_factory=list[int])
    """The serials of all accepted jobs."""
    _times: dict[int, AcceptedPushes] = field(default_factory=dict[int, AcceptedPushes])
    _readable: list[str] = field(default_factory=list[str])
    _started: float = 0.0
    _pushed_at: float = 0.0

    def __post_init__(self) -> None:
        # Here and not in ``begin``, which a round whose processes do not start never reaches.
        self._times = {base: AcceptedPushes([], []) for base in self.workers}
        self._limiters = LimiterLoad(self.seconds, self.rng, self.accepted)
        self._others = ClassLoad(self.seconds, self.rng, self.accepted)

    def begin(self, now: float) -> None:
        """Start with the round."""
        self._started = now
        self._limiters.begin(now)
        self._others.begin(now)

    def step(self, now: float) -> None:
        """Push one job of each kind and bursts for the other limiters, and look into a blob."""
        self._limiters.step(now)
        self._others.step(now)
        if now - self._started > self.seconds or now - self._pushed_at < _PERIOD_S:
            return
        self._pushed_at = now
        for base, worker in self.workers.items():
            begun = time.monotonic()
            times: Any = self._times[base]
            serial, milliseconds = base + len(times.begun_at), round(self.rng.uniform(20, 60), 1)
            more = [sealed_text(MARKER, self.rng)] if base == SEALED else []
            worker.perform_async(serial, milliseconds, *more)
            times.begun_at.append(begun)
            times.answered_at.append(time.monotonic())
            self.accepted.append(serial)
        self._look_into_a_blob()

    def _look_into_a_blob(self) -> None:
        paths = list(self.folder.glob("payloads/blobs/*/*"))
        if paths:
            path = self.rng.choice(paths)
            # Its job may have ended meanwhile.
            with suppress(FileNotFoundError):
                if _is_readable(path.read_bytes()):
                    self._readable.append(path.name)

    def found(
        self, aside: Sequence[Effect], injections: Sequence[Injection], clients: Mapping[str, Redis], folder: Path
    ) -> Guards:
        """Check the records, given the injections at processes; ``folder`` has all files of the shard."""
        of = {
            base: [one._replace(serial=one.serial - base) for one in aside if 0 <= one.serial - base < _MOST_OF_A_KIND]
            for base in self.workers
        }
        locked = runs_of(of[LOCKED])
        most, over = most_running(_blocks(locked, injections), [(0.0, LOCK_LIMIT)])
        separate = runs_of(of[SEPARATE])
        store = FolderStore(self.folder / "payloads")
        left = len(list(store.list(BLOBS)))
        _sweep_twice(store, clients)
        return Guards(
            locked=account(self._times[LOCKED], of[LOCKED], injections, Counter()),
            most_blocks=most,
            over=over,
            sealed=account(self._times[SEALED], of[SEALED], injections, Counter()),
            readable=[*self._readable, *_with_marker(folder), *_with_marker(self.folder / "payloads")],
            blobs_left=left,
            blobs_kept=len(list(store.list(BLOBS))),
            separate=account(self._times[SEPARATE], of[SEPARATE], injections, Counter()),
            overlapping=list(_overlapping(separate)),
            paced=self._limiters.found(aside, injections),
            others=self._others.found(aside, injections),
            pushes=len(self.accepted),
        )


def _blocks(runs: Mapping[int, list[Run]], injections: Sequence[Injection]) -> list[tuple[float, float]]:
    """Return the time of each block: to its end, or to the injection at its process.

    A block that lasts longer than its lock is not counted from then on.
    """
    died = {injection.pid: injection.at for injection in injections}
    spans: list[tuple[float, float]] = []
    for run in (run for own in runs.values() for run in own):
        ended = run.ended if run.ended is not None else max(run.begun, died.get(run.pid, run.begun))
        spans.append((run.begun, min(ended, run.begun + LOCK_S - _LOAD_S)))
    return spans


def _overlapping(runs: Mapping[int, list[Run]]) -> list[str]:
    """Return the jobs of which a run ended after the next had begun: a process that outlived its worker process."""
    return [
        f"{serial}: {before.ended - run.begun:.3f} s"
        for serial, own in runs.items()
        for before, run in pairwise(own)
        if before.ended is not None and before.ended > run.begun
    ]


def _sweep_twice(store: FolderStore, clients: Mapping[str, Redis]) -> None:
    """Sweep as a process would after ``keep``, and again after another: the files keep their times."""
    for later in (1, 3):
        now = time.time() + later * 2 * _KEEP_S
        with process_clock.override(lambda now=now: now):
            PayloadSweeper(PayloadOffload(store, "", 1), _KEEP_S, clients).sweep()


def _with_marker(folder: Path) -> list[str]:
    return [path.name for path in sorted(folder.rglob("*")) if path.is_file() and MARKER.encode() in path.read_bytes()]


def _is_readable(data: bytes) -> bool:
    """Return whether the blob shows the text: encrypted bytes may begin like a compressed stream by chance."""
    for form in (zlib.MAX_WBITS, -zlib.MAX_WBITS):
        with suppress(zlib.error):
            if MARKER.encode() in zlib.decompress(data, form):
                return True
    return False
