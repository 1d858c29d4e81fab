"""Keep blocks of packed jobs in the payload store.

Encrypted arguments are encrypted in a block too: it has the payloads as they were in Redis.
"""

import threading
import time
from collections import deque
from typing import NoReturn

from framework.errors import StoredBlocksError
from framework.features.encryption.offload import PayloadOffload
from framework.features.encryption.protection import open_offload
from framework.features.encryption.settings import EncryptionSettings
from framework.settings.base import SettingsBase
from framework.store.block_store import IN_REDIS, BlockStore
from framework.telemetry.logs import LogRateLimit
from framework.wire import blocks

_LOG_INTERVAL_S = 60.0
_RETRY_S = 5.0
"""For how long each use fails at once after one that failed: a bucket that hangs takes 20 s and more, and a step has many uses."""

_KEPT_S = 60.0
"""How long an object stays after its reference has left: a failover may bring the reference back, with the last writes lost."""


class StoredBlocks(BlockStore):
    """See ``BlockStore``. The jobs of one block are one blob."""

    def __init__(self, offload: PayloadOffload) -> None:
        self._offload = offload
        self._log_rate = LogRateLimit(_LOG_INTERVAL_S)
        self._lock = threading.Lock()
        self._away_until, self._reason = 0.0, ""
        self._unnamed = deque[tuple[float, str]]()
        """Objects without a reference, with the time of the monotonic clock at which each is deleted."""

    def keep(self, block: bytes) -> bytes:
        """See ``BlockStore``."""
        self._check_away()
        try:
            return blocks.refer(block, self._offload.put(block))
        except OSError as error:
            self._unavailable(f"the payload store {self._offload.url} did not take a block: {error}")

    def _get(self, blob_id: str) -> bytes:
        self._check_away()
        try:
            return self._offload.get(blob_id)
        except OSError as error:
            self._unavailable(str(error))

    def _check_away(self) -> None:
        if time.monotonic() < self._away_until:
            raise StoredBlocksError(self._reason)

    def _delete(self, blob_id: str) -> None:
        now = time.monotonic()
        with self._lock:
            self._unnamed.append((now + _KEPT_S, blob_id))
            over = [self._unnamed.popleft()[1] for at, _ in list(self._unnamed) if at <= now]
        # What is left at the end of the process is deleted by the sweep.
        for one in over:
            self._offload.delete(one)

    def _unavailable(self, reason: str) -> NoReturn:
        self._reason, self._away_until = reason, time.monotonic() + _RETRY_S
        self._log_rate.error(
            "blocks",
            f"packed jobs wait and no more are packed, because {reason}. Make the store of payload_offload.url reachable for this "
            "process",
            "payload_store.blocks_unavailable",
        )
        raise StoredBlocksError(reason)


def stored_blocks(settings: SettingsBase) -> BlockStore:
    """Return the store of blocks of a process with these settings. Opens no connection.

    Raises:
        ConfigurationError: the extra is not installed.
    """
    offload = open_offload(EncryptionSettings.of(settings))
    return IN_REDIS if offload is None else StoredBlocks(offload)
