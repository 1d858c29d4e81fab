"""Let one process of each shard have the figures of the shard in its own ``/metrics``: the one that holds a lease.

A supervisor answers for its children, and so has the figures of the shards that one of its children reports.
"""

import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast

from framework.admin.figures import Figure
from framework.all_settings import Settings
from framework.declare import registry
from framework.features.observability import keys
from framework.features.observability.exporter import open_fleet
from framework.features.observability.shard_watch import Fleet, ShardAnswer, ShardWatch
from framework.features.observability.store import REPORT
from framework.process.identity import identity_of
from framework.process.worker_parts import ProcessContext
from framework.process_clock import process_clock
from framework.route.router import open_router
from framework.settings.base import SettingsBase
from framework.shard.shards import open_shards

LEASE_S = 30.0
_RENEW_S = 10.0

_NOTHING = ShardAnswer((), {})


class _ReportedShard:
    """The shard of this worker process; empty in a supervisor, whose children may serve several."""

    name = ""


class ReporterLease:
    """Take and renew the lease of the shard that this worker process serves. For the thread of the periodic work."""

    def __init__(self, process: ProcessContext) -> None:
        self._client = process.upkeep
        self._identity = process.identity
        self._due_at = 0.0
        _ReportedShard.name = process.shard.name

    def renew(self) -> None:
        """Take or renew the lease, once per period. Raises redis errors."""
        now = process_clock.monotonic()
        if now >= self._due_at:
            self._due_at = now + _RENEW_S
            REPORT(self._client, [keys.REPORTER], [self._identity, round(LEASE_S * 1_000)])


class ReporterWatch(ShardWatch):
    """Read a shard only if this process, or a child of it, reports it."""

    _reports = False

    def answer(self) -> ShardAnswer:
        self._reports = is_here(cast("bytes | None", self._client.get(keys.REPORTER)))
        if not self._reports:
            return _NOTHING
        found = super().answer()
        # A supervisor loads no classes, and so does not know the targets of the queues.
        return found if self._classes.urgencies else found._replace(figures=without_slots(found.figures), slots={})

    def away(self, error: Exception) -> ShardAnswer:
        return super().away(error) if self._reports else _NOTHING


def without_slots(figures: Sequence[Figure]) -> Sequence[Figure]:
    """Return the figures without the needed slots."""
    return [one for one in figures if one.name != "application_worker_slots_needed"]


def is_here(identity: bytes | None) -> bool:
    """Return whether the identity is that of this process, or of a child of it."""
    host, _, rest = (identity or b"").decode(errors="replace").rpartition(":")[0].rpartition(":")
    if not rest.isdigit() or host != identity_of(0, "").rpartition(":")[0].rpartition(":")[0]:
        return False
    return int(rest) == os.getpid() or _parent_of(int(rest)) == os.getpid()


def _parent_of(pid: int) -> int:
    """Return the parent of a process; 0 if it has ended, or where the system does not say."""
    with suppress(OSError, ValueError, IndexError):
        # The name of the program, in parentheses, may contain anything.
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


class Reporter:
    """The figures that ``/metrics`` of this process adds to its own counts. Opens no socket before the first request."""

    def __init__(self, settings: SettingsBase) -> None:
        self._settings = cast("Settings", settings)
        self._lock = threading.Lock()
        self._fleet: Fleet | None = None

    def figures(self) -> Sequence[Figure]:
        """Return the figures of the shards that this process or its children report: within a second."""
        with self._lock:
            if self._fleet is None:
                self._fleet = self._open()
        return self._fleet.figures()

    def close(self) -> None:
        """Close the connections."""
        if self._fleet is not None:
            self._fleet.close()

    def _open(self) -> Fleet:
        settings, name = self._settings, _ReportedShard.name
        shards = [shard for shard in open_shards(settings, role="reporter").values() if name in ("", shard.name)]
        declarations = [one.declaration() for one in registry.workers()] if name else []
        return open_fleet(settings, shards, open_router(settings), declarations, of_host=False, watch=ReporterWatch)
