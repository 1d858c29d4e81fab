"""Sweep the payload store from time to time, as the leader of a shard."""

from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from framework.feature import Late
from framework.features.encryption.offload import PayloadOffload
from framework.features.encryption.protection import open_offload
from framework.features.encryption.settings import EncryptionSettings
from framework.process.worker_parts import ProcessContext, WorkerPart
from framework.process_clock import process_clock
from framework.shard.shards import open_shards
from framework.supervised_threads import SupervisedThread
from framework.telemetry import logs
from framework.telemetry.logs import LogRateLimit

if TYPE_CHECKING:
    from framework.features.encryption.sweep import PayloadSweeper

# Loaded for the first sweep: a process without a payload store does not pay for the search of jobs.
_SWEEPER: "Late[type[PayloadSweeper]]" = Late("framework.features.encryption.sweep:PayloadSweeper")
_LOG_PERIOD_S = 600.0
_LONGEST_PERIOD_S = 21_600.0


def sweep_period_s(keep_s: float) -> float:
    return min(keep_s / 4, _LONGEST_PERIOD_S)


class PayloadUpkeep:
    """Sweep the store in a thread from time to time while this process leads. The processes of all shards agree on one."""

    def __init__(self, process: ProcessContext, offload: PayloadOffload, keep_s: float) -> None:
        self._process = process
        self._offload = offload
        self._keep_s = keep_s
        self._period_s = period_s = sweep_period_s(keep_s)
        # The first look comes early, because processes may restart more often than the period.
        self._next = process_clock.monotonic() + min(60.0, period_s)
        self._thread: SupervisedThread | None = None
        self._rate = LogRateLimit(_LOG_PERIOD_S)

    def step(self) -> None:
        """Begin a sweep in a thread if it is due and this process leads."""
        if (
            process_clock.monotonic() < self._next
            or not self._process.leads()
            or (self._thread and self._thread.is_alive())
        ):
            return
        self._next = process_clock.monotonic() + min(600.0, self._period_s)
        self._thread = SupervisedThread("payload-sweep", self._work)
        self._thread.start()

    def _work(self) -> None:
        try:
            self._sweep()
        except (OSError, RedisError) as error:
            self._rate.error(
                "sweep",
                "the payload store was not swept; the next sweep tries again, and no blob of a job is lost. Look at the error",
                "payload_store.sweep_failed",
                error=error,
            )

    def _sweep(self) -> None:
        # Of its own and closed again: one sweep in hours needs no connection to every shard meanwhile.
        shards = open_shards(self._process.settings, role="payload-sweep")
        try:
            sweeper = _SWEEPER.load()(self._offload, self._keep_s, {name: shards[name].client for name in shards})
            if sweeper.claim(self._period_s):
                found = sweeper.sweep()
                sweeper.end_claim()
                if found.deleted:
                    log_sweep(found.deleted, found.deleted_size)
        finally:
            shards.close()


def log_sweep(count: int, size: int) -> None:
    """Log a sweep that has deleted ``count`` blobs of ``size`` bytes."""
    logs.logger().info(
        "blobs that no job has named for long were deleted from the payload store",
        event_name="payload_store.swept",
        count=count,
        size=size,
    )


def worker_part(process: ProcessContext) -> WorkerPart:
    """Return the part of the payload store in a worker process, nothing without a store. Opens no socket."""
    settings = EncryptionSettings.of(process.settings)
    offload, keep_s = open_offload(settings), settings.payload_offload.keep
    if offload is None:
        return WorkerPart()
    return WorkerPart(periodic=(PayloadUpkeep(process, offload, keep_s).step,))
