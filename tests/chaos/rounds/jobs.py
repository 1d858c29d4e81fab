"""The jobs of a round; loaded by the workers with ``-r tests.chaos.rounds.jobs``."""

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from framework import ApplicationWorker, Deduplicate
from tests.chaos.rounds.effects import BEGUN, ENDED, FOLDER, recorder
from tests.chaos.rounds.shared_limit import read_limit
from tests.proofs.end_marks import mark


class StampWorker(ApplicationWorker):
    """Records the start of job ``serial``, takes the given time, records its end."""

    wire_name = "StampWorker"
    feature_category = "not_owned"
    max_retries_after_interruption = -1  # the same job may be killed by chance again and again
    queue = "chaos"

    def perform(self, serial: int, milliseconds: float) -> None:
        recorder().write(BEGUN, serial)
        time.sleep(milliseconds / 1000)
        recorder().write(ENDED, serial)
        mark(self.jid)


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
