"""The jobs that the processes of a run work on; loaded by the workers with ``-r tests.chaos.rounds.jobs``."""

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
    """Say that job ``serial`` begins, take as long as told, say that it ended."""

    wire_name = "StampWorker"
    feature_category = "not_owned"
    max_retries_after_interruption = -1  # the same job may be struck by chance again and again
    queue = "chaos"

    def perform(self, serial: int, milliseconds: float) -> None:
        recorder().write(BEGUN, serial)
        time.sleep(milliseconds / 1000)
        recorder().write(ENDED, serial)
        mark(self.jid)


class BesideWorker(StampWorker):
    """The same on the other shard, which nothing is done to."""

    wire_name = "BesideWorker"
    queue = "beside"


def _limit() -> int:
    return read_limit(Path(os.environ[FOLDER]))


class LimitedWorker(StampWorker):
    """Some at a time over all processes: how many is asked of a file again and again."""

    wire_name = "LimitedWorker"
    concurrency_limit = staticmethod(_limit)


class KeyedWorker(StampWorker):
    """One at a time with a ``key``, waiting or running; and two of them all at a time."""

    wire_name = "KeyedWorker"
    idempotent = True
    deduplicate = Deduplicate("until_executed", ttl=timedelta(seconds=60))
    concurrency_limit = 2

    @classmethod
    def idempotency_arguments(cls, args: list[Any]) -> list[Any]:
        """The key."""
        return args[2:]

    def perform(self, serial: int, milliseconds: float, key: int) -> None:  # type: ignore[override]
        del key
        super().perform(serial, milliseconds)
