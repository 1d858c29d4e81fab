"""Read the figures of one shard and of its Redis, with at most five commands however many queues there are."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import redis
from redis.exceptions import NoPermissionError

from framework.admin.figures import Figure, FigureReader, age, number, rows
from framework.feature import features
from framework.features.observability.catalogue import SHARD_PREFIX
from framework.features.observability.figure_text import read_series
from framework.features.observability.redis_figures import read_server_figures
from framework.features.observability.store import READ_FLEET
from framework.settings.base import SettingsBase
from framework.store.connect import certificate_end, server_time
from framework.text import decode_escaped
from framework.types import Priority
from framework.wire import keys
from framework.wire.job import timestamp
from framework.wire.json import loads_object
from framework.wire.sub_queues import NORMAL, level_of, parent_of

_QUEUES_AT_ONCE, _MOST_CALLS, _MOST_PROCESSES = 2_000, 3, 1_000
"""No call stops Redis for more than 20 ms. Further queues and processes are left out, which a figure says."""

_MINUTES = 3
"""The minutes whose runs say how long the jobs of a class take, the current one included."""

_MOST_RUNS = 10**18
"""A larger count was written by another program."""

_LIMIT_IN_FORCE = "sidekiq_concurrency_limit_current_limit"
_SET_FIGURES = (
    (keys.SCHEDULE, "sidekiq_jobs_scheduled_size"),
    (keys.RETRY, "sidekiq_jobs_retry_size"),
    (keys.DEAD, "sidekiq_jobs_dead_size"),
    (keys.INTERRUPTED, "application_worker_interrupted_size"),
)


class ProcessLoad(NamedTuple):
    """What one process says of its work."""

    busy: int
    slots: int
    runs: Mapping[str, int]
    """Ended runs since its start, by queue."""
    running: Mapping[str, int]
    """Running jobs by queue. Sidekiq's processes do not say."""


class ClassRuns(NamedTuple):
    """The runs of a class in the last minutes, and their seconds."""

    ended: int
    seconds: float


@dataclass(slots=True)
class FleetReading:
    """The figures of a shard at one moment, and what the number of needed slots follows from."""

    shard: str
    now: float
    figures: list[Figure] = field(default_factory=list[Figure])
    only_load: bool = False
    """Whether only the load was read: there are no figures."""
    sizes: dict[str, int] = field(default_factory=dict[str, int])
    """The jobs in each queue."""
    paused: frozenset[str] = frozenset()
    processes: dict[str, ProcessLoad] = field(default_factory=dict[str, ProcessLoad])
    classes: dict[str, ClassRuns] = field(default_factory=dict[str, ClassRuns])
    limits: dict[str, int] = field(default_factory=dict[str, int])
    """The limit in force of each class that has one."""
    certificate_end: float | None = None
    """When the certificate of the server ends; ``None`` without TLS."""

    def add(self, name: str, value: float, /, **labels: str) -> None:
        """Add a figure of the shard."""
        if self.only_load:
            return
        self.figures.append(Figure(name, {**labels, "shard": self.shard}, value))


