"""List the running processes of a shard, Ruby's too, and their running jobs; ask processes to stop, or to log stacks."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import redis

from framework.admin.access import Listing, ask, check_writable
from framework.admin.audit import audited
from framework.admin.job_record import JobRecord
from framework.admin.port import current
from framework.async_twin import async_twin
from framework.errors import UnknownNameError
from framework.process.record import (
    CLOCK_FIELD,
    LOST_FIELD,
    RUNS_FIELD,
    ProcessInfo,
    info_of,
    parse_count,
    recorded_payload,
)
from framework.settings.model import SizeLimitSettings
from framework.shard.shard import Shard
from framework.store.script import READ_PROCESSES, write_when_full
from framework.text import decode_escaped, did_you_mean
from framework.types import Payload
from framework.wire import keys
from framework.wire.job import timestamp, whole_number
from framework.wire.json import loads_object, stored_count, stored_number

SIGNAL_TTL_S = 60
"""How long a signal waits for its process, as in Sidekiq: the process reads it when it next writes its record."""

ProcessSignal: TypeAlias = Literal["TSTP", "TERM", "TTIN"]

_AT_ONCE = 200
"""The processes of one call: Redis serves other clients in between."""

_FIELDS = ("info", "quiet", "busy", "concurrency", "beat", "rss", "rtt_us", RUNS_FIELD, CLOCK_FIELD, LOST_FIELD)


@dataclass(frozen=True, slots=True)
class WorkerProcess:
    """A running process of this framework or of Sidekiq, as it wrote its record last. Times are epoch seconds."""

    shard: str
    identity: str
    hostname: str
    pid: int
    tag: str
    labels: tuple[str, ...]
    queues: tuple[str, ...]
    """The queues that it serves, also while it is quiet."""
    slots: int
    """The most jobs that it runs at once (Sidekiq's concurrency)."""
    busy: int
    is_quiet: bool
    """Whether it fetches no more jobs."""
    started_at: float | None
    beat: float | None
    """When it wrote its record."""
    rss_kb: int
    rtt_us: int
    """The time of a round trip to Redis, in microseconds."""
    version: str
    embedded: bool
    """Whether it is a part of another program, which receives no signals (Sidekiq's embedding)."""
    runs: Mapping[str, int] | None
    """Ended runs since its start, by the queue that the jobs came from; ``None`` for Sidekiq's, which does not write them."""
    clock_s: float | None
    """The seconds by which the clock of its host is ahead of Redis's, below 0 behind it; ``None`` for Sidekiq's."""
    lost_at: float | None
    """When it has last found that Redis had lost data; ``None`` for never."""

    def quiet(self) -> None:
        """Ask the process to fetch no more jobs (TSTP). It reads the signal when it next writes its record, within ten seconds.

        Raises:
            UnknownNameError: the process has ended.
            ValueError: it is a part of another program.
            ReadOnlyError: the call is inside of a ``read_only`` block.
            ShardUnavailableError: the shard does not answer.
        """
        self._ask("TSTP", "quiet")

    def stop(self) -> None:
        """Ask the process to stop (TERM): running jobs have its timeout, and the others go back. Raises as ``quiet``."""
        self._ask("TERM", "stop")

    def dump(self) -> None:
        """Ask the process to log the stacks of its threads (TTIN). Raises as ``quiet``."""
        self._ask("TTIN", "dump")

    aquiet = async_twin(quiet)
    astop = async_twin(stop)
    adump = async_twin(dump)

    def _ask(self, signal: ProcessSignal, action: str) -> None:
        step = _signal_step(f"WorkerProcess.{action}", self.identity, signal)
        if self.embedded:
            raise ValueError(
                f"the process {self.identity} is embedded in another program, and takes no signals: {action} that program"
            )
        answers = ask(self.shard, step)
        if not answers.by_shard[self.shard]:
            raise UnknownNameError(
                f"the process {self.identity} of {self.shard} has ended: there is nothing to {action}"
            )


class Processes(Listing[WorkerProcess]):
    """The running processes of the shards that answered. ``unanswered`` has the error of each other shard."""

    def quiet(self) -> None:
        """Ask each of them to fetch no more jobs. One that has ended meanwhile, or is embedded, is left out.

        Raises:
            ReadOnlyError: the call is inside of a ``read_only`` block.
            ShardUnavailableError: a shard does not answer any more; the processes before it were asked.
        """
        self._ask_each("TSTP", "quiet")

    def stop(self) -> None:
        """Ask each of them to stop. As ``quiet``."""
        self._ask_each("TERM", "stop")

    def find(self, identity: str) -> WorkerProcess:
        """Return the process with this identity.

        Raises:
            UnknownNameError: none of them has it.
        """
        for one in self:
            if one.identity == identity:
                return one
        raise UnknownNameError(unknown_process_message(identity, [one.identity for one in self]))

    aquiet = async_twin(quiet)
    astop = async_twin(stop)

    def _ask_each(self, signal: ProcessSignal, action: str) -> None:
        check_writable(f"Processes.{action}()")
        for one in self:
            if not one.embedded:
                ask(one.shard, _signal_step(f"Processes.{action}", one.identity, signal))


def _signal_step(action: str, identity: str, signal: ProcessSignal) -> Callable[[Shard], bool]:
    return audited(action, lambda one: send_signal(one.client, identity, signal), {"process": identity})


def processes(shard: str | None = None) -> Processes:
    """Return the running processes of the shard, or of all shards, ordered by identity. A dead process is left out.

    Raises:
        ShardUnavailableError: no shard answers.
        UnknownShardError: the configuration has no such shard.
    """
    answers = ask(shard, read_running)
    return Processes((one for found in answers.by_shard.values() for one in found), answers.unanswered)


aprocesses = async_twin(processes)


def is_named(identity: str, name: str) -> bool:
    """Return whether the name is the identity (HOST:PID:NONCE), or its beginning: HOST, or HOST:PID."""
    return identity == name or (bool(name) and identity.startswith(f"{name}:"))


def unknown_process_message(name: str, known: Iterable[str]) -> str:
    """Return the message for a process that does not run, with the nearest identity."""
    return f"no running process is named {name!r}{did_you_mean(name, known)}"


def send_signal(client: "redis.Redis", identity: str, signal: ProcessSignal) -> bool:
    """Leave a signal for the process; return whether it has a record, and so will read it. Raises redis errors."""
    if not client.exists(identity):
        return False
    write_when_full(client, ("LPUSH", keys.signals(identity), signal))
    client.expire(keys.signals(identity), SIGNAL_TTL_S)
    return True


def read_running(shard: Shard) -> list[WorkerProcess]:
    """Return the running processes of a shard. Raises redis errors.

    One with a record but without a lease is dead: a record outlives its process by up to a minute. Ruby's have no leases.
    """
    return [_process(shard.name, identity, fields) for identity, fields, _ in _read_records(shard.client, _FIELDS)]


def read_busy(client: "redis.Redis") -> dict[str, int]:
    """Return how many jobs each running process of a shard runs. Raises redis errors."""
    return {identity: parse_count(busy) for identity, (busy,), _ in _read_records(client, ("busy",))}


class _Record(NamedTuple):
    identity: str
    fields: list[bytes | None]
    jobs: list[bytes]
    """The threads with the records of their running jobs, one after the other."""


def _read_records(client: "redis.Redis", fields: Sequence[str], *, with_jobs: bool = False) -> list[_Record]:
    """Return these fields of each running process, ordered by identity."""
    found, cursor = dict[str, _Record](), b""
    while cursor != b"0":
        cursor, *listed = READ_PROCESSES(
            client, [keys.PROCESSES, keys.REGISTRY], [cursor or 0, _AT_ONCE, int(with_jobs), *fields]
        )
        for identity, *record in listed:
            # A scan may return a member twice.
            name = decode_escaped(identity)
            found[name] = _Record(name, *record)
    return [found[name] for name in sorted(found)]


def _process(shard: str, identity: str, fields: Sequence[bytes | None]) -> WorkerProcess:
    info, quiet, busy, slots, beat, rss, rtt, runs, clock, lost = fields
    facts = loads_object(info or b"")
    shown: ProcessInfo = info_of(identity, facts, None, busy, slots)
    return WorkerProcess(
        shard=shard,
        identity=identity,
        hostname=_text(facts.get("hostname")),
        pid=whole_number(facts.get("pid")) or 0,
        tag=_text(facts.get("tag")),
        labels=_texts(facts, "labels"),
        queues=tuple(sorted(shown.queues)),
        slots=shown.slots,
        busy=shown.busy,
        is_quiet=quiet == b"true",
        started_at=timestamp(facts.get("started_at")),
        beat=timestamp(None if beat is None else decode_escaped(beat)),
        rss_kb=stored_count(rss),
        rtt_us=stored_count(rtt),
        version=_text(facts.get("version")),
        embedded=facts.get("embedded") is True,
        runs=None if runs is None else _counts(loads_object(runs)),
        clock_s=None if clock is None else stored_number(clock),
        lost_at=stored_number(lost) or None,
    )


def _counts(found: Payload) -> dict[str, int]:
    counts = ((name, whole_number(count)) for name, count in found.items())
    return {name: count for name, count in counts if count is not None}


def _texts(facts: Mapping[str, Any] | Payload, name: str) -> tuple[str, ...]:
    found = facts.get(name)
    return tuple(one for one in cast("list[Any]", found) if isinstance(one, str)) if isinstance(found, list) else ()


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job that a process runs. A process writes its record every few seconds: a job that just began may be missing."""

    shard: str
    process: str
    """The identity of the process."""
    thread: str
    queue: str
    """The queue that the job came from."""
    since: float | None
    """When the job began, in epoch seconds."""
    job: JobRecord
    """The job; of a large one the record has a note in place of the arguments."""

    @property
    def jid(self) -> str:
        """The job's id."""
        return self.job.jid

    @property
    def worker(self) -> str:
        """The wire name of its class."""
        return self.job.display_class


def work(shard: str | None = None) -> Listing[RunningJob]:
    """Return the running jobs of the shard, or of all shards, the longest-running first.

    Raises:
        ShardUnavailableError: no shard answers.
        UnknownShardError: the configuration has no such shard.
    """
    sizes = current().settings.size_limit
    answers = ask(shard, lambda one: list(read_work(one, sizes)))
    found = [job for jobs in answers.by_shard.values() for job in jobs]
    return Listing(sorted(found, key=lambda job: job.since or 0.0), answers.unanswered)


awork = async_twin(work)


def read_work(shard: Shard, sizes: SizeLimitSettings) -> Iterator[RunningJob]:
    """Yield the running jobs of a shard. Raises redis errors."""
    for identity, _, jobs in _read_records(shard.client, (), with_jobs=True):
        for thread, entry in sorted(zip(jobs[::2], jobs[1::2], strict=True)):
            yield _running_job(shard.name, identity, thread, entry, sizes)


def _running_job(shard: str, identity: str, thread: bytes, entry: bytes, sizes: SizeLimitSettings) -> RunningJob:
    fields = loads_object(entry)
    queue = fields.get("queue")
    return RunningJob(
        shard,
        identity,
        decode_escaped(thread),
        queue if isinstance(queue, str) else "",
        timestamp(fields.get("run_at")),
        JobRecord(shard, recorded_payload(fields), sizes),
    )
