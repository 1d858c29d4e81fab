"""Throttle limited classes by their database time, without code of the application (GitLab's rule, reference 8.6).

Each process sums the seconds of SQL of each class and database, and adds them to the shard's minute once in a few seconds. A class
that has used more than its quota of one database in the last minute is throttled: hard if no other class has used more of that
database, else soft. GitLab asks for the class with the most connections; over a minute, seconds of SQL are the same figure.

At a crash: a process loses the seconds that it has not written, of a few seconds of time. Redis's clock says which minute it is. A
call without an answer is not repeated: its seconds count once or not at all, and never twice, which would throttle a class that is
within its quota.
"""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import redis
from redis.exceptions import ResponseError

from framework.declare import registry
from framework.features.concurrency.observer import Quotas, class_seconds
from framework.features.concurrency.settings import ConcurrencySettings
from framework.settings.base import SettingsBase
from framework.store.absent_keys import AbsentKeys
from framework.store.connect import server_time
from framework.store.script import Script, is_lasting
from framework.text import decode_escaped
from framework.wire import keys

Strategy: TypeAlias = Literal["hard", "soft"]
"""How far a limit is lowered: to a half, or to four fifths."""

ADD_SECONDS = Script("concurrency/add_seconds", "time")

MINUTE_S = 60.0
_MINUTES = 3
"""Keys of minutes: of this one, the last one, and one that has expired before it is written again."""


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
        """Return whether there is anything to read. Sends nothing while the check for absent keys finds none."""
        names = minute_keys()
        if not any(self._absent.may_exist(name) for name in names):
            return False
        found = bool(self._client.exists(*names))
        for name in names:
            self._absent.note(name, found=found)
        return found

    def read(self) -> None:
        """Read the figures of the last minute. Raises redis errors."""
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
