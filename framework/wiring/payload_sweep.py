"""Build the sweep of the payload store from the settings."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from framework.all_settings import Settings
from framework.process.payload_upkeep import PayloadUpkeep, log_sweep, sweep_period_s
from framework.shard.shards import open_shards
from framework.wiring.payloads import open_offload


def open_payload_upkeep(settings: Settings, leads: Callable[[], bool]) -> tuple[Callable[[], None], ...]:
    """Return the periodic sweep, nothing without a payload store. Opens no socket."""
    offload, keep_s = open_offload(settings), settings.payload_offload.keep
    if offload is None:
        return ()

    def sweep(period_s: float) -> None:
        # Of its own and closed again: one sweep in hours needs no connection to every shard meanwhile.
        shards = open_shards(settings, role="payload-sweep")
        try:
            # Loaded for the first sweep: a process without a payload store does not pay for the search of jobs.
            made: Any = import_module("framework.admin.payload_sweep")
            sweeper = made.PayloadSweeper(offload, keep_s, {name: shards[name].client for name in shards})
            if sweeper.claim(period_s):
                found = sweeper.sweep()
                sweeper.end_claim()
                if found.deleted:
                    log_sweep(found.deleted, found.deleted_size)
        finally:
            shards.close()

    return (PayloadUpkeep(sweep, leads, sweep_period_s(keep_s)).step,)
