"""Represent requests to push: the declaration of the class and the arguments of a call. Bind, check and split those of many jobs."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from random import random
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, ParamSpec, Protocol, TypeAlias, TypeGuard

from pydantic_core import PydanticSerializationError, to_json

from framework.declare.declaration import Declaration
from framework.declare.signature import JobSignature
from framework.declare.strict_json import MAX_DIGITS, PLAIN_TYPES
from framework.errors import ArgumentsError, BulkPushError, PayloadError
from framework.text import with_article
from framework.types import Jid, Json
from framework.wire.json import dumps_exact

P = ParamSpec("P")

NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})


class Performs(Protocol[P]):
    """Represent a worker whose ``perform`` takes P. Type checkers compare pushes with it."""

    def perform(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Run the job."""


class Route(NamedTuple):
    """Name the queue and the shard of a class's jobs, and the rule that matched (None: no rule)."""

    queue: str
    shard: str
    rule: str | None


@dataclass(frozen=True, slots=True)
class JobRequest(Generic[P]):
    """Represent one job of a bulk push, as ``Worker.arguments(...)`` returns it: its arguments bound to positions."""

    declaration: Declaration
    args: list[Any]


class DueTime(NamedTuple):
    """Represent the time of a job: ``at`` in epoch seconds, or ``delay_s`` seconds after Redis receives it.

    With a ``delay_s`` Redis's clock counts; ``at`` is then an estimate by the clock of this host.
    """

    at: float
    delay_s: float | None = None


class PushRequest(NamedTuple):
    """Represent one push: bound but unchecked arguments, and the time ``due`` (None: now)."""

    declaration: Declaration
    args: list[Any]
    due: DueTime | None = None
    options: Mapping[str, Any] = NO_OPTIONS


