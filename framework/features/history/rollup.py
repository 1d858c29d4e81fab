"""Keep the runs of each hour and day in the database of tasks for 90 days, and read them. Loads SQLAlchemy.

A row has the whole count of its hour, read from Redis, never an increment. So a roll-up may be repeated: at a kill between the
read and the write nothing is written, and the next leader reads the hour again. A repeated roll-up whose keys have expired in part
writes nothing, because the larger count stays. A day has the sums of the hours that the database has. The transaction that writes
an hour writes its day, so a day has all written hours at every moment.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, cast

import redis
from pydantic_core import from_json
from sqlalchemy import Connection, delete, func, select, true, update
from sqlalchemy.dialects import postgresql, sqlite

from framework.features.history.series import (
    DAY_S,
    HOUR_S,
    MINUTE_S,
    SETTLED_S,
    TEN_MINUTES_S,
    Runs,
    read_durations,
    read_runs,
)
from framework.features.history.urgencies import UrgencyRuns, read_urgencies, sum_urgencies, urgency_runs
from framework.features.tasks.database import TaskDatabase, history, history_days, urgency_history
from framework.types import Urgency
from framework.wire.keys import METRICS_LONG_S, METRICS_SHORT_S

KEEP_S = 90 * DAY_S
_MARGIN_S = 2 * HOUR_S
"""Hours whose keys expire within this time are left out: what is read must be whole."""
_COLUMNS = ("processed", "failed", "seconds")


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
            done = self._written_hours()
            self._complete_days(done, now)
            self._done = done
        written = 0
        for hour in self._hours(now):
            if hour not in self._done:
                self._write(hour, now)
                self._done.add(hour)
                written += 1
        if written:
            self._database.write(lambda one: _remove_before(one, now - KEEP_S))
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

    def _complete_days(self, hours: set[int], now: float) -> None:
        """Write the days that are missing, and the last ones: an earlier release wrote hours alone. Each is a transaction."""
        with self._database.reading() as connection:
            rows = connection.execute(select(history_days.c.day).where(history_days.c.shard == self._shard))
            known = {row[0] for row in rows if row[0] + DAY_S < now - METRICS_LONG_S}
        for day in sorted({hour - hour % DAY_S for hour in hours} - known):
            self._database.write(lambda one, day=day: _write_day(one, self._shard, day))  # type: ignore[misc]

    def _write(self, hour: int, now: float) -> None:
        starts = range(hour, hour + HOUR_S, TEN_MINUTES_S)
        total: dict[str, Runs] = {}
        for one in read_runs(self._client, starts, TEN_MINUTES_S, self._versions, None):
            for name, runs in one.items():
                total[name] = total.get(name, Runs()).plus(runs)
        # The histograms of a minute are kept for eight hours only.
        minutes = [at for at in range(hour, hour + HOUR_S, MINUTE_S) if hour > now - METRICS_SHORT_S]
        durations = read_durations(self._client, minutes, self._versions, total)
        urgencies = sum_urgencies(read_urgencies(self._client, starts, TEN_MINUTES_S))

        def change(connection: Connection) -> None:
            _upsert(connection, self._rows(hour, total, durations))
            _upsert_urgencies(connection, HOUR_S, hour, self._shard, hour + HOUR_S, urgencies)
            _write_day(connection, self._shard, hour - hour % DAY_S)

        if total:
            self._database.write(change)

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


def _insert(connection: Connection, table: Any) -> Any:
    dialect: Any = postgresql if connection.dialect.name == "postgresql" else sqlite
    return dialect.insert(table)


def _remove_before(connection: Connection, at: float) -> None:
    for column in (history.c.hour, history_days.c.day, urgency_history.c.start):
        connection.execute(delete(column.table).where(column < at))


def _upsert(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    statement = _insert(connection, history)
    changed = {name: statement.excluded[name] for name in (*_COLUMNS, "durations")}
    statement = statement.on_conflict_do_update(
        index_elements=[history.c.hour, history.c.shard, history.c.worker],
        set_=changed,
        where=history.c.processed < statement.excluded.processed,
    )
    connection.execute(statement, rows)


def _upsert_urgencies(
    connection: Connection, step_s: int, start: int, shard: str, until: int, urgencies: Mapping[Urgency, UrgencyRuns]
) -> None:
    """Write the runs by urgency of an hour or a day, of which the database has the hours before ``until``."""
    table = urgency_history
    runs = sum(one.processed for one in urgencies.values())
    if not runs:
        return
    counts = json.dumps({"until": until, "urgencies": urgencies})
    statement = _insert(connection, table).values(step_s=step_s, start=start, shard=shard, runs=runs, counts=counts)
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=[table.c.step_s, table.c.start, table.c.shard],
            set_={name: statement.excluded[name] for name in ("runs", "counts")},
            where=table.c.runs < statement.excluded.runs,
        )
    )


def _write_day(connection: Connection, shard: str, day: int) -> None:
    """Write the sums of the hours that the database has of a day."""
    days, at = history_days, (history_days.c.day == day) & (history_days.c.shard == shard)
    statement = _insert(connection, days).values(day=day, shard=shard, runs="")
    # Locks the row: of two leaders that write hours of the day, the second one sees the hour of the first.
    connection.execute(
        statement.on_conflict_do_update(index_elements=[days.c.day, days.c.shard], set_={"runs": days.c.runs})
    )
    hours = history.c
    sums = [func.sum(hours[name]) for name in _COLUMNS]
    of_day = (hours.shard == shard) & (hours.hour >= day) & (hours.hour < day + DAY_S)
    found = select(hours.worker, func.max(hours.hour), *sums).where(of_day).group_by(hours.worker)
    rows = connection.execute(found).all()
    workers, last, processed, failed, seconds = zip(*rows, strict=True)
    until = max(last) + HOUR_S
    columns = list(map(int, processed)), list(map(int, failed)), list(map(float, seconds))
    runs = json.dumps({"until": until, "workers": workers, **dict(zip(_COLUMNS, columns, strict=True))})
    connection.execute(update(days).where(at).values(runs=runs))
    urgencies = _read_urgency_rows(connection, HOUR_S, day, day + DAY_S, [shard])
    total = sum_urgencies(one.runs for one in urgencies)
    _upsert_urgencies(connection, DAY_S, day, shard, until, total)


# --- reading


class KeptRuns(NamedTuple):
    """What the database has of one shard."""

    until: float
    """The end of the last hour that it has."""
    classes: Mapping[str, list[Runs]]
    """The runs of each class by period."""


def read_kept_runs(
    database: TaskDatabase, starts: Sequence[float], step_s: int, cls: str | None, shards: Sequence[str] | None
) -> dict[str, KeptRuns]:
    """Return the runs of the periods that begin at ``starts``, by shard: of these shards, or of all. Raises SQLAlchemyError.

    ``step_s`` is an hour or a day. 90 days of 300 classes are 90 rows.
    """
    places = {int(start): at for at, start in enumerate(starts)}
    found: dict[str, dict[str, list[Runs]]] = {}
    until: dict[str, float] = {}
    none = Runs()
    read = _days if step_s == DAY_S else _hours
    with database.reading() as connection:
        for shard, start, end, columns in read(connection, places, cls, shards):
            of_shard, at = found.setdefault(shard, {}), places[start]
            until[shard] = max(until.get(shard, 0.0), end)
            workers, *counts = columns
            for name, runs in zip(workers, map(Runs, *counts), strict=True):
                known = of_shard.get(name)
                if known is None:
                    known = of_shard[name] = [none] * len(starts)
                known[at] = runs
    return {shard: KeptRuns(until[shard], one) for shard, one in found.items()}


def _of(column: Any, shards: Sequence[str] | None) -> Any:
    return true() if shards is None else column.in_(shards)


_Row = tuple[str, int, float, Sequence[Sequence[Any]]]
"""A shard, the beginning of a period, the end of what is known of it, and the columns of its classes."""


def _days(
    connection: Connection, places: Mapping[int, int], cls: str | None, shards: Sequence[str] | None
) -> Iterator[_Row]:
    days = history_days.c
    wanted = _of(days.shard, shards), days.day >= min(places), days.day <= max(places)
    for day, shard, text in connection.execute(select(days.day, days.shard, days.runs).where(*wanted)):
        runs = from_json(text)
        columns = [runs[name] for name in ("workers", *_COLUMNS)]
        if cls is not None:
            at = columns[0].index(cls) if cls in columns[0] else len(columns[0])
            columns = [column[at : at + 1] for column in columns]
        yield shard, day, runs["until"], columns


def _hours(
    connection: Connection, places: Mapping[int, int], cls: str | None, shards: Sequence[str] | None
) -> Iterator[_Row]:
    hours = history.c
    wanted = [_of(hours.shard, shards), hours.hour >= min(places), hours.hour <= max(places)]
    if cls is not None:
        wanted.append(hours.worker == cls)
    columns = (hours.hour, hours.shard, hours.worker, *(hours[name] for name in _COLUMNS))
    for row in connection.execute(select(*columns).where(*wanted)):
        hour, shard, *values = cast("Sequence[Any]", row)
        yield shard, hour, hour + HOUR_S, [[value] for value in values]


def read_kept_durations(
    database: TaskDatabase, first: float, last: float, cls: str, shards: Sequence[str] | None
) -> list[list[int]]:
    """Return the histograms of a class, of each hour and shard. Raises SQLAlchemyError."""
    hours = history.c
    wanted = [hours.hour >= first, hours.hour < last, hours.worker == cls, hours.durations.is_not(None)]
    with database.reading() as connection:
        found = connection.execute(select(hours.durations).where(*wanted, _of(hours.shard, shards)))
        return [from_json(row[0]) for row in found]


class KeptUrgencies(NamedTuple):
    """The runs by urgency of an hour or a day of one shard."""

    shard: str
    start: int
    until: float
    runs: Mapping[Urgency, UrgencyRuns]


def read_kept_urgencies(
    database: TaskDatabase, starts: Sequence[float], step_s: int, shards: Sequence[str]
) -> list[KeptUrgencies]:
    """Return what the database has of the periods from ``starts`` on; ``step_s`` is an hour or a day. Raises SQLAlchemyError."""
    with database.reading() as connection:
        return _read_urgency_rows(connection, step_s, starts[0], starts[-1] + 1, shards)


def _read_urgency_rows(
    connection: Connection, step_s: int, first: float, end: float, shards: Sequence[str]
) -> list[KeptUrgencies]:
    table = urgency_history.c
    wanted = table.step_s == step_s, table.start >= first, table.start < end, table.shard.in_(shards)
    found: list[KeptUrgencies] = []
    for start, shard, text in connection.execute(select(table.start, table.shard, table.counts).where(*wanted)):
        counts = from_json(text)
        runs = {name: urgency_runs(one) for name, one in counts["urgencies"].items()}
        found.append(KeptUrgencies(shard, start, counts["until"], runs))
    return found
