"""Sum the seconds of SQL of the jobs of this process, by class and database."""

import threading
from typing import NamedTuple

from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.features.concurrency.settings import ConcurrencySettings
from framework.settings.base import SettingsBase
from framework.telemetry.job_events import JobObserver, RunOfJob


class Quotas(NamedTuple):
    """The seconds of one database that a class may use in a minute, and those with high urgency. 0 is no quota."""

    seconds: float
    high_seconds: float

    def of(self, declaration: Declaration) -> float:
        return self.high_seconds if declaration.urgency == "high" else self.seconds

    @property
    def exist(self) -> bool:
        return self.seconds > 0 or self.high_seconds > 0


class ClassSeconds:
    """The seconds of SQL of this process by class and database that are not written yet. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds: dict[tuple[str, str], float] = {}

    def add(self, worker: str, database: str, seconds: float) -> None:
        with self._lock:
            self._seconds[worker, database] = self._seconds.get((worker, database), 0.0) + seconds

    def take(self) -> dict[tuple[str, str], float]:
        with self._lock:
            taken, self._seconds = self._seconds, {}
        return taken


class_seconds = ClassSeconds()
"""Those of this process: the observer of its runs adds to them, its periodic work writes them."""


class SecondsObserver(JobObserver):
    """Add up what runs have used of databases. A run without SQL costs one test."""

    def ended(self, run: RunOfJob) -> None:
        usage = run.usage
        if usage is None or not usage.db_count or run.declaration is None:
            return
        name, rest = run.declaration.wire_name, usage.db_duration_s
        for database, one in usage.databases.items():
            class_seconds.add(name, database, one.duration_s)
            rest -= one.duration_s
        if rest > 1e-9:
            class_seconds.add(name, "", rest)


def observer(settings: SettingsBase) -> JobObserver | None:
    """Return the observer if a class of this process may be throttled."""
    return SecondsObserver() if may_throttle(settings) else None


def may_throttle(settings: SettingsBase) -> bool:
    """Return whether a class of this process has a limit that its database time may lower."""
    own = ConcurrencySettings.of(settings)
    quotas = Quotas(own.throttling_database_seconds, own.throttling_database_seconds_high)
    return quotas.exist and (
        own.concurrency_limit_by_urgency
        or any(
            one.declaration().facts["concurrency_limit"] or one.declaration().facts["max_concurrency_limit_percentage"]
            for one in registry.workers()
        )
    )
