"""Tell the readers of a process each event of its jobs: one typed record per event, in the thread in which it happens.

The core and the rooms emit, once per fact; each reader that counts, traces or reports is a ``JobObserver``. A process without further
observers pays one test per push and per run. A run is told in its own thread to the observer that ``of_thread`` has returned for
it, so that counting needs no lock.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, cast

from framework.feature import all_features
from framework.telemetry.logs import LogRateLimit
from framework.telemetry.shared_counts import SharedCounts
from framework.telemetry.usage import Usage
from framework.types import Jid, Payload

if TYPE_CHECKING:
    from framework.settings.base import SettingsBase

SKIPPED_JOBS = "sidekiq_jobs_skipped_total"
"""Jobs that a flag, a health check or an operator kept from running; policies and the purge share the counter."""

LIMITED_JOBS = "sidekiq_concurrency_limit_deferred_jobs_total"

_LOG_INTERVAL_S = 60.0
_NO_LABELS = ("worker", "count", "queue")


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """Something that has happened to ``count`` jobs of a class."""

    worker: str
    """The wire name of the class, as the payload has it: it may be unknown to this process."""
    count: int = 1
    queue: str = ""
    """The queue of the jobs, where it is known; it is no label of the series."""

    counter: ClassVar[str] = ""
    """The series of ``aw:counters`` that counts it; empty for none."""

    @property
    def series(self) -> str:
        return self.counter

    @property
    def labels(self) -> Mapping[str, str]:
        """Its other fields: the labels of its series."""
        return {one.name: str(getattr(self, one.name)) for one in fields(self) if one.name not in _NO_LABELS}


@dataclass(frozen=True, slots=True)
class JobsEnqueued(StreamEvent):
    """Jobs were accepted for a queue, or for the schedule set. A delayed job counts again when it moves to its queue (GitLab)."""

    shard: str = ""
    scheduled: bool = False
    """Whether they wait in the schedule set."""
    jids: Sequence[Jid | None] = ()
    """Their ids; ``None`` for dropped duplicates, which ``count`` leaves out."""
    sizes: Sequence[int] = ()
    """The bytes of each payload, those of dropped duplicates too."""


@dataclass(frozen=True, slots=True)
class JobSkipped(StreamEvent):
    """A flag or a health check kept a job from running."""

    counter: ClassVar[str] = SKIPPED_JOBS
    action: str = ""
    """``deferred`` or ``dropped``."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class JobHeld(StreamEvent):
    """A limit or a pause of its class holds a job."""

    by: str = ""
    """``concurrency_limit`` or ``paused``."""

    @property
    def series(self) -> str:
        return LIMITED_JOBS if self.by == "concurrency_limit" else ""

    @property
    def labels(self) -> Mapping[str, str]:
        return {}


@dataclass(frozen=True, slots=True)
class JobResumed(StreamEvent):
    """Held jobs may run again."""

    by: str = ""
    """``concurrency_limit`` or ``paused``."""


@dataclass(frozen=True, slots=True)
class ClassThrottled(StreamEvent):
    """The limit of a class was lowered by its throttling rule."""

    counter: ClassVar[str] = "sidekiq_throttling_events_total"
    strategy: str = ""


@dataclass(frozen=True, slots=True)
class WorkRemains(StreamEvent):
    """A job of a limited-capacity worker has ended its portion; ``count`` is the work that is left, 0 too."""


@dataclass(frozen=True, slots=True)
class ResultRefused(StreamEvent):
    """The return value of a job is no JSON, or too large: its caller gets none."""

    counter: ClassVar[str] = "sidekiq_results_refused_total"


@dataclass(frozen=True, slots=True)
class CountedEnd(StreamEvent):
    """A job ended, before or after its run, in a way that has a counter of its own: it expired, was cancelled, timed out, ..."""

    counted_as: str = ""

    @property
    def series(self) -> str:
        return self.counted_as

    @property
    def labels(self) -> Mapping[str, str]:
        return {}


@dataclass(frozen=True, slots=True)
class JobInterrupted(StreamEvent):
    """The stop of this process cut off a running job."""

    given_up: bool = False
    """Whether that was once too often: the job does not run again by itself."""


@dataclass(frozen=True, slots=True)
class JobRecovered(StreamEvent):
    """A job of a dead process, or of a lost reply, was found."""

    cause: str = ""
    quarantined: bool = False
    """Whether that was once too often: the job is in the interrupted set."""


@dataclass(frozen=True, slots=True)
class JobFenced(StreamEvent):
    """Another process owned a job before its end was written here, so it may run twice."""


@dataclass(frozen=True, slots=True)
class JobDied(StreamEvent):
    """A job has used up its retries, or may not be retried, or cannot be read; the death handlers were called."""


class RunOfJob:
    """One run, from its start to its end, as its observers read it. They change nothing of it, and keep nothing after the call."""

    __slots__ = ()

    payload: Payload | None
    """``None`` if it cannot be read."""
    declaration: Any
    """``Declaration``; ``None`` for a class that this process lacks."""
    outcome: Any
    """``RunOutcome``; ``finish.outcome.SUCCEEDED`` itself after a success."""
    ending: Any
    """``finish.endings.Ending``: the outcome with what follows from it. Known at the end."""
    duration_s: float
    cpu_s: float
    """0 unless ``JobEvents.needs_usage``; of an async job too."""
    usage: Usage | None
    """What it has used of Redis, SQL and HTTP; ``None`` for nothing."""
    admitted: bool
    """Whether it has run: every policy has admitted it."""

    @property
    def queue(self) -> str:
        raise NotImplementedError

    @property
    def started_at(self) -> float:
        """Epoch seconds."""
        raise NotImplementedError

    @property
    def job_bytes(self) -> int:
        """The size of the payload."""
        raise NotImplementedError

    @property
    def error(self) -> BaseException | None:
        """What a failed run has raised."""
        raise NotImplementedError


