"""Read what the causes of trouble on one shard are found from, each thing once, in bounded steps.

A million jobs cost as much as a thousand: of a list or set the ends and a few windows are read, and counts are extrapolated.
"""

import re
import shlex
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from redis.exceptions import ResponseError

from framework import timings
from framework.admin.diagnosis.class_history import ClassHistory, read_histories
from framework.admin.explain import Explainer, KnownClasses
from framework.admin.explain_reader import Blocker, ShardSnapshot
from framework.admin.held_jobs import HeldJobs, HeldJobsKey, held_keys, measure_held
from framework.admin.process_list import WorkerProcess, read_running, read_work
from framework.admin.queue_reader import QueueState, read_queues
from framework.admin.read_once import ReadOnce
from framework.admin.statistics import reply_number
from framework.command_line import worker_command
from framework.declare.declaration import Declaration
from framework.errors import StoredBlocksError
from framework.execute.job_log import TARGETS
from framework.fetch.blocks import expand
from framework.route.router import Router
from framework.settings.model import CoreSettings
from framework.shard.shard import Shard
from framework.store.cluster_slot import cluster_slot
from framework.store.connect import Endpoint
from framework.store.script import is_wrong_type
from framework.text import Sentence, decode_escaped, format_clock_time, format_count, format_duration, joined
from framework.types import Payload, Urgency
from framework.wire import keys
from framework.wire.job import timestamp
from framework.wire.json import loads_object
from framework.wire.sub_queues import parent_of

_IDENTITY = re.compile(r".+:[1-9]\d*:[0-9a-f]{12}")
"""``host:pid:nonce``: other programs may write anything into the registry, and no role may read keys of other names."""

_WINDOWS, _WINDOW = 10, 50
_END = 50
# Of large jobs fewer are read: their arguments take time on the way.
_LARGE_BYTES, _FEW = 50_000, 5
_MOST_QUEUES = 20
_MOST_CLASSES = 50
_MOST_PROCESSES = 500
_ROUND_TRIPS = 5

_THROTTLED_S = 900.0
"""GitLab has no target for throttled classes: a quarter of an hour is what its operators look at."""


@dataclass(frozen=True, slots=True)
class DiagnosisScope:
    """What an operator asks about: everything, or one class, one queue, one alert. What is asked for needs no minimum of trouble."""

    cls: str | None = None
    queue: str | None = None
    alert: str | None = None

    def is_about(self, classes: frozenset[str], queues: frozenset[str]) -> bool:
        """Return whether these classes and queues are asked for by name."""
        return (self.cls is not None and self.cls in classes) or (self.queue is not None and self.queue in queues)


@dataclass(frozen=True, slots=True)
class Installation:
    """What is known without Redis: the settings, and the worker classes if they could be loaded."""

    settings: CoreSettings
    classes: KnownClasses
    router: Router | None = None

    def declaration(self, cls: str) -> Declaration | None:
        """Return the declaration of a class, ``None`` if it is not loaded."""
        return (self.classes.declarations or {}).get(cls)


class SampledJob(NamedTuple):
    """One job of a sample, with its score in a sorted set."""

    payload: Payload
    score: float
    size: int
    """The bytes of its payload."""

    @property
    def cls(self) -> str:
        name = self.payload.get("class")
        return name if isinstance(name, str) else ""

    @classmethod
    def read(cls, data: bytes, score: float = 0.0) -> "SampledJob":
        """Return the job of a stored payload."""
        return cls(loads_object(data), score, len(data))


class JobSample(NamedTuple):
    """Some jobs of a list or set that has ``size``."""

    jobs: Sequence[SampledJob]
    size: int

    def about(self, seen: int) -> int:
        """Return how many of all jobs are as ``seen`` of the sample are."""
        return round(seen * self.size / len(self.jobs)) if self.jobs else 0

    @property
    def note(self) -> str:
        """What to say behind a figure that is extrapolated; empty if all jobs were read."""
        return (
            ""
            if len(self.jobs) >= self.size
            else Sentence(" (from {number:,} of {size:,} jobs)", number=len(self.jobs), size=self.size)
        )

    @property
    def mean_bytes(self) -> float:
        return sum(one.size for one in self.jobs) / len(self.jobs) if self.jobs else 0.0