class FleetReader:
    """Read the figures of shards. Use one object for all of them; it remembers nothing of a shard."""

    def __init__(self, settings: SettingsBase) -> None:
        records = [one.figures for one in features() if one.figures is not None]
        self._readers: list[tuple[bool, FigureReader]] = [
            (bool(one.part), one.reader.load()(settings)) for one in records
        ]

    def of_host(self) -> Iterator[Figure]:
        """Yield the figures of this host, without asking Redis."""
        for _, reader in self._readers:
            yield from reader.of_host()

    def read(self, shard: str, client: "redis.Redis", *, only_load: bool = False) -> FleetReading:
        """Read the figures of a shard: TIME, a script (again for more than 2,000 queues), INFO. Raises redis errors.

        ``only_load`` leaves out the figures: a page reads what the needed slots follow from.
        """
        began, sent_at = time.monotonic(), time.time()
        now = server_time(client)
        rtt_s = time.monotonic() - began
        minutes = [time.gmtime(now - 60 * back) for back in range(_MINUTES)]
        names = [keys.metrics(version, at)[0][0] for version in (7, 8) for at in minutes]
        arguments = [reader.argument() for has_part, reader in self._readers if has_part]
        replies = [READ_FLEET(client, names, [0, _QUEUES_AT_ONCE, _MOST_PROCESSES, *arguments])]
        while replies[-1][1] != b"0" and len(replies) < _MOST_CALLS:
            replies.append(READ_FLEET(client, [], [replies[-1][1], _QUEUES_AT_ONCE, 0]))
        at, _, _, left_out, paused, sets, stats, processes, runs, counted, of_features = replies[0]
        found = FleetReading(shard, number(at), only_load=only_load)
        # A scan may return a member twice.
        queues = {name: (jobs, entered) for reply in replies for name, jobs, entered in rows(reply[2], 3)}
        _add_queues(found, queues, {decode_escaped(name) for name in paused})
        _add_sets(found, sets, stats)
        _add_processes(found, processes)
        found.classes = _class_runs(runs)
        _add_counters(found, counted)
        self._add_features(found, of_features)
        if only_load:
            return found
        for one in read_server_figures(_info(client)):
            found.add(one.name, one.value, **one.labels)
        found.certificate_end = certificate_end(client)
        if found.certificate_end is not None:
            found.add("application_worker_redis_certificate_end_timestamp_seconds", found.certificate_end)
        found.add("application_worker_redis_rtt_seconds", round(rtt_s, 6))
        # The clock was read between the two moments.
        found.add("application_worker_redis_clock_skew_seconds", round(now - sent_at - rtt_s / 2, 3))
        found.add("application_worker_figures_incomplete", int(left_out or replies[-1][1] != b"0"))
        found.add("application_worker_figures_read_seconds", round(time.monotonic() - began, 6))
        return found

    def _add_features(self, found: FleetReading, replies: Sequence[Any]) -> None:
        unread = iter(replies)
        for has_part, reader in self._readers:
            reply = next(unread) if has_part else None
            # False: the part of this feature failed.
            if reply is None:
                continue
            for one in reader.read(found.shard, reply, found.now):
                found.add(one.name, one.value, **one.labels)
                if one.name == _LIMIT_IN_FORCE and one.value:
                    found.limits[one.labels["worker"]] = max(0, int(one.value))


def _info(client: "redis.Redis") -> Mapping[str, Any]:
    """Return what the server says of itself; nothing where the user may not ask."""
    try:
        return cast("Mapping[str, Any]", client.info())
    except NoPermissionError:
        return {}


def _add_queues(found: FleetReading, read: Mapping[bytes, tuple[int, Any]], paused: set[str]) -> None:
    sizes, oldest = Counter[str](), dict[str, float]()
    levels = Counter[tuple[str, Priority]]()
    leveled = set[str]()
    for raw, (jobs, entered) in read.items():
        name = decode_escaped(raw)
        queue = parent_of(name)
        sizes[queue] += jobs
        if found.only_load:
            continue
        level = level_of(name)
        levels[queue, level] += jobs
        if level != NORMAL:
            leveled.add(queue)
        since = timestamp(number(entered)) if entered else None
        oldest[queue] = max(oldest.get(queue, 0.0), age(found.now, since or 0.0))
    found.sizes, found.paused = dict(sizes), frozenset(paused)
    if found.only_load:
        return
    for queue in sorted(sizes.keys() | paused):
        found.add("sidekiq_queue_size", sizes[queue], name=queue)
        found.add("sidekiq_queue_latency_seconds", oldest.get(queue, 0.0), name=queue)
        found.add("sidekiq_queue_paused", int(queue in paused), name=queue)
    for (queue, level), jobs in sorted(levels.items()):
        if queue in leveled and jobs:
            found.add("application_worker_waiting_size", jobs, queue=queue, priority=level)
    found.add("sidekiq_jobs_enqueued_size", sizes.total())


