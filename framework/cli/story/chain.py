"""Make the chain of jobs from log lines: which job pushed which, and what became of each."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, TypeAlias

from framework.terminal.log_files import LogFiles
from framework.types import Payload
from framework.wire.context_fields import CALLER_ID, CORRELATION_ID, META_PREFIX

MOST_LINES = 100_000
"""The most lines of one chain that are kept."""

Relation: TypeAlias = Literal["pushed", "callback", "rescheduled", "root"]
"""How a job came into being: a job pushed it, it is the callback of a batch, it is the additional run of another; or from outside."""

_TOLERANCE_S = 0.002
"""Times are written in milliseconds."""
_CLOCKS_S = 0.05
"""The most by which the clocks of the processes may differ that end a batch, and push its callback."""

_MOST_AT_ONCE = 1_000
"""The runs that are looked at for the one that pushed a job."""

_RUN_ENDS = frozenset({"done", "fail", "snoozed", "yielded", "dropped", "cancelled", "interrupted", "fenced"})


class Moment(NamedTuple):
    """One log line of a job: when, its status or event, and its other fields."""

    at: float
    status: str
    facts: Payload


@dataclass(slots=True)
class ToldJob:
    """A job as the log lines tell of it."""

    jid: str
    moments: list[Moment] = field(default_factory=list[Moment])
    parent: "ToldJob | None" = None
    relation: Relation = "root"
    batch: str = ""
    """The batch of which it is the callback."""
    children: list["ToldJob"] = field(default_factory=list["ToldJob"])

    def fact(self, name: str) -> Any:
        """Return the first value of a field in its lines."""
        return next((one.facts[name] for one in self.moments if name in one.facts), None)

    @property
    def worker(self) -> str:
        return str(self.fact("class") or "")

    @property
    def created_at(self) -> float | None:
        return moment_of(self.fact("created_at"))

    @property
    def begin(self) -> float:
        """When it was created, or its first line was written."""
        return self.moments[0].at if self.created_at is None else self.created_at

    @property
    def end(self) -> float:
        return self.moments[-1].at

    def runs(self) -> Iterator[tuple[float, float]]:
        """Yield the begin and the end of each run; one without an end lasts until the last line."""
        begin: float | None = None
        for one in self.moments:
            if one.status == "start":
                if begin is not None:
                    yield begin, one.at
                begin = one.at
            elif begin is not None and one.status in _RUN_ENDS:
                yield begin, one.at
                begin = None
        if begin is not None:
            yield begin, float("inf")


@dataclass(slots=True)
class ToldBatch:
    """A batch as the log lines tell of it."""

    bid: str
    moments: list[Moment] = field(default_factory=list[Moment])
    owner: ToldJob | None = None


@dataclass(frozen=True, slots=True)
class JobChain:
    """The jobs of one request or job, those without a parent first; and the batches that none of them has created."""

    correlation_id: str
    jobs: Mapping[str, ToldJob]
    batches: Mapping[str, ToldBatch]
    is_cut: bool

    @property
    def roots(self) -> list[ToldJob]:
        return [one for one in self.jobs.values() if one.parent is None]


def moment_of(value: object) -> float | None:
    """Return a time of a log line in epoch seconds, ``None`` if it is none."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    if not isinstance(value, str):
        return float(value)
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        return None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def read_chain(files: LogFiles, wanted: str) -> JobChain | None:
    """Return the chain of a correlation id, or of the job with this id; ``None`` if no line has it.

    The files are read three times: for the correlation id, for its lines, and for the lines of its jobs and batches without it.
    """
    correlation_id = _correlation_id(files, wanted)
    if correlation_id is None:
        return None
    jobs, batches = dict[str, ToldJob](), dict[str, ToldBatch]()
    seen = set[tuple[object, ...]]()
    _collect(files.lines_with(correlation_id.encode()), correlation_id, jobs, batches, seen)
    if not jobs and not batches:
        # The job has no correlation id.
        jobs[wanted] = ToldJob(wanted)
    ids = frozenset(name.encode() for name in (*jobs, *batches))
    _collect(files.lines_of(ids), None, jobs, batches, seen)
    told = [one for one in jobs.values() if one.moments]
    for moments in [*(one.moments for one in told), *(one.moments for one in batches.values())]:
        moments.sort(key=lambda moment: (moment.at, moment.status not in ("start", "batch.created")))
    told.sort(key=lambda one: one.begin)
    _link(told, batches)
    return JobChain(correlation_id, {one.jid: one for one in told}, batches, len(seen) >= MOST_LINES)


def _correlation_id(files: LogFiles, wanted: str) -> str | None:
    found: str | None = None
    for facts in files.lines_with(wanted.encode()):
        if facts.get(CORRELATION_ID) == wanted:
            return wanted
        if facts.get("jid") == wanted:
            if isinstance(facts.get(CORRELATION_ID), str) and facts[CORRELATION_ID]:
                return str(facts[CORRELATION_ID])
            found = wanted
    return found