class BulkPacing(NamedTuple):
    """Spread the jobs of a bulk push: ``batch_size`` jobs first, then as many every ``batch_delay_s`` seconds (GitLab)."""

    batch_size: int
    batch_delay_s: float

    def delays_s(self, start: int, count: int) -> list[float]:
        """Return the seconds between the first job of the bulk and each of ``count`` jobs from index ``start`` on."""
        return [index // self.batch_size * self.batch_delay_s for index in range(start, start + count)]


class RandomSpread(NamedTuple):
    """Spread the jobs of a bulk push at random over ``interval_s`` seconds (Sidekiq's ``spread_interval``)."""

    interval_s: float

    def delays_s(self, start: int, count: int) -> list[float]:
        del start
        return [random() * self.interval_s for _ in range(count)]


class JobTimes(NamedTuple):
    """Hold the time of each job of a bulk push, in seconds after the time of the bulk."""

    seconds: Sequence[float]

    def delays_s(self, start: int, count: int) -> Sequence[float]:
        return self.seconds[start : start + count]


class BulkRequest(NamedTuple):
    """Represent a bulk push. ``due`` is the time of the first job, ``pacing`` spreads the others, ``contexts`` has one per job.

    The arguments are those of the caller; ``bind_all`` and ``json_chunks`` check them. ``start`` is the index of the first job, for
    messages: above 0 in a later chunk of a stream.
    """

    declaration: Declaration
    args: Iterable[Any]
    due: DueTime | None = None
    options: Mapping[str, Any] = NO_OPTIONS
    contexts: Sequence[Mapping[str, Json]] | None = None
    pacing: BulkPacing | RandomSpread | JobTimes | None = None
    start: int = 0

    def delays_s(self, start: int, count: int) -> Sequence[float]:
        """Return the seconds between the first job of the bulk and each of ``count`` jobs from index ``start`` on."""
        return [0.0] * count if self.pacing is None else self.pacing.delays_s(start, count)


CHUNK_SIZE = 1_000
"""Jobs per round trip (GitLab's and Sidekiq's figure)."""

Coerce: TypeAlias = Callable[[list[Any]], list[Any]]
"""Turn a job's arguments that are not strict into their JSON form. Raises ArgumentsError for arguments that have none."""

_TYPED_FORM = (
    ". Type checkers see such an error in perform_bulk_for(objects, arguments=lambda one: Worker.arguments(...))"
)
_SEQUENCE_TYPES = frozenset({tuple, list})
_JOB_SEPARATOR, _LINE_SEPARATOR = b'],"",[', b"]\n["


# A bulk push is kept as JSON until it is written, since all jobs are checked first: a million tuples take some ten megabytes.
class BulkChunk(NamedTuple):
    """Up to 1,000 jobs: their arguments as JSON, a line per job, and the bytes of the longest line."""

    lines: bytes
    longest_line: int


def bind_all(
    signature: JobSignature, jobs: Iterable[Any], coerce: Coerce | None = None, first: int = 0
) -> list[list[Any]]:
    """Return every job's arguments as a list of positions, checked. Raises ArgumentsError naming the first wrong job.

    Arguments that are not strict are replaced by the result of ``coerce``, where it is given. ``first`` is the index of the first
    job, for messages.
    """
    return [bound for start, part in _chunks(jobs, first) for bound in _bind_each(signature, part, start, coerce)]


def json_chunks(
    signature: JobSignature, jobs: Iterable[Any], coerce: Coerce | None = None, first: int = 0
) -> Iterator[BulkChunk]:
    """Yield every job's arguments as JSON, checked; a fraction of the objects' size.

    Otherwise as ``bind_all``. The caller writes nothing before the last chunk has come.
    """
    for start, part in _chunks(jobs, first):
        yield _fast_chunk(signature, part) or _checked_chunk(signature, part, start, coerce)


def _chunks(jobs: Iterable[Any], start: int) -> Iterator[tuple[int, list[Any]]]:
    given = iter(jobs)
    while part := list(islice(given, CHUNK_SIZE)):
        yield start, part
        start += CHUNK_SIZE


def _fast_chunk(signature: JobSignature, jobs: list[Any]) -> BulkChunk | None:
    """Return the chunk when all arguments are plain values that fit; None where each job needs a check of its own."""
    if not _SEQUENCE_TYPES.issuperset(map(type, jobs)):
        return None
    kinds = set(map(type, chain.from_iterable(jobs)))
    if not PLAIN_TYPES.issuperset(kinds) or not signature.all_valid(jobs):
        return None
    parted: list[Any] = [""] * (2 * len(jobs) - 1)
    parted[::2] = jobs
    try:
        data = to_json(parted)
    # Half a surrogate pair, or an integer of too many digits.
    except (PydanticSerializationError, ValueError):
        return None
    if float in kinds and (b"NaN" in data or b"Infinity" in data):
        return None
    # Plain values have no brackets, and a quote inside of a string is escaped: this text stands between jobs only.
    lines = data[1:-1].replace(_JOB_SEPARATOR, _LINE_SEPARATOR)
    longest = max(map(len, lines.split(b"\n")))
    return BulkChunk(lines, longest) if longest < MAX_DIGITS else None


def _checked_chunk(signature: JobSignature, jobs: list[Any], start: int, coerce: Coerce | None) -> BulkChunk:
    lines: list[bytes] = []
    for index, bound in enumerate(_bind_each(signature, jobs, start, coerce, _TYPED_FORM), start):
        try:
            lines.append(dumps_exact(bound, outer_levels=1))
        except PayloadError as error:
            raise ArgumentsError(signature.worker, f"(job {index} of the bulk) refused: {error.reason}") from None
    return BulkChunk(b"\n".join(lines), max(map(len, lines)))


def _bind_each(
    signature: JobSignature, jobs: list[Any], start: int, coerce: Coerce | None, hint: str = ""
) -> Iterator[list[Any]]:
    for index, args in enumerate(jobs, start):
        if not _is_sequence(args):
            kind = with_article(type(args).__name__)
            reason = f"job {index} of the bulk is {kind}; give each job's arguments as a tuple, such as (1,)"
            raise ArgumentsError(signature.worker, f"{reason}{hint}")
        try:
            bound = signature.bind(args, {})
            try:
                signature.check(bound)
            except ArgumentsError:
                if coerce is None:
                    raise
                bound = coerce(bound)
        except ArgumentsError as error:
            raise ArgumentsError(
                error.worker, f"(job {index} of the bulk) {error.reason}{hint}", argument=error.argument
            ) from None
        yield bound


def _is_sequence(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, (tuple, list))


PushChunk: TypeAlias = Callable[[Sequence[Any], int], list[Jid | None]]
"""Pushes the jobs of one chunk, whose first has the given index; returns their ids, ``None`` for dropped jobs."""


class BulkStream:
    """Push the jobs of one iterator. Used by one thread at a time.

    Each chunk is checked before it is written. A chunk that fails is kept, so that ``resume`` pushes every job once.
    """

    def __init__(self, jobs: Iterable[Any], push_chunk: PushChunk) -> None:
        self._jobs = iter(jobs)
        self._push_chunk = push_chunk
        self._resume_chunk: Callable[[], list[Jid | None]] | None = None
        """Repeats the current chunk, which may be written."""
        self._chunk: list[Any] = []
        self._start = 0
        self._read_error: Exception | None = None
        self._stopped = False

    def run(self) -> int:
        """Push all jobs; return the number of written ones.

        Raises:
            BulkPushError: a chunk was not or not certainly written, was refused, or could not be read.
            Exception: the first chunk was refused or could not be read; nothing was written.
        """
        written = 0
        while jids := self._push_next():
            written += len(jids) - jids.count(None)
        return written

    def stop(self) -> None:
        """Let ``run`` return after the current chunk. Safe from any thread."""
        self._stopped = True

    def _resume(self) -> list[Jid | None]:
        # The ids of a whole stream would take more memory than its jobs; those of the rest are what the caller must learn.
        jids: list[Jid | None] = []
        while more := self._push_next():
            jids += more
        return jids

    def _push_next(self) -> list[Jid | None]:
        """Push one chunk; return the ids of its jobs, none at the end of the stream."""
        try:
            if not self._chunk and not self._stopped:
                self._read()
            if not self._chunk:
                return []
            repeat = self._resume_chunk
            jids = repeat() if repeat is not None else self._push_chunk(self._chunk, self._start)
        except BulkPushError as error:
            self._resume_chunk = error.resume
            cause = error.__cause__ or error
            raise self._failure(cause, maybe_written=error.maybe_written, in_doubt=error.in_doubt) from cause
        # The iterator, a middleware and an annotation may raise anything; the caller must learn which jobs are written.
        except Exception as error:
            if self._start == 0:
                raise
            raise self._failure(error) from error
        self._start += len(self._chunk)
        self._chunk, self._resume_chunk = [], None
        return jids

    def _read(self) -> None:
        # A generator that raised is at its end: another read would take the failure for the end of the jobs.
        if self._read_error is not None:
            raise self._read_error
        chunk: list[Any] = []
        try:
            for job in self._jobs:
                chunk.append(job)
                if len(chunk) == CHUNK_SIZE:
                    break
        except Exception as error:
            self._read_error = error
            raise
        self._chunk = chunk

    def _failure(
        self, cause: BaseException, *, maybe_written: bool = False, in_doubt: Sequence[Jid] = ()
    ) -> BulkPushError:
        resume = None if cause is self._read_error else self._resume
        return BulkPushError([], self._start, cause, maybe_written=maybe_written, in_doubt=in_doubt, resume=resume)