class JobObserver:
    """Receive the events of jobs. Each call is made by a thread that runs or pushes jobs: it must be short, and wait for nothing.

    An error is logged and changes no job.
    """

    needs_usage: bool = False
    """Whether it reads ``RunOfJob.cpu_s`` and ``usage``: the clock of the thread costs a tenth of a no-op job."""
    needs_starts: bool = False
    """Whether it is told of starts."""

    def of_thread(self) -> "JobObserver":
        """Return the observer that gets the runs of the calling thread, and of no other."""
        return self

    def happened(self, event: StreamEvent) -> None:
        """Anything but the start and the end of a run."""

    def started(self, run: RunOfJob) -> None:
        """A run begins: every policy has admitted the job."""

    def ended(self, run: RunOfJob) -> None:
        """A run has ended, or its job was held, deferred or dropped before it (``run.admitted``). Its fate is not yet written."""


class JobEvents:
    """The stream of the events of this process."""

    def __init__(self) -> None:
        self.observers: tuple[JobObserver, ...] = ()
        """Those of features and of the application."""
        self.is_scraped = False
        """Whether a scraper may ask this process for its metrics. Set before ``open``."""
        self.shard = ""
        """The shard whose jobs this process runs; empty if it runs none."""
        self.is_worker = False
        """Whether this process is there to run jobs, and answers for itself."""
        self.shared_counts: SharedCounts | None = None
        """Where the process counts for its supervisor, if it has one that asks."""
        self._first: tuple[JobObserver, ...] = ()
        self._recorded = False
        self._settings: SettingsBase | None = None
        self._log_limit = LogRateLimit(_LOG_INTERVAL_S)

    @property
    def needs_usage(self) -> bool:
        return any(one.needs_usage for one in self.observers)

    def add_first(self, observer: JobObserver) -> None:
        """Add an observer of the core, which is told of everything but runs."""
        self._first = (*self._first, observer)

    def ask(self) -> None:
        """Let the process count from now on: a scraper may ask for its metrics."""
        self.is_scraped = True
        if self._settings is not None:
            self.open(self._settings)

    def open(self, settings: "SettingsBase") -> None:
        """Let the features observe that their settings turn on, in place of those before."""
        if self._recorded:
            return
        self._settings = settings
        made = (one.observer.load()(settings) for one in all_features() if one.observer is not None)
        self.observers = tuple(one for one in made if one is not None)

    def record(self) -> "RecordedEvents":
        """Keep all events from now on, in a process that runs one job for another process: that one emits them."""
        recorded = RecordedEvents()
        self._recorded, self._first, self.observers = True, (recorded,), ()
        return recorded

    def emit(self, event: StreamEvent) -> None:
        """Tell all observers. Raises nothing."""
        for one in (*self._first, *self.observers):
            try:
                one.happened(event)
            except Exception as error:  # noqa: BLE001 - an observer may belong to the application
                self.failed(one, error)

    def of_thread(self) -> tuple[JobObserver, ...]:
        """Return the observers of the runs of the calling thread."""
        return tuple(one.of_thread() for one in self.observers)

    def of_starts(self) -> tuple[JobObserver, ...]:
        return tuple(one for one in self.observers if one.needs_starts)

    def failed(self, observer: JobObserver, error: Exception) -> None:
        """Log the error of an observer, at a limited rate."""
        name = type(observer).__name__
        self._log_limit.error(
            name,
            f"{name} has failed for an event of a job; the job goes on. Look at the error",
            "observer.failed",
            error=error,
        )


class RecordedEvents(JobObserver):
    """Keep the events of a process that runs one job, for the process that started it."""

    def __init__(self) -> None:
        self._events: list[StreamEvent] = []

    def happened(self, event: StreamEvent) -> None:
        self._events.append(event)

    def take(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the events as plain data for ``events_of``."""
        taken, self._events = self._events, []
        return [(type(one).__name__, {field.name: getattr(one, field.name) for field in fields(one)}) for one in taken]


def events_of(data: object) -> Iterator[StreamEvent]:
    """Yield the events of another process; anything else is left out."""
    types = {one.__name__: one for one in StreamEvent.__subclasses__()}
    for item in cast("list[Any]", data) if isinstance(data, list) else ():
        with suppress(TypeError, ValueError, KeyError):
            name, values = item
            yield types[name](**values)


def tell_ended(observers: Iterable[JobObserver], run: RunOfJob) -> None:
    """Tell the observers of a thread of the end of a run. Raises nothing."""
    for one in observers:
        try:
            one.ended(run)
        except Exception as error:  # noqa: BLE001 - an observer may belong to the application
            job_events.failed(one, error)


def tell_started(observers: Iterable[JobObserver], run: RunOfJob) -> None:
    """Tell these observers of the start of a run. Raises nothing."""
    for one in observers:
        try:
            one.started(run)
        except Exception as error:  # noqa: BLE001 - an observer may belong to the application
            job_events.failed(one, error)


job_events = JobEvents()
"""The events of this process."""
