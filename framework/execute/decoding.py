"""Decode the payloads of one process's runs within what the settings allow, large ones only while there is memory for them.

A run's share of the budget is taken before anything is parsed and kept until the run has been settled, as the arguments live so long.
Crash story: nothing moves here; a process that dies while a run waits has it in its working list.
"""

import time
import traceback
from functools import partial
from typing import Protocol

from framework.errors import Shutdown
from framework.execute.stats import RunningJobs
from framework.fetch.unit_of_work import UnitOfWork
from framework.telemetry.rate_limit import LogRateLimit
from framework.types import Payload
from framework.wire.compress import COMPRESSED, decompress_arguments
from framework.wire.footprint import DECODED_LIMIT, LARGE_PAYLOAD, MAX_MEMORY_PER_BYTE
from framework.wire.job import decode
from framework.wire.memory_budget import MemoryBudget

_SLOW_WAIT_S = 1.0
_LOG_INTERVAL_S = 60.0


class MemoryReservation(Protocol):
    """A run, as far as memory goes."""

    reserved: int
    """Bytes of the budget that it holds; 0 for nearly all."""


class PayloadDecoder:
    """Decodes for all runs of one process. Shared between threads."""

    def __init__(
        self,
        running_jobs: RunningJobs,
        decompressed_limit: int,
        decoded_limit: int = DECODED_LIMIT,
        budget: MemoryBudget | None = None,
    ) -> None:
        self._running_jobs = running_jobs
        self._decompressed_limit = decompressed_limit
        self._decoded_limit = decoded_limit
        self._budget = budget or MemoryBudget()
        self._log_rate = LogRateLimit(_LOG_INTERVAL_S)
        self._small_bytes = min(LARGE_PAYLOAD, decoded_limit) // MAX_MEMORY_PER_BYTE

    def decode(self, unit: UnitOfWork, run: MemoryReservation) -> Payload:
        """Return the payload of a fetched job; wait for memory if it takes much.

        Raises:
            PayloadError: it cannot be read, or must not be.
            Shutdown: the process stops before there was memory for it.
        """
        if len(unit.data) <= self._small_bytes:  # nearly all: nothing is counted, nothing allocated for it
            return decode(unit.data, None)
        payload = decode(unit.data, self._decoded_limit, partial(self._reserve, unit, run))
        if run.reserved:
            unit.payload_without_args = {name: value for name, value in payload.items() if name != "args"}
        return payload

    def decompress(self, payload: Payload, unit: UnitOfWork, run: MemoryReservation) -> None:
        """Put compressed arguments back; raises as ``payload`` does."""
        if payload.get(COMPRESSED):
            reserve = partial(self._reserve, unit, run)
            decompress_arguments(payload, self._decompressed_limit, self._decoded_limit, reserve)

    def release(self, run: MemoryReservation, error: BaseException | None) -> None:
        """The run has been settled: its memory is free. ``error`` is what its job raised, whose frames hold its values."""
        if error is not None:
            traceback.clear_frames(error.__traceback__)
        self._budget.release(run.reserved)
        run.reserved = 0

    def _reserve(self, unit: UnitOfWork, run: MemoryReservation, memory: int) -> None:
        """Take the run's share, together with what it has already: that goes back first, so that no two runs wait for each other."""
        wanted = run.reserved + memory
        if run.reserved:
            self._budget.release(run.reserved)
            run.reserved = 0
        asked = time.monotonic()
        taken = self._budget.acquire(wanted, self._is_stopping)
        if taken is None:
            raise Shutdown
        run.reserved = taken
        waited_s = time.monotonic() - asked
        if waited_s > _SLOW_WAIT_S:
            self._log_rate.warning(
                "",
                "large jobs wait for one another's memory; raise size_limit.decoding_budget if this host has more",
                "decoding.memory_wait",
                queue=unit.queue,
                memory_bytes=wanted,
                waited_s=round(waited_s, 3),
            )

    def _is_stopping(self) -> bool:
        return self._running_jobs.stopping
