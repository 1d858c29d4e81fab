"""Count the work of the worker processes of a run, from the JSON logs of the processes and of their supervisor."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from math import ceil
from pathlib import Path
from typing import Final

from demo.logs import Entry, in_order

_NO_ENDS: Final = (None, "start", "running", "recovered")
_OVER: Final = ("start", "done", "dropped", "interrupted")
"""The last line of a job after which no other run of it is meant: a later one is an extra run."""


@dataclass(slots=True)
class Samples:
    """Measured seconds of one kind."""

    values: list[float] = field(default_factory=list)

    def add(self, value: object) -> None:
        if isinstance(value, int | float):
            self.values.append(max(0.0, float(value)))

    def percentile(self, percent: float) -> float:
        """Return the smallest value that so many per cent of the values do not exceed; 0 when there is none."""
        if not self.values:
            return 0.0
        ordered = sorted(self.values)
        return ordered[max(0, ceil(len(ordered) * percent / 100) - 1)]


@dataclass(slots=True)
class Runs:
    """The number of runs that started, and their ends."""

    begun: int = 0
    ends: Counter[str] = field(default_factory=Counter)

    @property
    def done(self) -> int:
        return self.ends["done"]

    @property
    def failed(self) -> int:
        return self.ends["fail"]

    @property
    def otherwise(self) -> int:
        """Return the runs that the job ended by itself: discarded, or snoozed."""
        return self.ends.total() - self.done - self.failed

    @property
    def unfinished(self) -> int:
        """Return the runs with a start line and no end line: the process died first."""
        return max(0, self.begun - self.ends.total())


@dataclass(slots=True)
class Process:
    """One worker process. Times are seconds since the first line of the logs, ``None`` where no line has them."""

    shard: str
    pid: int
    started_s: float | None = None
    ready_s: float | None = None
    last_line_s: float = 0.0
    ended_s: float | None = None
    died: bool = False
    status: int | None = None
    taken_back: int = 0
    runs: Runs = field(default_factory=Runs)


@dataclass(slots=True)
class JobClass:
    """The jobs of one worker class."""

    name: str
    queues: set[str] = field(default_factory=set)
    jobs_done: int = 0
    """The number of jobs, not of runs: one that ran twice counts once."""
    runs: Runs = field(default_factory=Runs)
    not_run: Counter[str] = field(default_factory=Counter)
    """The jobs of the class that a policy held, deferred or dropped before a run, by the status of their line."""
    waits: Samples = field(default_factory=Samples)
    durations: Samples = field(default_factory=Samples)


@dataclass(slots=True)
class Activity:
    """The content of the logs of a run. The ``begun`` runs are first runs of ``jobs``, retries, snoozes and extra runs,
    no others.
    """

    jobs: int = 0
    retries: int = 0
    """Runs after a run that failed."""
    snoozes: int = 0
    """Runs after a run that ended with ``RetryLater`` or was deferred."""
    extra_runs: int = 0
    """Runs of a job that had ended, or whose process died or stopped before its end."""
    restarts: int = 0
    span_s: float = 0.0
    runs: Runs = field(default_factory=Runs)
    waits: Samples = field(default_factory=Samples)
    durations: Samples = field(default_factory=Samples)
    processes: list[Process] = field(default_factory=list)
    classes: list[JobClass] = field(default_factory=list)
    ends: list[tuple[float, int]] = field(default_factory=list)
    """The end of each run: its time, and the position of its process in ``processes``."""

    @property
    def deaths(self) -> int:
        return sum(process.died for process in self.processes)


def activity_of(logs: Iterable[Path]) -> Activity:
    """Return the work of the processes that wrote ``logs``."""
    counter = _Counter()
    for entry in in_order(logs):
        counter.add(entry)
    return counter.result()


class _Counter:
    """Counts lines in the order of their time."""

    def __init__(self) -> None:
        self._activity = Activity()
        self._first: float | None = None
        self._processes: dict[int, Process] = {}
        self._starts: Counter[str] = Counter()
        self._classes: dict[str, JobClass] = {}
        self._last: dict[str, str] = {}
        """The status of the last start or end line of each job."""
        self._ends: list[tuple[float, Process]] = []
        self._done: set[str] = set()

    def add(self, entry: Entry) -> None:
        moment = _moment(entry.get("time"))
        if moment is None:
            return
        if self._first is None:
            self._first = moment
        at = moment - self._first
        self._activity.span_s = max(self._activity.span_s, at)
        event = str(entry.get("event_name") or "")
        if event.startswith("child."):
            self._add_child(entry, event.removeprefix("child."), at)
        elif "shard" in entry and "worker_id" in entry:
            self._add_line(entry, event, at)

    def result(self) -> Activity:
        done = self._activity
        done.restarts = sum(count - 1 for count in self._starts.values())
        done.processes = sorted(self._processes.values(), key=lambda one: (one.shard, one.started_s or one.last_line_s))
        done.classes = [self._classes[name] for name in sorted(self._classes)]
        places = {id(process): place for place, process in enumerate(done.processes)}
        done.ends = [(at, places[id(process)]) for at, process in self._ends]
        return done

    def _add_child(self, entry: Entry, kind: str, at: float) -> None:
        """Count a line of the supervisor."""
        process = self._process(entry, int(entry["child_pid"]), own_shard=True)
        if kind == "started":
            self._starts[str(entry["child"])] += 1
            process.started_s = at
        elif kind in ("died", "stopped", "killed"):
            process.ended_s, process.died, process.status = at, kind == "died", entry.get("status")

    def _add_line(self, entry: Entry, event: str, at: float) -> None:
        """Count a line of a worker process."""
        process = self._process(entry, int(entry["pid"]), own_shard=event == "process.ready")
        process.last_line_s = at
        if event == "process.ready":
            process.ready_s = at
        status, jid = entry.get("job_status"), entry.get("jid")
        if status == "recovered":
            process.taken_back += 1
        elif status == "start" and jid:
            self._begin(entry, str(jid), process)
        elif status not in _NO_ENDS and jid and "duration_s" in entry:
            self._end(entry, str(jid), str(status), process, at)
        elif status not in _NO_ENDS and "class" in entry:
            self._class(entry).not_run[str(status)] += 1

    def _begin(self, entry: Entry, jid: str, process: Process) -> None:
        activity, job_class = self._activity, self._class(entry)
        match self._last.get(jid):
            case None:
                activity.jobs += 1
            case "fail":
                activity.retries += 1
            case status if status in _OVER:
                activity.extra_runs += 1
            case _:
                activity.snoozes += 1
        self._last[jid] = "start"
        for one in (activity, job_class):
            one.runs.begun += 1
            one.waits.add(entry.get("queue_duration_s"))
        process.runs.begun += 1

    def _end(self, entry: Entry, jid: str, status: str, process: Process, at: float) -> None:
        job_class = self._class(entry)
        self._last[jid] = status
        for runs in (self._activity.runs, job_class.runs, process.runs):
            runs.ends[status] += 1
        for one in (self._activity, job_class):
            one.durations.add(entry["duration_s"])
        if status == "done":
            self._ends.append((at, process))
            job_class.jobs_done += jid not in self._done
            self._done.add(jid)

    def _process(self, entry: Entry, pid: int, *, own_shard: bool) -> Process:
        # A line may be about another shard than that of its process, to which the process has pushed, for example.
        process = self._processes.setdefault(pid, Process(str(entry["shard"]), pid))
        if own_shard:
            process.shard = str(entry["shard"])
        return process

    def _class(self, entry: Entry) -> JobClass:
        found = self._classes.setdefault(str(entry.get("class")), JobClass(str(entry.get("class"))))
        if "queue" in entry:
            found.queues.add(str(entry["queue"]))
        return found


def _moment(time: object) -> float | None:
    try:
        return datetime.fromisoformat(str(time)).timestamp()
    except ValueError:
        return None
