"""What a page reads: the chosen shards at the same time, for one caller, with a time limit."""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar, cast

from redis.exceptions import RedisError

from framework.admin.diagnosis.facts import Installation
from framework.admin.job_record import JobRecord
from framework.admin.statistics import server_times
from framework.call_threads import CallThreads
from framework.errors import ShardUnavailableError, UnknownNameError
from framework.execute.job_log import FILTERED
from framework.pages.caller import Caller, Role
from framework.pages.job_column import JobColumn, shown_value
from framework.pages.long_reads import LongRead, LongReads, ShardRead, percent_of
from framework.shard.redis_errors import unavailable_error
from framework.shard.shard import Shard
from framework.store.deadline import sent_commands
from framework.telemetry.context import CORRELATION_ID
from framework.text import Sentence
from framework.wire.job import version_of

T = TypeVar("T")

Facts: TypeAlias = dict[str, Any]
"""What a page read, as JSON: the template shows it, and the API returns it."""

ANSWER_WITHIN_S = 1.0
"""How long a page waits for a shard."""

PART_S = 0.012
"""The processor time that a page spends on what it reads in parts: its next read goes on."""

_AWAY_S = 5.0
"""For how long pages do not ask a shard again that has not answered in time."""

_THREADS_OF_SHARD = 4
_THREADS_OF_LONG_READS = 2
"""Long reads have threads of their own: other pages do not wait for them."""


class ShardReads:
    """Read the shards, each in threads of its own: one that hangs takes no thread of another."""

    def __init__(self) -> None:
        self._threads: dict[tuple[str, bool], CallThreads] = {}
        self._away: dict[str, tuple[float, str]] = {}
        """When a shard did not answer (monotonic time), and how."""
        self.long = LongReads()

    async def read(self, shard: Shard, step: Callable[[str], T], within_s: float) -> T:
        """Return what the step reads on the shard.

        Raises:
            ShardUnavailableError: the shard does not answer in time, or has not a moment ago.
        """
        try:
            return await self.answer(shard.name, lambda: step(shard.name), within_s)
        except TimeoutError as error:
            raise ShardUnavailableError(shard.name, str(error)) from None
        except (RedisError, OSError) as error:
            raise unavailable_error(shard.name, shard.endpoint, error) from error

    async def answer(self, name: str, step: Callable[[], T], within_s: float = ANSWER_WITHIN_S) -> T:
        """Return what the step reads from a store: a shard, or the database of tasks. Raises what the step raises.

        Raises:
            TimeoutError: the store does not answer in time, or has not a moment ago.
        """
        since, reason = self._away.get(name, (0.0, ""))
        if reason and time.monotonic() - since < _AWAY_S:
            raise TimeoutError(reason)
        is_long = within_s > ANSWER_WITHIN_S
        threads = self._threads.get((name, is_long))
        if threads is None:
            threads = CallThreads(_THREADS_OF_LONG_READS if is_long else _THREADS_OF_SHARD)
            self._threads[name, is_long] = threads
        try:
            async with asyncio.timeout(within_s):
                found = await threads.run(step)
        except TimeoutError:
            reason = Sentence("no answer within {within_s:g} s", within_s=within_s)
            if not is_long:
                self._away[name] = time.monotonic(), reason
            raise TimeoutError(reason) from None
        self._away.pop(name, None)
        return found


