"""The job that every process of a run works on; loaded by the workers with ``-r chaos_parts.jobs``."""

import time

from chaos_parts.effects import BEGUN, ENDED, recorder
from chaos_parts.marks import mark
from framework import ApplicationWorker

QUEUE = "chaos"


class StampWorker(ApplicationWorker):
    """Say that job ``serial`` begins, take as long as told, say that it ended."""

    feature_category = "not_owned"
    queue = QUEUE

    def perform(self, serial: int, milliseconds: float) -> None:
        recorder().write(BEGUN, serial)
        time.sleep(milliseconds / 1000)
        recorder().write(ENDED, serial)
        mark(self.jid)
