"""Decode the payloads of running jobs within the configured limits; large ones wait until there is memory for them.

A run reserves its share of the memory budget before its payload is parsed, and keeps it until the run has been settled, because
the arguments stay in memory until then. At a crash: nothing moves here; if the process dies, the job is in its working list.
"""

import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

from framework.errors import Shutdown
from framework.execute.stats import RunningJobs
from framework.fetch.unit_of_work import UnitOfWork
from framework.push.protection import NO_PROTECTION, PayloadProtection
from framework.settings.model import SizeLimitSettings
from framework.telemetry.logs import LogRateLimit
from framework.types import Payload
from framework.wire.compress import COMPRESSED, decompress_arguments
from framework.wire.footprint import DECODED_LIMIT, LARGE_PAYLOAD, MAX_MEMORY_PER_BYTE, MemoryBudget
from framework.wire.job import decode
from framework.wire.protected import OFFLOADED, READ

_SLOW_WAIT_S = 1.0
_LOG_INTERVAL_S = 60.0


class MemoryReservation:
    """A run that may hold a part of the memory budget."""

    __slots__ = ("reserved", "surely_strict")

    def __init__(self) -> None:
        self.reserved = 0
        """Bytes of the budget that the run holds; 0 for almost all runs."""
        self.surely_strict = False
        """Whether the decompressed arguments surely pass the check of strict arguments."""


class PayloadDecoder:
    """Decode payloads for all runs of one process. Safe from any thread."""

    def __init__(
        self,
        running_jobs: RunningJobs,
        decompressed_limit: int,
        decoded_limit: int = DECODED_LIMIT,
        budget: MemoryBudget | None = None,
        protection: PayloadProtection = NO_PROTECTION,
    ) -> None:
        self._running_jobs = running_jobs
        self._decompressed_limit = decompressed_limit
        self._decoded_limit = decoded_limit
        self._budget = budget or MemoryBudget()
        self._protection = protection
        self._log_rate = LogRateLimit(_LOG_INTERVAL_S)
        # A payload of so few bytes stays below both limits, whatever it holds.
        self._small_bytes = min(LARGE_PAYLOAD, decoded_limit) // MAX_MEMORY_PER_BYTE

    def decode(self, unit: UnitOfWork, run: MemoryReservation) -> Payload:
        """Return the payload of a fetched job; wait for memory if it is large.

        Raises:
            PayloadError: the payload cannot be read, or exceeds a limit.
            Shutdown: the process stops before there is memory.
        """
        # Almost all payloads: no counting, no allocation.
        if len(unit.data) <= self._small_bytes:
            return decode(unit.data, None)
        payload = decode(unit.data, self._decoded_limit, partial(self._reserve, unit, run))
        if run.reserved:
            unit.show_payload(payload)
        return payload

    def decode_small(self, unit: UnitOfWork) -> Payload | None:
        """Return a payload that stays below all limits, whatever it holds; ``None`` for a larger one. Waits for nothing.

        Raises:
            PayloadError: the payload cannot be read.
        """
        return decode(unit.data, None) if len(unit.data) <= self._small_bytes else None

    def decompress(
        self, payload: Payload, unit: UnitOfWork, run: MemoryReservation, ensure_fetching: Callable[[], None]
    ) -> None:
        """Decompress, and if needed fetch and decrypt, the arguments of a payload in place; raises as ``decode`` does.

        ``ensure_fetching`` is called before a call to the payload store.

        Raises:
            MissingKeyError: this process lacks the key of the job.
            OffloadedArgumentsError: this process cannot read the payload store.
        """
        if payload.get(COMPRESSED):
            stored: Any = payload["args"]
            is_offloaded = OFFLOADED in payload and READ not in payload
            if is_offloaded:
                ensure_fetching()
            reserve = partial(self._reserve, unit, run)
            if decompress_arguments(
                payload, self._decompressed_limit, self._decoded_limit, reserve, self._protection.reader
            ):
                run.surely_strict = True
            if is_offloaded and self._protection.delete_blob is not None:
                # After the last acknowledgement of the job.
                unit.own_resources().on_removed = partial(self._protection.delete_blob, stored[0])

    def release(self, run: MemoryReservation, error: BaseException | None) -> None:
        """Free the memory of a settled run. ``error`` is what its job raised: its frames hold the decoded values."""
        if error is not None:
            traceback.clear_frames(error.__traceback__)
        self._budget.release(run.reserved)
        run.reserved = 0

    def _reserve(self, unit: UnitOfWork, run: MemoryReservation, memory: int) -> None:
        """Reserve memory for a run, in addition to its share.

        The share is released first, so that no two runs wait for each other.
        """
        wanted = run.reserved + memory
        if run.reserved:
            self._budget.release(run.reserved)
            run.reserved = 0
        began = time.monotonic()
        taken = self._budget.acquire(wanted, self._is_stopping)
        if taken is None:
            raise Shutdown
        run.reserved = taken
        waited_s = time.monotonic() - began
        if waited_s > _SLOW_WAIT_S:
            self._log_rate.warning(
                "",
                "large jobs wait until other large jobs free memory; raise size_limit.decoding_budget if this host has more memory",
                "decoding.memory_wait",
                queue=unit.queue,
                memory_bytes=wanted,
                waited_s=round(waited_s, 3),
            )

    def _is_stopping(self) -> bool:
        return self._running_jobs.stopping


# A class of its own: a process without signatures pays for no check.
class VerifyingDecoder(PayloadDecoder):
    """Check signatures, for all runs of one process. Safe from any thread."""

    def decompress(
        self, payload: Payload, unit: UnitOfWork, run: MemoryReservation, ensure_fetching: Callable[[], None]
    ) -> None:
        """See ``PayloadDecoder``.

        Raises:
            PayloadError: the signature is wrong, or missing and required.
            MissingKeyError: this process lacks the key of the signature.
        """
        self._protection.check(payload, unit.queue)
        super().decompress(payload, unit, run, ensure_fetching)


def open_decoder(
    sizes: SizeLimitSettings,
    protection: PayloadProtection,
    running_jobs: RunningJobs,
    budget: MemoryBudget | None = None,
) -> PayloadDecoder:
    kind = VerifyingDecoder if protection.signs else PayloadDecoder
    return kind(running_jobs, sizes.decompressed_limit, sizes.decoded_limit, budget, protection)
