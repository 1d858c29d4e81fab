"""Read facts about one shard for explanations, and declare what a feature says in ``jobs explain``."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple, TypeVar, cast

import click
import redis
from redis.exceptions import ResponseError

from framework.admin.queue_actions import PauseRecord, pauses_of_queues, read_pause_log
from framework.admin.read_once import ReadOnce
from framework.admin.search import JobLocation
from framework.declare.declaration import Declaration
from framework.execute.admission import AdmissionStage
from framework.feature import Late
from framework.process.record import ProcessInfo, read_processes, recorded_payload
from framework.shard.shard import Shard
from framework.store.connect import server_time
from framework.text import decode_escaped
from framework.types import Jid, Payload
from framework.wire import keys
from framework.wire.iteration_state import read_iteration
from framework.wire.job import DEFERRED_COUNT, timestamp, whole_number
from framework.wire.json import loads_object
from framework.wire.keys import split_owner

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ListOwner:
    """The process that has a job: its lease, its last heartbeat, and since when it runs the job."""

    lease_s: float | None
    """``None`` for an expired lease: the process is dead, or it is one of Sidekiq's, which have none."""
    silent_s: float | None
    """Seconds since the last heartbeat; ``None`` if the process is not registered and has no record."""
    running_since: float | None


class ShardSnapshot:
    """Cache the facts about one shard. Every method may raise redis errors."""

    def __init__(
        self, client: "redis.Redis", shard: str, assumed: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        """``assumed`` has what counts instead of what is in force: by the name of a feature, and then by name."""
        self.client = client
        self.shard = shard
        self.assumed: Mapping[str, Mapping[str, Any]] = assumed or {}
        self._facts: dict[Late[Any], Any] = {}

    def fact(self, kind: "Late[Callable[[ShardSnapshot], T]]") -> T:
        """Return what this function of a feature reads from the shard, whatever is assumed: it is called once."""
        if kind not in self._facts:
            self._facts[kind] = kind.load()(self)
        return cast("T", self._facts[kind])

    def assuming(self, assumed: Mapping[str, Mapping[str, Any]]) -> "ShardSnapshot":
        """Return the same facts under an assumption: they are not read again."""
        other = ShardSnapshot(self.client, self.shard, assumed)
        other.now, other.processes = self.now, self.processes
        other.paused_queues, other.queue_pauses = self.paused_queues, self.queue_pauses
        other._facts = self._facts
        return other

    @ReadOnce
    def now(self) -> float:
        """The time of the shard's clock, which decides what is due."""
        return server_time(self.client)

    @ReadOnce
    def processes(self) -> list[ProcessInfo]:
        """The live processes. One with a record but without a lease is dead: a record outlives its process by up to a minute."""
        seen = read_processes(self.client)
        pipeline: Any = self.client.pipeline(transaction=False)
        for one in seen:
            pipeline.zscore(keys.REGISTRY, one.identity)
            pipeline.exists(keys.lease(one.identity))
        replies = iter(pipeline.execute())
        return [one for one, beat, leased in zip(seen, replies, replies, strict=True) if beat is None or leased]

    @ReadOnce
    def paused_queues(self) -> frozenset[str]:
        """The paused queues (Sidekiq Pro's set)."""
        return frozenset(decode_escaped(name) for name in cast("set[bytes]", self.client.smembers(keys.PAUSED)))

    @ReadOnce
    def queue_pauses(self) -> Mapping[str, PauseRecord]:
        """The pauses of queues that an operator of this framework ordered, by queue."""
        return pauses_of_queues(read_pause_log(self.client))

    def processes_serving(self, queue: str) -> list[ProcessInfo]:
        return [seen for seen in self.processes if queue in seen.queues]

    def status(self, jid: str) -> str | None:
        """Return the status of a tracked job, ``None`` without one."""
        pipeline: Any = self.client.pipeline()
        pipeline.get(keys.status(jid))
        pipeline.pttl(keys.status(jid))
        state, _ = pipeline.execute()
        return None if state is None else decode_escaped(state)

    def cancelled_since(self, name: str) -> float | None:
        """Return when the job or batch with this id was cancelled, ``None`` if it was not."""
        try:
            return self.client.zscore(keys.CANCELLED, name)
        except ResponseError:
            return None

    def marked_by_ruby_since(self, jid: str) -> float | None:
        """Return when Sidekiq's ``cancel!`` marked a job, which ``framework.cancel`` does too; ``None`` for a job without a mark."""
        try:
            state = read_iteration(cast("dict[bytes, bytes]", self.client.hgetall(keys.iteration(jid))))
        except ResponseError:
            return None
        return None if state is None else state.cancelled_at

    def owner(self, owner: str, jid: str) -> ListOwner:
        """Return the state of the process whose working list or record has the job."""
        identity, _ = split_owner(owner)
        pipeline: Any = self.client.pipeline()
        pipeline.pttl(keys.lease(identity))
        pipeline.zscore(keys.REGISTRY, identity)
        pipeline.hget(identity, "beat")
        for key in keys.work(identity):
            pipeline.hvals(key)
        replies: list[Any] = pipeline.execute()
        lease_ms, beat, written_at = replies[:3]
        work: list[list[bytes]] = replies[3:]
        if beat is None and written_at is not None:
            beat = timestamp(decode_escaped(written_at))
        running = [
            entry
            for entry in map(loads_object, chain(*work))
            if loads_object(recorded_payload(entry)).get("jid") == jid
        ]
        return ListOwner(
            lease_ms / 1_000 if lease_ms > 0 else None,
            None if beat is None else self.now - abs(beat),
            timestamp(running[0].get("run_at")) if running else None,
        )


_MAX_COUNT = 1_000_000


def deferrals_of(payload: Payload) -> int:
    """Return how often a job was deferred; at least once, as it is marked as deferred."""
    return min(max(whole_number(payload.get(DEFERRED_COUNT)) or 1, 1), _MAX_COUNT)


class Blocker(NamedTuple):
    """A reason why a job does not run, with a ``code`` for programs, and the remedy: a command, an event or a time."""

    code: str
    why: str
    remedy: str


class HeldPosition(NamedTuple):
    """A job that waits outside of its queue: a description of the place, and what blocks the job there."""

    where: str
    blockers: list[Blocker]


class ShownLimit(NamedTuple):
    """The limit of the jobs of a class that run at a time: 0 or ``None`` is no limit."""

    limit: int | None
    usage: str
    running: int


class ShownFacts(NamedTuple):
    """What a command shows of a job or a class: headings with their texts, and the fields of the JSON, which are always there."""

    lines: Sequence[tuple[str, str]] = ()
    fields: Mapping[str, Any] = {}


def joined_facts(found: Iterable[ShownFacts]) -> ShownFacts:
    """Return the facts of several features as one."""
    parts = list(found)
    fields = {name: value for part in parts for name, value in part.fields.items()}
    return ShownFacts([line for part in parts for line in part.lines], fields)


class KeptFact(NamedTuple):
    """What a shard keeps of a job, also after its end: a text that begins with "its", and the value for the JSON."""

    text: str
    value: Mapping[str, Any]


class ShownCancellation(NamedTuple):
    """The cancellation of what a job belongs to, such as "its batch"; ``since`` is in epoch seconds."""

    what: str
    since: float


class ExplainReader:
    """Read for one shard what a feature has to do with a job, or with one class. Override what applies.

    Every method may raise redis errors.
    """

    kept_name = ""
    """The field of the JSON for what ``kept`` finds; empty for a feature that keeps nothing of a job."""

    def __init__(self, snapshot: ShardSnapshot) -> None:
        self.snapshot = snapshot

    def blockers(self, stage: AdmissionStage, worker: str, queue: str) -> list[Blocker]:
        """Return what blocks jobs of a class, at this stage of admission, that a process fetches from a queue."""
        del stage, worker, queue
        return []

    def held(self, location: JobLocation) -> HeldPosition | None:
        """Describe a job that this feature holds outside of its queue; ``None`` for a job at another place."""
        del location
        return None

    def resources(self, payload: Payload, identity: str) -> list[str]:
        """Return a text for each thing that a job holds; ``identity`` is the process that has it, empty for none."""
        del payload, identity
        return []

    def not_run(self, payload: Payload) -> list[Blocker]:
        """Return why a job of the retry set has not run; nothing for a job whose run has failed."""
        del payload
        return []

    def scheduled(self, payload: Payload) -> list[Blocker]:
        """Return why a job of the schedule set has to wait there, other than by a deferral."""
        del payload
        return []

    def deferral(self, payload: Payload, times: str, remedy: str) -> Blocker | None:
        """Return the blocker of a deferred job that needs more than its time; ``None`` for a job of another feature.

        ``times`` is a text, how often it was deferred; ``remedy`` says how it runs sooner.
        """
        del payload, times, remedy
        return None

    def cause_of_deferral(self, payload: Payload, declaration: Declaration | None) -> str:
        """Return why this feature deferred a job; empty for a job of another feature, or if there is nothing to add."""
        del payload, declaration
        return ""

    def limit_of(self, worker: str) -> ShownLimit | None:
        """Return the limit of a class; ``None`` if this feature limits no class."""
        del worker
        return None

    def cancellation(self, payload: Payload) -> ShownCancellation | None:
        """Return the cancellation of what a job belongs to, ``None`` if it was not cancelled."""
        del payload
        return None

    def place_of_run(self, declaration: Declaration) -> str:
        """Return where the jobs of a class run; empty for the worker process."""
        del declaration
        return ""

    def origin(self, payload: Payload) -> ShownFacts:
        """Return what has made a job."""
        del payload
        return ShownFacts()

    def wishes(self, payload: Payload) -> ShownFacts:
        """Return what the push of a job has asked for."""
        del payload
        return ShownFacts()

    def progress(self, payload: Payload) -> ShownFacts:
        """Return what the runs of a job have done."""
        del payload
        return ShownFacts()

    def kept(self, jid: Jid) -> KeptFact | None:
        """Return what the shard keeps of a job for others; ``None`` for nothing."""
        del jid
        return None

    def count(self, jobs: Sequence[Payload]) -> None:
        """Count jobs of the class that is explained, for ``of_class``."""

    def of_class(self, worker: str) -> ShownFacts:
        """Return the facts of a class, after all its jobs on the shard were counted."""
        del worker
        return ShownFacts()


class AssumptionReader:
    """Read what an operator assumes about a class (``jobs explain --assume``): it counts instead of what is in force."""

    form = ""
    """An example, such as ``limit=20``."""

    def __init__(self, worker: str, forms: str) -> None:
        """``worker`` is the name of the class; ``forms`` a text with the examples of all features."""
        self.worker = worker
        self.forms = forms

    def read(self, text: str, name: str, value: str) -> bool:
        """Take the assumption ``text``, which is NAME=VALUE; return false for one of another feature.

        Raises:
            click.UsageError: the value is wrong.
        """
        raise NotImplementedError

    def assumed(
        self, declaration: Declaration | None, shard: Shard, known: Mapping[str, Mapping[str, Any]]
    ) -> "Assumed":
        """Return what counts on a shard; ``known`` has what the features before this one have said.

        Raises redis errors.

        Raises:
            click.UsageError: it cannot be said for this class.
        """
        raise NotImplementedError

    def whole_number(self, text: str, value: str) -> int:
        """Return the number. Raises click.UsageError."""
        try:
            return int(value)
        except ValueError:
            raise click.UsageError(f"--assume {text!r}: {value!r} is no whole number; {self.forms}.") from None


class Assumed(NamedTuple):
    """What counts under the assumptions: by the name of a feature, and then by name; and lines for the answer."""

    facts: Mapping[str, Mapping[str, Any]]
    lines: Sequence[tuple[str, str]] = ()
