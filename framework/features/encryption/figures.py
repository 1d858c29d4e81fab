"""Read the figures of the payload store for Prometheus, as this host sees it."""

from collections.abc import Iterator
from functools import cached_property

from framework.admin.figures import Figure, FigureReader, age, number
from framework.features.encryption.offload import PayloadOffload
from framework.features.encryption.protection import open_offload
from framework.features.encryption.settings import EncryptionSettings
from framework.features.encryption.sweep import LAST_SWEEP
from framework.process_clock import process_clock


class PayloadStoreFigures(FigureReader):
    """Yield whether the store answers, and the age of its last sweep. One read of a small blob."""

    def of_host(self) -> Iterator[Figure]:
        if self._offload is None:
            return
        try:
            last = self._offload.store.get(LAST_SWEEP)
        except OSError:
            yield Figure("application_worker_payload_store_up", {}, 0)
            return
        yield Figure("application_worker_payload_store_up", {}, 1)
        if last is not None:
            swept_s = age(process_clock.now(), number(last.partition(b" ")[0].strip()))
            yield Figure("application_worker_payload_store_sweep_age_seconds", {}, swept_s)

    @cached_property
    def _offload(self) -> PayloadOffload | None:
        return open_offload(EncryptionSettings.of(self.settings))