def _add_sets(found: FleetReading, sets: Sequence[Any], stats: Sequence[Any]) -> None:
    for (key, name), (jobs, first) in zip(_SET_FIGURES, sets, strict=True):
        found.add(name, jobs)
        if key in (keys.SCHEDULE, keys.RETRY):
            found.add("application_worker_scheduler_lag_seconds", age(found.now, first), set=key)
    processed, failed = map(number, stats)
    found.add("sidekiq_jobs_processed_total", processed)
    found.add(f"{SHARD_PREFIX}jobs_failed_total", failed)


def _add_processes(found: FleetReading, reply: Any) -> None:
    busy = slots = running = quiet = orphaned = resident_kb = 0
    oldest_beat_s = skew_s = lost_at = 0.0
    for raw, beat, leased, jobs, *record in rows(reply, 12):
        identity = decode_escaped(raw)
        # Sidekiq's processes have neither a heartbeat here nor a lease. A record outlives its process by up to a minute.
        if not (leased or (not beat and record[0])):
            orphaned += 0 if keys.migrated_queue(identity) is not None else jobs
            continue
        if number(beat) > 0:
            oldest_beat_s = max(oldest_beat_s, age(found.now, beat))
        load = ProcessLoad(int(number(record[0])), int(number(record[1])), _by_queue(record[3]), _by_queue(record[5]))
        found.processes[identity] = load
        running += 1
        busy, slots, quiet = busy + load.busy, slots + load.slots, quiet + (record[2] == b"true")
        resident_kb += int(number(record[4]))
        skew_s = max(skew_s, abs(number(record[6])))
        lost_at = max(lost_at, number(record[7]))
    found.add("sidekiq_processes_size", running)
    found.add("sidekiq_workers_size", busy)
    found.add("application_worker_slots", slots)
    found.add("application_worker_utilisation_ratio", round(busy / slots, 4) if slots else 0.0)
    found.add("application_worker_quiet_processes", quiet)
    found.add("application_worker_heartbeat_age_max_seconds", oldest_beat_s)
    found.add("application_worker_orphaned_size", orphaned)
    found.add("application_worker_clock_skew_max_seconds", skew_s)
    found.add("application_worker_data_loss_timestamp_seconds", lost_at)
    found.add("application_worker_fleet_resident_bytes", resident_kb * 1_024)


def _by_queue(stored: Any) -> dict[str, int]:
    fields = loads_object(stored if isinstance(stored, bytes) else b"")
    return {queue: count for queue, count in fields.items() if type(count) is int and 0 <= count < _MOST_RUNS}


def _class_runs(reply: Sequence[Any]) -> dict[str, ClassRuns]:
    """Return the runs by class. A process writes the keys of both versions of Sidekiq, or of one: that with more runs is taken."""
    halves = len(reply) // 2
    found = [_sum_runs(part) for part in (reply[:halves], reply[halves:])]
    return max(found, key=lambda one: sum(runs.ended for runs in one.values()))


def _sum_runs(reply: Sequence[Any]) -> dict[str, ClassRuns]:
    counts, milliseconds = dict[bytes, int](), dict[bytes, int]()
    by_word = {b"p": counts, b"ms": milliseconds}
    for pairs in reply:
        for field_name, value in rows(pairs, 2):
            name, _, word = field_name.rpartition(b"|")
            if (summed := by_word.get(word)) is not None:
                summed[name] = summed.get(name, 0) + int(number(value))
    return {
        decode_escaped(name): ClassRuns(count, milliseconds.get(name, 0) / 1_000)
        for name, count in counts.items()
        if count > 0
    }


def _add_counters(found: FleetReading, reply: Any) -> None:
    for raw, value in rows(reply, 2):
        series = read_series(decode_escaped(raw))
        if series is not None and value.isdigit():
            name, labels = series
            short = name.removeprefix("sidekiq_").removeprefix("application_worker_")
            # GitLab's name of a counter need not end as Prometheus wants it.
            total = f"{SHARD_PREFIX}{short.removesuffix('_total').removesuffix('_count')}_total"
            found.add(total, int(number(value)), **labels)
