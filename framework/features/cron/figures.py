"""Read the figures of cron for Prometheus: whether a process leads, and how late each entry is."""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from framework.admin.figures import Figure, FigureReader, rows
from framework.declare.declaration import Declaration
from framework.features.cron.entries import AddedEntries, CronEntry, collect_entries
from framework.features.cron.settings import CronSettings
from framework.features.cron.store import Snapshot, decode_snapshot
from framework.push.protection import PayloadProtection, open_protection
from framework.route.router import Router, open_router
from framework.settings.base import SettingsBase
from framework.settings.model import CoreSettings


class CronFigures(FigureReader):
    """Yield the lag of each entry whose class is loaded, and whether a process leads."""

    def __init__(self, settings: SettingsBase) -> None:
        super().__init__(settings)
        self._settings = CronSettings.of(settings)
        self._added: dict[str, AddedEntries] = {}

    def argument(self) -> str:
        return self._settings.cron.application

    def read(self, shard: str, reply: Any, now: float) -> Iterator[Figure]:
        for leader, *found in rows(reply, 4):
            yield Figure("application_worker_leader", {}, int(bool(leader)))
            states, orders, added = ({one[0]: one[1] for one in rows(pairs, 2)} for pairs in found)
            application, signatures = self._settings.cron.application, self._protection.state
            snapshot = decode_snapshot(application, signatures, now, states, orders, added)
            for entry in self._entries_on(shard, snapshot):
                yield from _figures_of(entry, snapshot)

    @cached_property
    def _protection(self) -> PayloadProtection:
        return open_protection(self._settings)

    @cached_property
    def _router(self) -> Router:
        return open_router(CoreSettings.of(self.settings))

    @cached_property
    def _configured(self) -> list[tuple[str, CronEntry]]:
        return [(self._shard_of(one.declaration), one) for one in collect_entries(self._settings).values()]

    def _shard_of(self, declaration: Declaration) -> str:
        return self._router.home(declaration)

    def _entries_on(self, shard: str, snapshot: Snapshot) -> Iterator[CronEntry]:
        if shard not in self._added:
            self._added[shard] = AddedEntries(self._settings, shard, self._shard_of)
        yield from (entry for its_shard, entry in self._configured if its_shard == shard)
        yield from self._added[shard].usable(snapshot.added).values()


def _figures_of(configured: CronEntry, snapshot: Snapshot) -> Iterator[Figure]:
    order, state = snapshot.orders.get(configured.name), snapshot.states.get(configured.name)
    entry = configured if order is None else configured.ordered(order)
    # A new or changed entry begins with its next tick.
    if not entry.enabled or state is None or state.fingerprint != entry.fingerprint:
        return
    labels = {"entry": entry.name, "worker": entry.declaration.wire_name}
    due = entry.expression.next_after(state.tick)
    lag_s = 0.0 if due is None else max(0.0, snapshot.now - due - entry.offset_s)
    yield Figure("application_worker_cron_lag_seconds", labels, round(lag_s, 3))
    yield Figure("application_worker_cron_last_tick_timestamp_seconds", labels, state.tick)
