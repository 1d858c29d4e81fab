"""Throttle limited classes by their database time, without code of the application (GitLab's rule, reference 8.6).

Each process sums the seconds of SQL of each class and database, and adds them to the shard's minute once in a few seconds. A class
that has used more than its quota of one database in the last minute is throttled: hard if no other class has used more of that
database, else soft. GitLab asks the database who holds the most connections; over a minute, seconds of SQL are the same figure.

At a crash: a process loses the seconds that it has not written, of a few seconds of time. Redis's clock says which minute it is.
"""

import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

import redis
from redis.exceptions import ResponseError

from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.features.concurrency.limits import Strategy
from framework.features.concurrency.settings import ConcurrencySettings
from framework.settings.base import SettingsBase
from framework.store.absent_keys import AbsentKeys
from framework.store.connect import server_time
from framework.store.script import Script, is_lasting
from framework.telemetry.job_events import JobObserver, RunOfJob
from framework.text import decode_escaped
from framework.wire import keys

ADD_SECONDS = Script("concurrency/add_seconds", "time")

MINUTE_S = 60.0
_MINUTES = 3
"""Keys of minutes: of this one, the last one, and one that has expired before it is written again."""


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


class DatabaseLoad:
    """Write the seconds of this process, and say which classes have used up their quota."""

    def __init__(self, client: "redis.Redis", quotas: Quotas, absent: AbsentKeys) -> None:
        self._client = client
        self._quotas = quotas
        self._absent = absent
        self._found: dict[str, dict[str, float]] = {}
        absent.watch(*minute_keys())

    def write(self) -> None:
        """Add the seconds of this process to the shard's minute; one script. Raises redis errors, except lasting refusals."""
        taken = class_seconds.take()
        if not taken:
            return
        arguments = [
            part for (worker, database), seconds in taken.items() for part in (f"{database}|{worker}", f"{seconds:.6f}")
        ]
        try:
            ADD_SECONDS(self._client, list(minute_keys()), arguments)
        except ResponseError as error:
            # Full, or a key of another type: without figures no class is throttled.
            if not is_lasting(error):
                raise

    def has_figures(self) -> bool:
        """See ``ReadSignal``. Sends nothing while the check for absent keys finds none."""
        names = minute_keys()
        if not any(self._absent.may_exist(name) for name in names):
            return False
        found = bool(self._client.exists(*names))
        for name in names:
            self._absent.note(name, found=found)
        return found

    def read(self) -> None:
        """See ``ReadSignal``."""
        names = list(minute_keys())
        now = server_time(self._client)
        pipeline: Any = self._client.pipeline(transaction=False)
        for name in names:
            pipeline.hgetall(name)
        replies = pipeline.execute(raise_on_error=False)
        self._found = seconds_of_last_minute(now, [one if isinstance(one, dict) else {} for one in replies])

    def __call__(self, worker: str, /) -> Strategy | None:
        """See ``LoadSignal``."""
        found = registry.find(worker)
        return None if found is None else strategy_of(worker, self._quotas.of(found.declaration()), self._found)


def minute_keys() -> tuple[str, ...]:
    """Return the keys of the minutes; the one of a minute is its number modulo their count."""
    return tuple(keys.database_seconds(number) for number in range(_MINUTES))


def seconds_of_last_minute(now: float, minutes: "list[Mapping[bytes, bytes]]") -> dict[str, dict[str, float]]:
    """Return the seconds of the last minute by database and class: this minute, and the part of the last one that is as old."""
    minute, passed = divmod(now, MINUTE_S)
    shares = {int(minute) % _MINUTES: 1.0, int(minute - 1) % _MINUTES: 1.0 - passed / MINUTE_S}
    found: dict[str, dict[str, float]] = {}
    for number, share in shares.items():
        for name, value in minutes[number].items():
            database, _, worker = decode_escaped(name).partition("|")
            try:
                seconds = float(value) * share
            except ValueError:
                continue
            classes = found.setdefault(database, {})
            classes[worker] = classes.get(worker, 0.0) + seconds
    return found


def strategy_of(worker: str, quota: float, found: "Mapping[str, Mapping[str, float]]") -> Strategy | None:
    """Return whether the class has used more than its quota of a database, and whether no other has used more of it."""
    strategy: Strategy | None = None
    for classes in found.values():
        used = classes.get(worker, 0.0)
        if 0 < quota < used:
            if used >= max(classes.values()):
                return "hard"
            strategy = "soft"
    return strategy


def open_load(client: "redis.Redis", settings: SettingsBase, absent: AbsentKeys) -> DatabaseLoad | None:
    """Return the load of the databases if the settings have a quota."""
    own = ConcurrencySettings.of(settings)
    quotas = Quotas(own.throttling_database_seconds, own.throttling_database_seconds_high)
    return DatabaseLoad(client, quotas, absent) if quotas.exist else None
