"""Keep the runs of each hour in the database of tasks for 90 days, and read them. Loads SQLAlchemy.

A row has the whole count of its hour, read from Redis, never an increment. So a roll-up may be repeated: at a kill between the
read and the write nothing is written, and the next leader reads the hour again. A repeated roll-up whose keys have expired in part
writes nothing, because the larger count stays.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, cast

import redis
from sqlalchemy import Connection, delete, func, select
from sqlalchemy.dialects import postgresql, sqlite

from framework.features.history.series import (
    HOUR_S,
    MINUTE_S,
    SETTLED_S,
    TEN_MINUTES_S,
    Runs,
    read_durations,
    read_runs,
)
from framework.features.tasks.database import TaskDatabase, history
from framework.wire.keys import METRICS_LONG_S, METRICS_SHORT_S

KEEP_S = 90 * 86_400
_MARGIN_S = 2 * HOUR_S
"""Hours whose keys expire within this time are left out: what is read must be whole."""


@cache
def open_database(url: str) -> TaskDatabase:
    """Return the database of this URL, one for the process. Opens no connection."""
    return TaskDatabase(url)


class HourlyRollup:
    """Write the hours of one shard that have ended. Used by one thread at a time; several processes may run one."""

    def __init__(self, client: "redis.Redis", shard: str, database: TaskDatabase, versions: Sequence[int]) -> None:
        self._client = client
        self._shard = shard
        self._database = database
        self._versions = versions
        self._done: set[int] | None = None

    def run(self, now: float) -> int:
        """Write the hours that are not written yet, and remove old ones; return the number of written hours.

        Raises:
            redis errors, SQLAlchemyError: the hours before stay written; the next call goes on.
        """
        if self._done is None:
            self._done = self._written_hours()
        written = 0
        for hour in self._hours(now):
            if hour not in self._done:
                self._write(hour, now)
                self._done.add(hour)
                written += 1
        if written:
            self._database.write(lambda one: one.execute(delete(history).where(history.c.hour < now - KEEP_S)))
        return written

    def _hours(self, now: float) -> Iterator[int]:
        """Yield the beginnings of the hours that have ended, and whose keys Redis has."""
        kept = METRICS_LONG_S if max(self._versions) >= 8 else METRICS_SHORT_S
        first = int((now - kept + _MARGIN_S) // HOUR_S) * HOUR_S
        yield from range(first, int((now - SETTLED_S) // HOUR_S) * HOUR_S, HOUR_S)

    def _written_hours(self) -> set[int]:
        with self._database.reading() as connection:
            found = select(history.c.hour).where(history.c.shard == self._shard).distinct()
            return {row[0] for row in connection.execute(found)}

    def _write(self, hour: int, now: float) -> None:
        starts = range(hour, hour + HOUR_S, TEN_MINUTES_S)
        total: dict[str, Runs] = {}
        for one in read_runs(self._client, starts, TEN_MINUTES_S, self._versions, None):
            for name, runs in one.items():
                total[name] = total.get(name, Runs()).plus(runs)
        # The histograms of a minute are kept for eight hours only.
        minutes = [at for at in range(hour, hour + HOUR_S, MINUTE_S) if hour > now - METRICS_SHORT_S]
        durations = read_durations(self._client, minutes, self._versions, total)
        if total:
            self._database.write(lambda one: _upsert(one, self._rows(hour, total, durations)))

    def _rows(self, hour: int, total: Mapping[str, Runs], durations: Mapping[str, list[int]]) -> list[dict[str, Any]]:
        return [
            {
                "shard": self._shard,
                "worker": name[:255],
                "hour": hour,
                "processed": runs.processed,
                "failed": runs.failed,
                "seconds": runs.seconds,
                "durations": json.dumps(durations[name]) if any(durations[name]) else None,
            }
            for name, runs in total.items()
        ]


def _upsert(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    dialect: Any = postgresql if connection.dialect.name == "postgresql" else sqlite
    for row in rows:
        statement = dialect.insert(history).values(**row)
        changed = {name: statement.excluded[name] for name in ("processed", "failed", "seconds", "durations")}
        connection.execute(
            statement.on_conflict_do_update(
                index_elements=[history.c.hour, history.c.shard, history.c.worker],
                set_=changed,
                where=history.c.processed < statement.excluded.processed,
            )
        )


def read_kept_runs(
    database: TaskDatabase, first: float, last: float, cls: str | None, shard: str | None, step_s: int = HOUR_S
) -> Mapping[str, Mapping[int, Runs]]:
    """Return the runs by class and period, summed over the shards, from ``first`` to before ``last``. Raises SQLAlchemyError.

    The database adds up the hours of a period: 90 days of a class are 90 rows by day.
    """
    wanted = [history.c.hour >= first, history.c.hour < last]
    if cls is not None:
        wanted.append(history.c.worker == cls)
    if shard is not None:
        wanted.append(history.c.shard == shard)
    columns = (history.c.worker, (history.c.hour - history.c.hour % step_s).label("period"))
    sums = (func.sum(history.c.processed), func.sum(history.c.failed), func.sum(history.c.seconds))
    found: dict[str, dict[int, Runs]] = {}
    with database.reading() as connection:
        for worker, period, *counts in connection.execute(
            select(*columns, *sums).where(*wanted).group_by(history.c.worker, "period")
        ):
            processed, failed, seconds = cast("Sequence[Any]", counts)
            found.setdefault(worker, {})[period] = Runs(int(processed), int(failed), float(seconds))
    return found


def read_kept_durations(
    database: TaskDatabase, first: float, last: float, cls: str, shard: str | None
) -> list[list[int]]:
    """Return the histograms of a class, of each hour and shard. Raises SQLAlchemyError."""
    wanted = [history.c.hour >= first, history.c.hour < last, history.c.worker == cls, history.c.durations.is_not(None)]
    if shard is not None:
        wanted.append(history.c.shard == shard)
    with database.reading() as connection:
        return [json.loads(row[0]) for row in connection.execute(select(history.c.durations).where(*wanted))]
