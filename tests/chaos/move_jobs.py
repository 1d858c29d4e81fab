"""The classes that move, and one that stays. A run appends what it saw to a file of its process.

All but ``OtherWorker`` have the namespace ``moved``, by which they move.
"""

import os
import struct
import time
from datetime import timedelta

from framework import ApplicationWorker, CronWorker, IterableWorker
from framework.declare.policy_options import Deduplicate

RUN = struct.Struct("<Qdd12s")
"""A run: the serial of the job, when it was pushed, when it began (epoch seconds), its id."""
ENDED = struct.Struct("<dd12s")
"""The end of a limited job: its begin, its end, its id."""
PUSHED = struct.Struct("<Qd12sB")
"""A push: the serial, the time before it, the id, and what became of it."""
DROPPED, ACCEPTED, DOUBTFUL, REFUSED = range(4)
NO_ID = bytes(12)

LIMIT = 4
ITEMS = 40
LIMITED_S = 0.02

_open: dict[str, int] = {}


def note(kind: str, record: bytes) -> None:
    """Append a record to the file of this kind and process. One write: a killed process leaves whole records."""
    if kind not in _open:
        path = f"{os.environ['MOVE_FOLDER']}/{kind}.{os.getpid()}"
        _open[kind] = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.write(_open[kind], record)


class Recorded(ApplicationWorker, abstract=True):
    feature_category = "not_owned"
    queue_namespace = "moved"

    def perform(self, serial: int, pushed_at: float, text: str = "") -> None:
        self.note(serial, pushed_at)

    def note(self, serial: int, pushed_at: float) -> None:
        kind = type(self).__name__.removesuffix("Worker").lower()
        note(kind, RUN.pack(serial, pushed_at, time.time(), bytes.fromhex(self.jid)))


class PlainWorker(Recorded): ...


class LiveWorker(Recorded): ...


class LaterWorker(Recorded): ...


class RetryWorker(Recorded): ...


class DeadWorker(Recorded): ...


class PausedWorker(Recorded): ...


class DeferredWorker(Recorded): ...


class MemberWorker(Recorded): ...


class FairWorker(Recorded):
    fair_by = staticmethod(lambda args: args[0] % 50)


class LockedWorker(Recorded):
    """Few of its jobs run before the end: the locks wait with them."""

    idempotent = True
    deduplicate = Deduplicate("until_executing", ttl=timedelta(hours=6))

    # The time of a push is no part of the key.
    @classmethod
    def idempotency_arguments(cls, args: list[object]) -> list[object]:
        return args[:1]


class HotWorker(LockedWorker):
    """Equal jobs are pushed and run all the time."""


class LimitedWorker(Recorded):
    concurrency_limit = LIMIT

    def perform(self, serial: int, pushed_at: float, text: str = "") -> None:
        began = time.time()
        self.note(serial, pushed_at)
        time.sleep(LIMITED_S)
        note("ended", ENDED.pack(began, time.time(), bytes.fromhex(self.jid)))


class BatchEndWorker(ApplicationWorker):
    feature_category = "not_owned"
    queue_namespace = "moved"

    def perform(self) -> None:
        note("batchend", RUN.pack(0, 0.0, time.time(), bytes.fromhex(self.jid)))


class TickWorker(CronWorker):
    feature_category = "not_owned"
    queue_namespace = "moved"
    cron = "* * * * *"

    def perform(self) -> None:
        note("tick", RUN.pack(0, 0.0, time.time(), bytes.fromhex(self.jid)))


class ItemsWorker(IterableWorker):
    feature_category = "not_owned"
    queue_namespace = "moved"
    flush_interval = 0.1
    max_iteration_runtime = 0.5

    def build_enumerator(self, serial: int, *, cursor: int | None):
        return ((item, item) for item in range(cursor or 0, ITEMS))

    def each_iteration(self, item: int, serial: int) -> None:
        note("items", RUN.pack(serial * 1_000 + item, 0.0, time.time(), bytes.fromhex(self.jid)))
        time.sleep(0.02)


class OtherWorker(Recorded):
    """It stays on its shard."""

    queue_namespace = None
    queue = "other"
