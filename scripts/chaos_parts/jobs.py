"""The jobs that the processes of a run work on; loaded by the workers with ``-r chaos_parts.jobs``."""

import time

from chaos_parts.effects import BEGUN, ENDED, recorder
from chaos_parts.marks import mark
from framework import ApplicationWorker


class StampWorker(ApplicationWorker):
    """Say that job ``serial`` begins, take as long as told, say that it ended."""

    feature_category = "not_owned"
    queue = "chaos"

    def perform(self, serial: int, milliseconds: float) -> None:
        recorder().write(BEGUN, serial)
        time.sleep(milliseconds / 1000)
        recorder().write(ENDED, serial)
        mark(self.jid)


class BesideWorker(StampWorker):
    """The same on the other shard, which nothing is done to."""

    queue = "beside"