def _collect(
    lines: Iterable[Payload],
    correlation_id: str | None,
    jobs: dict[str, ToldJob],
    batches: dict[str, ToldBatch],
    seen: set[tuple[object, ...]],
) -> None:
    """Add each line to its job or batch: with a correlation id the lines that have it, else those of the known ids."""
    for facts in lines:
        at, jid, bid = moment_of(facts.get("time")), facts.get("jid"), facts.get("bid")
        status = facts.get("job_status") or facts.get("event_name")
        if at is None or not isinstance(status, str) or len(seen) >= MOST_LINES:
            continue
        if correlation_id is not None and facts.get(CORRELATION_ID) != correlation_id:
            continue
        # One file may be read under two names, and a line may be in two files.
        key = (at, status, jid, bid, facts.get("message"))
        if key in seen:
            continue
        moment = Moment(at, status, facts)
        if isinstance(jid, str) and jid:
            if correlation_id is not None or jid in jobs:
                seen.add(key)
                jobs.setdefault(jid, ToldJob(jid)).moments.append(moment)
            if correlation_id is not None and isinstance(bid, str):
                batches.setdefault(bid, ToldBatch(bid))
        elif isinstance(bid, str) and (correlation_id is not None or bid in batches):
            seen.add(key)
            batches.setdefault(bid, ToldBatch(bid)).moments.append(moment)


class _Runs:
    """The runs of jobs, by their begin."""

    def __init__(self, jobs: Iterable[ToldJob]) -> None:
        self._runs = sorted(((begin, end, job) for job in jobs for begin, end in job.runs()), key=lambda run: run[0])
        self._begins = [begin for begin, _, _ in self._runs]

    def at(self, at: float, worker_id: object = None) -> ToldJob | None:
        """Return the job that ran at this time, the one that began last of several; with ``worker_id``, one of this process."""
        last = bisect_right(self._begins, at + _TOLERANCE_S)
        for _, end, job in reversed(self._runs[max(0, last - _MOST_AT_ONCE) : last]):
            if at <= end + _TOLERANCE_S and worker_id in (None, job.fact("worker_id")):
                return job
        return None

    def before(self, at: float) -> ToldJob | None:
        """Return the job whose run began last before this time."""
        last = bisect_right(self._begins, at + _TOLERANCE_S)
        return self._runs[last - 1][2] if last else None


def _link(jobs: list[ToldJob], batches: Mapping[str, ToldBatch]) -> None:
    """Set the parent of each job, and the owner of each batch."""
    runs = _Runs(jobs)
    runs_by_class = {worker: _Runs(group) for worker, group in _by_class(jobs).items()}
    for batch in batches.values():
        created = next((one for one in batch.moments if one.status == "batch.created"), None)
        if created is not None:
            batch.owner = runs.at(created.at, created.facts.get("worker_id"))
    ended = _ends_of(jobs, batches)
    by_id = {one.jid: one for one in jobs}
    for job in jobs:
        again = by_id.get(str(job.fact("rescheduled_as") or ""))
        if again is not None:
            _adopt(job, again, "rescheduled")
    for job in jobs:
        if job.parent is None:
            _find_parent(job, runs, runs_by_class.get(str(job.fact(CALLER_ID))), ended)


def _by_class(jobs: Iterable[ToldJob]) -> dict[str, list[ToldJob]]:
    found: dict[str, list[ToldJob]] = {}
    for job in jobs:
        found.setdefault(job.worker, []).append(job)
    return found


def _ends_of(jobs: Iterable[ToldJob], batches: Mapping[str, ToldBatch]) -> list[tuple[float, ToldBatch]]:
    """Return when the last job of each batch ended, in this order."""
    ends: dict[str, float] = {}
    for job in jobs:
        bid = str(job.fact("bid") or "")
        ends[bid] = max(ends.get(bid, 0.0), job.end)
    return sorted(((ends[bid], one) for bid, one in batches.items() if bid in ends), key=lambda pair: pair[0])


def _find_parent(job: ToldJob, runs: _Runs, callers: _Runs | None, ended: Sequence[tuple[float, ToldBatch]]) -> None:
    """Find the run that pushed the job: by the class of its caller and the time of its push."""
    if job.created_at is None:
        # A line of the push, such as that of a duplicate, stands inside of the run that pushed.
        if job.moments[0].status == "deduplicated":
            _adopt(runs.at(job.begin, job.fact("worker_id")), job, "pushed")
        return
    if callers is None:
        return
    parent = callers.at(job.created_at)
    if parent is None:
        # No job of the caller ran: the end of a batch pushed it, with the context of the batch's owner.
        caller = job.fact(CALLER_ID)
        before = [
            batch
            for end, batch in ended
            if end <= job.created_at + _CLOCKS_S and batch.owner is not None and batch.owner.worker == caller
        ]
        if before:
            job.batch = before[-1].bid
            _adopt(before[-1].owner, job, "callback")
            return
    _adopt(parent or callers.before(job.created_at), job, "pushed")


def _adopt(parent: ToldJob | None, job: ToldJob, relation: Relation) -> None:
    ancestor = parent
    while ancestor is not None:
        if ancestor is job:
            return
        ancestor = ancestor.parent
    if parent is not None:
        job.parent, job.relation = parent, relation
        parent.children.append(job)


def context_of(chain: JobChain) -> dict[str, str]:
    """Return the facts of the context that every job has in common, such as the user."""
    shown: dict[str, str] = {}
    for job in chain.roots[:1]:
        for one in job.moments[:1]:
            names = (name for name in one.facts if name.startswith(META_PREFIX))
            shown |= {name.removeprefix(META_PREFIX): str(one.facts[name]) for name in names}
    return shown
