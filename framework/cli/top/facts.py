"""Read the data of the shards that the view shows, each in a thread of its own, and work out its rates."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from redis.exceptions import RedisError

from framework import admin
from framework.admin import HeldPlace, JobEntry, JobSet, RunningJob
from framework.admin.access import ask
from framework.admin.explain_class import RunCounts, read_runs_by_class
from framework.admin.rates import RateWindow, ShardCounts, ShardRates, read_counts
from framework.errors import FrameworkError
from framework.supervised_threads import SupervisedThread
from framework.text import format_clock_time

MOST_ENTRIES = 100
"""The entries of a set that are read: the first ones of each shard."""

SETS = ("scheduled", "retry", "dead", "interrupted")
"""The views that show a sorted set of jobs."""


CLASSES = "classes"
"""The view of the classes, which costs a sample of the queues."""

MOST_CLASSES = 1_000


@dataclass(frozen=True, slots=True)
class ClassFigures:
    """What a class does on a shard."""

    name: str
    runs: RunCounts
    waiting: int
    """Its jobs in queues."""
    is_estimate: bool
    held: int
    usage: str
    """The used slots of its limit, and the limit; empty without one."""


@dataclass(frozen=True, slots=True)
class ShardFacts(ShardCounts):
    """A reading with what the view shows in addition."""

    jobs: Sequence[RunningJob] = ()
    held: Sequence[HeldPlace] = ()
    entries: Sequence[JobEntry] = field(default=())
    """The first jobs of the shown set; empty while no set is shown."""
    classes: Sequence[ClassFigures] = field(default=())
    """The figures of the classes; empty while another view is shown."""


def read_facts(shard: str, view: str) -> ShardFacts:
    """Read one shard, with what the view shows in addition: the first jobs of a set, or the figures of the classes.

    Raises:
        ShardUnavailableError: the shard does not answer.
    """
    read = read_counts(shard)
    held = admin.held(shard).indexed_places()
    return ShardFacts(
        read.shard,
        read.now,
        read.read_at,
        read.stats,
        read.queues,
        read.processes,
        admin.work(shard),
        held,
        list(islice(_job_set(shard, view), MOST_ENTRIES)) if view in SETS else (),
        read_classes(shard, read.now, held) if view == CLASSES else (),
    )


def read_classes(shard: str, now: float, held: Sequence[HeldPlace]) -> list[ClassFigures]:
    """Read the figures of each class that has run in the last minutes, has waiting or held jobs, or has a limit."""
    runs = ask(shard, lambda one: read_runs_by_class(one.client, now)).by_shard[shard]
    waiting = admin.top("queues", limit=MOST_CLASSES, shard=shard)
    in_queues = {one.name: one.jobs for one in waiting.groups}
    limits = {one.name: one for one in admin.limits(shard).by_shard[shard]}
    # A limit of a queue is named `queue/NAME`: its jobs are of several classes.
    jobs_held: dict[str, int] = {}
    for place in held:
        if "/" not in place.name:
            jobs_held[place.name] = jobs_held.get(place.name, 0) + place.jobs
    names = {*runs, *in_queues, *jobs_held, *(name for name in limits if "/" not in name)}
    return [
        ClassFigures(
            name,
            runs.get(name, RunCounts()),
            in_queues.get(name, 0),
            waiting.is_estimate,
            jobs_held.get(name, 0),
            limits[name].usage if name in limits else "",
        )
        for name in sorted(names)
    ]


def _job_set(shard: str, name: str) -> JobSet:
    match name:
        case "scheduled":
            return admin.scheduled(shard)
        case "retry":
            return admin.retries(shard)
        case "dead":
            return admin.dead(shard)
        case _:
            return admin.interrupted(shard)


LARGEST_SHARE = 0.1
"""The most of its time that a reader waits for Redis: a slow shard is read more rarely."""


@dataclass(slots=True)
class ShardReading:
    """The last facts of a shard, and why it does not answer now; written by its reader alone, as a new object."""

    facts: ShardFacts | None = None
    rates: ShardRates = field(default_factory=ShardRates)
    failure: str = ""
    crash: BaseException | None = None
    """An error that does not come from Redis: it ends the view."""


class ShardReader:
    """The thread that reads one shard: a slow one delays no other, and no key. ``reading`` has the newest state."""

    def __init__(self, shard: str, period_s: float, on_news: Callable[[], None]) -> None:
        self.shard = shard
        self.reading = ShardReading()
        self.view = ""
        """The view, which may need more facts."""
        self._period_s = period_s
        self._on_news = on_news
        self._due = threading.Event()
        self._ended = False
        self._window = RateWindow()
        self._thread = SupervisedThread(f"read {shard}", self._run)

    def start(self) -> None:
        self._thread.start()

    def read_soon(self) -> None:
        """Read once more now, instead of at the end of the period."""
        self._due.set()

    def end(self) -> None:
        """Let the thread end after its present reading."""
        self._ended = True
        self._due.set()

    def wait(self, most_s: float) -> None:
        """Wait until the thread has ended, but not for a frozen shard."""
        self._thread.join(most_s)

    def read(self) -> None:
        try:
            facts = read_facts(self.shard, self.view)
        except (FrameworkError, RedisError, OSError) as error:
            before = self.reading
            at = format_clock_time(time.time())
            failure = (
                before.failure or f"no answer since {at}{', its figures are older' if before.facts else ''}: {error}"
            )
            self.reading = ShardReading(before.facts, before.rates, failure)
        else:
            self.reading = ShardReading(facts, self._window.add(facts))

    def _run(self) -> None:
        while not self._ended:
            began_at = time.monotonic()
            try:
                self.read()
            except BaseException as error:  # noqa: BLE001 - the thread of the view raises it
                self.reading = ShardReading(crash=error)
            self._on_news()
            if self.reading.crash is not None:
                return
            took_s = time.monotonic() - began_at
            self._due.wait(max(self._period_s, took_s / LARGEST_SHARE))
            self._due.clear()
