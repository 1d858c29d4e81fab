"""Jobs with breakers: one kills its process, one fails, while Redis says so."""

import os
from datetime import timedelta

import jobs

from framework.breaker import BreakAfter


class PoisonWorker(jobs.Base):
    break_after = BreakAfter(deaths=3, probe_after=timedelta(seconds=3))
    max_retries_after_interruption = 50

    def perform(self) -> None:
        jobs.prove("begun", self.jid)
        if jobs.proofs.exists("poisonous"):
            os._exit(9)
        jobs.prove("done", self.jid)


class ShakyWorker(jobs.Base):
    break_after = BreakAfter(failures=0.5, runs=4, probe_after=timedelta(seconds=1))
    retry = 0

    def perform(self) -> None:
        jobs.prove("runs", self.jid)
        if jobs.proofs.exists("broken"):
            raise ValueError("broken")
        jobs.prove("done", self.jid)


class NarrowWorker(ShakyWorker):
    """Of one slot, and in a batch."""

    break_after = BreakAfter(failures=0.5, runs=2, probe_after=timedelta(seconds=1))
    concurrency_limit = 1