@dataclass(slots=True)
class View:
    """One request: its caller, its words, and the shards that it may read."""

    caller: Caller
    installation: Installation
    shards: Mapping[str, Shard]
    """The chosen shards that the caller may see."""
    reads: ShardReads
    parameters: Mapping[str, str] = field(default_factory=dict[str, str])
    """The words of the path, as ``queue``."""
    query: Mapping[str, str] = field(default_factory=dict[str, str])
    within_s: float = ANSWER_WITHIN_S
    unanswered: dict[str, str] = field(default_factory=dict[str, str])
    """Why a shard did not answer, by its name."""
    errors: dict[str, ShardUnavailableError] = field(default_factory=dict[str, ShardUnavailableError])
    """The errors of these shards."""
    columns: Sequence[JobColumn] = ()
    """Further columns of lists of jobs: those whose values the caller may see of some jobs."""
    now: float = field(default_factory=time.time)
    is_partial: bool = False
    """Whether the page shows a part, and its next read goes on: it is read again soon."""
    processor_s: float = 0.0
    """The processor time of the threads that have read shards for this request."""
    commands: int = 0
    """The commands that these have sent."""
    percent: int = 100
    """How much a long read has read."""
    read_at: float | None = None
    """When what is shown was read, in epoch seconds, if it is the whole of a former read: the new one goes on."""

    async def each(self, step: Callable[[str], T], shards: Collection[str] | None = None) -> dict[str, T]:
        """Return what the step reads on each shard, by the shard's name. They are read at the same time.

        A shard that does not answer is in ``unanswered``.
        """
        names = sorted(self.shards if shards is None else set(shards) & set(self.shards))
        found = await asyncio.gather(*(self._read(name, step) for name in names))
        return {name: answer[0] for name, answer in zip(names, found, strict=True) if answer}

    async def read_long(
        self, name: str, step: Callable[[str, ShardRead[T]], None], *, share: float = 1.0, keeps_former: bool = False
    ) -> Mapping[str, ShardRead[T]]:
        """Return what a long read of each shard has found so far, by the shard's name. ``is_partial`` says whether it goes on.

        ``name`` is that of the page: a page has one such read for each path and query. The step runs in another thread, notes
        each of its own steps, and adds to ``found``. The first answer takes ``share`` of the time of a part: less for large steps.
        With ``keeps_former``, what was read before is returned until the new read is over; then ``read_at`` says when that was.
        """
        words = tuple(self.parameters.items()), tuple(sorted(self.query.items())), tuple(self.shards)
        key = (name, *words, self.caller.sight)
        read = cast("LongRead[T] | None", self.reads.long.get(key))
        if read is None:
            # It begins on shards that answer.
            answering = await self.each(server_times)
            shards = [self.shards[one] for one in answering]
            read = cast("LongRead[T]", self.reads.long.begin(key, shards, cast("Any", step), share * self.part_s))
        await read.first()
        is_over = read.is_over
        read.is_shown, self.is_partial = is_over, not is_over
        for shard, one in read.by_shard.items():
            if isinstance(one.error, ShardUnavailableError):
                self._note_away(shard, one.error)
            elif one.error is not None:
                raise one.error
        processor_s, commands = read.spent()
        self.processor_s += processor_s
        self.commands += commands
        self.percent = percent_of(read.by_shard)
        former = read.former if keeps_former and not is_over else None
        if former is None:
            return read.by_shard
        self.read_at = former.ended_at
        return former.by_shard

    async def find(self, step: Callable[[str], T | None], what: str) -> T | None:
        """Return what the step finds on one of the shards; ``None`` if no shard has it, and some do not answer.

        Raises:
            UnknownNameError: no shard has it, and all answer. ``what`` names it: "the batch B1".
        """
        found = await self.each(step)
        one = next((each for each in found.values() if each is not None), None)
        if one is None and not self.unanswered:
            raise UnknownNameError(Sentence("no shard has {what}: it was deleted, or has expired", what=what))
        return one

    async def _read(self, name: str, step: Callable[[str], T]) -> tuple[T, ...]:
        try:
            if self.within_s > ANSWER_WITHIN_S:
                # A long read begins on a shard that answers only.
                await self._read_within(name, server_times, ANSWER_WITHIN_S)
            return (await self._read_within(name, step, self.within_s),)
        except ShardUnavailableError as error:
            self._note_away(name, error)
            return ()

    async def _read_within(self, name: str, step: Callable[[str], T], within_s: float) -> T:
        def counted(shard: str) -> tuple[T, float, int]:
            began, before = time.thread_time(), sent_commands()
            return step(shard), time.thread_time() - began, sent_commands() - before

        found, processor_s, commands = await self.reads.read(self.shards[name], counted, within_s)
        self.processor_s += processor_s
        self.commands += commands
        return found

    def _note_away(self, shard: str, error: ShardUnavailableError) -> None:
        self.errors[shard], self.unanswered[shard] = error, str(error)

    @property
    def part_s(self) -> float:
        """The processor time for a part on each shard."""
        return PART_S / max(1, len(self.shards))

    def page_of(self, rows: Sequence[T], most: int) -> tuple[Sequence[T], Facts]:
        """Return the rows of the page that the word ``page`` of the query names, and which page it is.

        Raises:
            ValueError: the word is no number of a page.
        """
        text = self.query.get("page", "1")
        if not (text.isascii() and text.isdigit() and 0 < len(text) < 6):
            raise ValueError(Sentence("page must be the number of a page, from 1 on"))
        pages = max(1, -(-len(rows) // most))
        page = min(max(1, int(text)), pages)
        return rows[(page - 1) * most : page * most], {"page": page, "pages": pages}

    def may(self, role: Role, shard: str, worker: str | None = None) -> bool:
        """Return whether the caller has the role on a shard, or there for the jobs of a class."""
        return self.caller.may(role, shard, None if worker is None else self.category(worker))

    def category(self, worker: str) -> str | None:
        """Return the feature category of a class, ``None`` if the class is not loaded."""
        declaration = self.installation.declaration(worker)
        return None if declaration is None else declaration.feature_category

    def job_facts(self, job: JobRecord, at: float | None = None) -> Facts:
        """Return what lists show of a job. ``at`` is its time there, such as when it is due."""
        return {
            "jid": job.jid,
            "class": job.display_class,
            "queue": job.queue,
            "shard": job.shard,
            "arguments": self.shown_arguments(job),
            "tags": job.tags,
            "at": at,
            "created_at": job.created_at,
            "enqueued_at": job.enqueued_at,
            "failed_at": job.retried_at or job.failed_at,
            "retry_count": job.retry_count,
            "error_class": job.error_class,
            "error_message": job.error_message,
            "problem": job.problem,
            "columns": {
                one.title: shown_value(one, job) if self.may(one.role, job.shard, job.worker) else ""
                for one in self.columns
            },
        }

    def shown_arguments(self, job: JobRecord) -> list[Any]:
        """Return the arguments that the caller may see: all for ``operate``, else those that log lines show."""
        arguments = job.display_args
        if self.may("operate", job.shard, job.worker):
            return arguments
        declaration = self.installation.declaration(job.worker)
        allowed = (
            frozenset[int]() if declaration is None else declaration.loggable_positions_for(version_of(job.payload))
        )
        return [one if at in allowed or _is_number(one) else FILTERED for at, one in enumerate(arguments)]

    def context_facts(self, job: JobRecord) -> Facts:
        """Return the context of a job: who pushed it, from where."""
        correlation = job.fact(CORRELATION_ID)
        return {**job.context, **({CORRELATION_ID: correlation} if correlation else {})}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)