class QueueFacts(NamedTuple):
    """A queue with jobs."""

    state: QueueState
    oldest: JobSample
    """Jobs at its right end, which run next."""
    newest: JobSample
    """Jobs at its left end, the last one first."""
    serving: Sequence[WorkerProcess]
    """The processes that fetch from it."""
    classes: Counter[str]
    """The classes of the sampled jobs."""

    @property
    def name(self) -> str:
        return self.state.name

    @property
    def size(self) -> int:
        return self.state.size

    @property
    def waits_s(self) -> float:
        """For how long its next job has waited."""
        return self.state.latency

    @property
    def slots(self) -> int:
        return sum(one.slots for one in self.serving)

    @property
    def busy(self) -> int:
        return sum(one.busy for one in self.serving)


class RunNow(NamedTuple):
    """A job that runs now."""

    cls: str
    jid: str
    queue: str
    process: str
    since: float | None
    """When it began, by the clock of its process."""
    ran_s: float
    """For how long it had run when its process wrote the record."""


class LateProcess(NamedTuple):
    """A process whose heartbeats are late: dead, frozen or cut off."""

    identity: str
    beat: float
    lease_s: float | None
    queues: frozenset[str]
    in_flight: int


class ShardEvidence(ShardSnapshot):
    """The facts about one shard, each read at its first use. Every property may raise redis errors."""

    def __init__(self, shard: Shard, installation: Installation, scope: DiagnosisScope) -> None:
        super().__init__(shard.client, shard.name)
        self.place = shard
        self.installation = installation
        self.scope = scope
        self._timings = timings.current()

    # --- server

    @ReadOnce
    def round_trips(self) -> list[float]:
        """The times of a few round trips of the smallest command, in seconds."""
        found: list[float] = []
        for _ in range(_ROUND_TRIPS):
            sent_at = time.perf_counter()
            self.client.time()
            found.append(time.perf_counter() - sent_at)
        return found

    @ReadOnce
    def info(self) -> Mapping[str, Any]:
        """What the server says about itself; empty if the user has no right to ask."""
        return self.optional_command("INFO", "all") or {}

    def optional_command(self, *words: Any) -> Any:
        """Return the reply to a command that helps; ``None`` where the user has no right to it, or the server lacks it."""
        execute = cast("Any", self.client.execute_command)
        try:
            return execute(*words)
        # A missing right is one too.
        except ResponseError:
            return None

    @property
    def redis_cli(self) -> str:
        """The begin of a command line of redis-cli for this shard, without its password."""
        return redis_cli(self.place.endpoint)

    # --- processes

    @ReadOnce
    def running_processes(self) -> list[WorkerProcess]:
        """The processes that have a record and a lease; Ruby's have no lease."""
        return read_running(self.place)

    @ReadOnce
    def late_processes(self) -> list[LateProcess]:
        """The processes without a heartbeat for three periods, which no other process has found dead yet."""
        until = self.now - self._timings.silent_after_s
        late: Any = self.client.zrangebyscore(keys.REGISTRY, "(0", until, start=0, num=_MOST_PROCESSES, withscores=True)
        named = [(name, beat) for raw, beat in late if _IDENTITY.fullmatch(name := decode_escaped(raw))]
        pipeline: Any = self.client.pipeline(transaction=False)
        for name, _ in named:
            pipeline.pttl(keys.lease(name))
            pipeline.hget(name, "info")
            pipeline.llen(keys.working(name))
        replies: list[Any] = pipeline.execute(raise_on_error=False)
        return [
            LateProcess(
                name,
                beat,
                lease / 1_000 if isinstance(lease, int) and lease > 0 else None,
                _queues_of(info),
                reply_number(length),
            )
            for (name, beat), lease, info, length in zip(named, replies[::3], replies[1::3], replies[2::3], strict=True)
        ]

    @ReadOnce
    def runs_now(self) -> list[RunNow]:
        """The running jobs, by the records of the processes, which are some seconds old."""
        # Times of runs are whole seconds, as Sidekiq writes them: less than a second counts as none.
        beats = {one.identity: one.beat for one in self.running_processes[:_MOST_PROCESSES]}
        found: list[RunNow] = []
        for one in read_work(self.place, self.installation.settings.size_limit):
            if one.process not in beats:
                continue
            beat = beats[one.process]
            ran_s = 0.0 if one.since is None or beat is None else max(0.0, beat - one.since - 1.0)
            found.append(RunNow(one.job.worker, one.jid, one.queue, one.process, one.since, ran_s))
        return found

    # --- places of jobs

    @ReadOnce
    def queue_states(self) -> list[QueueState]:
        """Every queue, with its size and the age of its next job."""
        return read_queues(self.place)

    @ReadOnce
    def queues(self) -> list[QueueFacts]:
        """The queues with jobs, those with the oldest first; at most 20, and the one that is asked for."""
        waiting = sorted((one for one in self.queue_states if one.size), key=lambda one: -one.latency)
        chosen = waiting[:_MOST_QUEUES]
        chosen += [one for one in waiting[_MOST_QUEUES:] if one.name == self.scope.queue]
        # The jobs of sub-queues count as those of their queue, which may be empty itself.
        firsts = self._pages([(keys.queue(one.name), -1, -1) for one in chosen])
        counts = [_END if not first or len(first[0]) < _LARGE_BYTES else _FEW for first in firsts]
        ends = [(keys.queue(one.name), count) for one, count in zip(chosen, counts, strict=True)]
        oldest = self._pages([(key, -count, -1) for key, count in ends])
        newest = self._pages([(key, 0, count - 1) for key, count in ends])
        found: list[QueueFacts] = []
        for state, last, first in zip(chosen, oldest, newest, strict=True):
            oldest_jobs = [SampledJob.read(data) for data in reversed(last)]
            newest_jobs = [SampledJob.read(data) for data in first]
            classes = Counter(name for one in (*oldest_jobs, *newest_jobs) if (name := one.cls))
            samples = JobSample(oldest_jobs, state.size), JobSample(newest_jobs, state.size)
            found.append(QueueFacts(state, *samples, self.serving(state.name), classes))
        return found

    def _pages(self, ranges: Sequence[tuple[str, int, int]]) -> list[list[bytes]]:
        """Return the jobs of these parts of lists, of blocks as many as elements were asked for; nothing of a key of another type."""
        pipeline: Any = self.client.pipeline(transaction=False)
        for key, start, end in ranges:
            pipeline.lrange(key, start, end)
        found: list[list[bytes]] = []
        for (_, start, end), reply in zip(ranges, pipeline.execute(raise_on_error=False), strict=True):
            elements = cast("list[bytes]", reply) if isinstance(reply, list) else []
            jobs, count = [job for one in elements for job in self._jobs_of(one)], end - start + 1
            found.append(jobs[-count:] if start < 0 else jobs[:count])
        return found

    def _jobs_of(self, element: bytes) -> list[bytes]:
        try:
            return expand(self.client, element)
        except StoredBlocksError:
            # A cause of its own names it.
            return [element]

    @ReadOnce
    def held(self) -> list[HeldJobs]:
        """The jobs that limits and pauses hold, the oldest first."""
        return measure_held(self.client, self.held_keys)

    @ReadOnce
    def held_keys(self) -> list[HeldJobsKey]:
        """The keys with held jobs."""
        return held_keys(self.client)

    @ReadOnce
    def in_flight(self) -> list[SampledJob]:
        """Jobs that processes, also dead ones, have fetched and not acknowledged: at most 20 of each process."""
        registered: Any = self.client.zrange(keys.REGISTRY, 0, _MOST_PROCESSES - 1)
        pipeline: Any = self.client.pipeline(transaction=False)
        for identity in map(decode_escaped, registered):
            if _IDENTITY.fullmatch(identity):
                pipeline.lrange(keys.working(identity), 0, 19)
        pages = cast("list[Any]", pipeline.execute(raise_on_error=False))
        return [SampledJob.read(data) for page in pages if isinstance(page, list) for data in cast("list[bytes]", page)]

    @property
    def next_or_in_flight(self) -> list[SampledJob]:
        """The next jobs of the queues, and those that processes have: where a job is that runs again."""
        return [*(job for queue in self.queues for job in queue.oldest.jobs), *self.in_flight]

    @ReadOnce
    def retries(self) -> JobSample:
        """Jobs of the retry set."""
        return self._sample(keys.RETRY)

    @ReadOnce
    def scheduled(self) -> JobSample:
        """Jobs of the schedule set."""
        return self._sample(keys.SCHEDULE)

    @ReadOnce
    def dead(self) -> JobSample:
        """The last jobs of the dead set."""
        return self._last(keys.DEAD)

    @ReadOnce
    def interrupted(self) -> JobSample:
        """The last jobs of the interrupted set."""
        return self._last(keys.INTERRUPTED)

    def _sample(self, key: str) -> JobSample:
        """Return windows of a sorted set at equal distances, its first and its last jobs among them."""
        size = self._size(key)
        if size <= _WINDOWS * _WINDOW:
            starts = [(0, max(0, size - 1))] if size else []
        else:
            step = (size - _WINDOW) / (_WINDOWS - 1)
            starts = [(round(at * step), round(at * step) + _WINDOW - 1) for at in range(_WINDOWS)]
        pipeline: Any = self.client.pipeline(transaction=False)
        for start, end in starts:
            pipeline.zrange(key, start, end, withscores=True)
        members = [one for page in pipeline.execute() for one in page]
        return JobSample([SampledJob.read(data, score) for data, score in members], size)

    def _last(self, key: str) -> JobSample:
        size = self._size(key)
        members: Any = self.client.zrange(key, -_WINDOWS * _WINDOW // 2, -1, withscores=True) if size else []
        return JobSample([SampledJob.read(data, score) for data, score in reversed(members)], size)

    def _size(self, key: str) -> int:
        try:
            return int(self.client.zcard(key))
        except ResponseError as error:
            if is_wrong_type(error):
                return 0
            raise

    # --- runs

    @ReadOnce
    def classes_now(self) -> list[str]:
        """The classes whose jobs wait, run or failed lately: the most frequent ones."""
        found = Counter[str]()
        for queue in self.queues:
            found += queue.classes
        found.update(one.cls for one in self.runs_now)
        found.update(one.cls for one in (*self.retries.jobs, *self.dead.jobs[:_WINDOW], *self.scheduled.jobs[:_WINDOW]))
        found.update(one.name for one in self.held)
        names = [name for name, _ in found.most_common(_MOST_CLASSES) if name]
        asked = self.scope.cls
        return [*names, *([asked] if asked is not None and asked not in names else [])]

    @ReadOnce
    def histories(self) -> Mapping[str, ClassHistory]:
        """The runs of these classes in the last hour, by class."""
        return read_histories(self.client, self.classes_now, self.now)

    def history(self, cls: str) -> ClassHistory:
        return self.histories.get(cls) or ClassHistory()

    # --- what is usual

    def target_s(self, classes: Iterator[str] | Sequence[str]) -> float:
        """Return the queueing target of the most urgent of these classes, in seconds."""
        found = [self.installation.declaration(name) for name in classes]
        urgencies: set[Urgency] = {"low" if one is None else one.urgency for one in found} or {"low"}
        return min(TARGETS[urgency][0] or _THROTTLED_S for urgency in urgencies)

    def queue_of(self, cls: str) -> str:
        """Return the queue of a class: that of its route, or of a job that is there; empty if it is not known."""
        declaration, router = self.installation.declaration(cls), self.installation.router
        if declaration is not None and router is not None:
            route = router.route(declaration)
            if self.shard in router.shards_of(declaration):
                return route.queue
        for job in (
            *(one for queue in self.queues for one in queue.oldest.jobs),
            *self.scheduled.jobs,
            *self.retries.jobs,
        ):
            if job.cls == cls and isinstance(queue := job.payload.get("queue"), str):
                return parent_of(queue)
        return next((one.queue for one in self.runs_now if one.cls == cls), "")

    def serving(self, queue: str) -> list[WorkerProcess]:
        return [one for one in self.running_processes if queue in one.queues and not one.is_quiet]

    # --- effects

    def drained(self, jobs: int, slots: int, mean_s: float | None, arriving: float = 0.0) -> str:
        """Return the time until ``jobs`` have run in ``slots``, as a text; ``arriving`` jobs a second come meanwhile."""
        if not slots:
            return Sentence("they wait until a process serves them")
        if mean_s is None:
            return Sentence("as fast as {slots} run them", slots=format_count(slots, "slot"))
        rate = slots / max(mean_s, 0.001) - arriving
        if rate <= 0:
            return Sentence("but more jobs arrive than end")
        return Sentence("drained in about {time}", time=format_duration(max(1.0, jobs / rate)))

    def effect(self, cls: str, jobs: int, assumed: Mapping[str, Mapping[str, Any]], limit: int | None = None) -> str:
        """Return what happens to the waiting jobs of a class under an assumption, and what blocks them then.

        The answer is that of ``jobs explain CLASS --assume``: its readers are asked, with the assumption in place of what is in
        force.
        """
        queue = self.queue_of(cls)
        slots = sum(one.slots for one in self.serving(queue))
        if limit is not None and limit > 0:
            slots = min(slots, limit)
        text = Sentence(
            "{jobs} of {cls} resume, {drained}",
            jobs=format_count(jobs, "job"),
            cls=cls,
            drained=self.drained(jobs, slots, self.history(cls).mean_s),
        )
        left = self.blockers(cls, queue, assumed)
        # What is found on Redis for a limit that is raised now are the jobs that wait at it.
        return (
            Sentence("{text}; then {blockers}", text=text, blockers=joined(one.why for one in left)) if left else text
        )

    def blockers(self, cls: str, queue: str, assumed: Mapping[str, Mapping[str, Any]]) -> list[Blocker]:
        """Return what blocks the jobs of a class under an assumption."""
        explainer = Explainer(self.assuming(assumed), self.installation.classes) if assumed else self._explainer
        return explainer.of_class(cls, queue, is_run=True)

    @ReadOnce
    def _explainer(self) -> Explainer:
        """Explains what is in force: many classes may fail, and what it reads of the shard is the same for all."""
        return Explainer(self, self.installation.classes)

    def worker_for(self, queue: str, slots: int | None = None, modules: Sequence[str] | None = None) -> str:
        """Return the command that starts a process for a queue of this shard."""
        words = [] if self.shard == "main" else ["--shard", self.shard]
        words += ["-q", queue, *(["-c", str(slots)] if slots else [])]
        return worker_command(*words, modules=modules)

    def ago(self, at: float) -> str:
        """Return a time of the shard's clock with its age."""
        return Sentence(
            "{at}, {time} ago",
            at=format_clock_time(at),
            time=format_duration(max(0.0, self.now - at)),
        )


def format_seconds(seconds: float) -> str:
    """Return the duration of a run, which may be short."""
    return format_duration(seconds) if seconds >= 10 else Sentence("{seconds:.2g} s", seconds=seconds)


def redis_cli(endpoint: Endpoint) -> str:
    """Return the begin of a command line of redis-cli, without the password; of a shard with sentinels, for its master."""
    if endpoint.sentinels:
        host, port = endpoint.sentinels[0]
        asked = shlex.join(
            ["redis-cli", "-h", host, "-p", str(port), "SENTINEL", "GET-MASTER-ADDR-BY-NAME", endpoint.sentinel_name]
        )
        return f"set -- $({asked}); redis-cli -h $1 -p $2"
    if endpoint.cluster:
        host, port = cluster_slot(endpoint.cluster, endpoint.tag).holder or endpoint.cluster[0]
        return shlex.join(["redis-cli", "-c", "-h", host, "-p", str(port)])
    scheme, _, path = endpoint.shown.partition("://")
    return shlex.join(["redis-cli", "-s", path] if scheme == "unix" else ["redis-cli", "-u", endpoint.shown])


def enqueued_at(job: SampledJob) -> float | None:
    """Return when a job entered its queue."""
    return timestamp(job.payload.get("enqueued_at"))


def failed_at(job: SampledJob) -> float | None:
    """Return when a job failed last."""
    return timestamp(job.payload.get("retried_at")) or timestamp(job.payload.get("failed_at"))


def error_of(job: SampledJob) -> str:
    """Return the class of the error of a failed job."""
    error = job.payload.get("error_class")
    return error if isinstance(error, str) and error else Sentence("no recorded error")


def caller_of(jobs: Sequence[SampledJob]) -> str:
    """Return the caller of most of these jobs, with its share, as a text; empty if the producers named none."""
    found = Counter(str(name) for one in jobs if (name := one.payload.get("meta.caller_id")) and isinstance(name, str))
    if not found:
        return ""
    name, count = found.most_common(1)[0]
    return Sentence("{count} % of them pushed by {name}", count=count * 100 // len(jobs), name=name)


def _queues_of(info: Any) -> frozenset[str]:
    found = loads_object(info).get("queues") if isinstance(info, bytes) else None
    return frozenset(str(one) for one in cast("list[Any]", found)) if isinstance(found, list) else frozenset()
