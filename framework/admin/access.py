"""Run a step of ``framework.admin`` on one shard or on all, and refuse actions in code that may only read."""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Generic, TypeVar

from redis.exceptions import RedisError

from framework.admin import port
from framework.async_twin import async_items
from framework.errors import ReadOnlyError, ShardUnavailableError
from framework.shard.redis_errors import unavailable_error
from framework.shard.shard import Shard
from framework.shard.shards import answering
from framework.typeguards import is_text, short_repr

T = TypeVar("T")

TIME_LIMIT_S = 30.0
"""The default time limit of an action on all matching jobs."""

_reads_only: ContextVar[bool] = ContextVar("framework_admin_reads_only", default=False)


class Listing(list[T]):
    """The values of the shards that answered; ``unanswered`` has the error of each other shard, by the shard's name."""

    def __init__(self, found: Iterable[T] = (), unanswered: Mapping[str, ShardUnavailableError] | None = None) -> None:
        super().__init__(found)
        self.unanswered = dict(unanswered or {})


@dataclass(slots=True)
class Answers(Generic[T]):
    """The result of a step by shard, and the error of each shard that did not answer."""

    by_shard: dict[str, T] = field(default_factory=dict[str, T])
    unanswered: dict[str, ShardUnavailableError] = field(default_factory=dict[str, ShardUnavailableError])


@contextmanager
def read_only() -> Generator[None]:
    """Refuse every action of ``framework.admin`` within the block, in this thread or task; reading goes on.

    Use it where people may look at jobs and not change them: in a console, on a page.
    """
    token = _reads_only.set(True)
    try:
        yield
    finally:
        _reads_only.reset(token)


def check_writable(action: str) -> None:
    """Refuse ``action``, a name such as ``Queue.clear()``, in a ``read_only`` block.

    Raises:
        ReadOnlyError: the call is inside of such a block.
    """
    if _reads_only.get():
        raise ReadOnlyError(
            f"{action} is refused, and nothing was changed: it is inside of a block `with admin.read_only()`. "
            "Call it outside of the block."
        )


def check_jid(jid: object) -> None:
    """Check an id of a job.

    Raises:
        TypeError, ValueError: ``jid`` cannot be one.
    """
    if not isinstance(jid, str):
        raise TypeError(f"{short_repr(jid)} is no id of a job: give the text that perform_async returned")
    if not is_text(jid):
        raise ValueError(f"{short_repr(jid)} is no Unicode text: give the id that perform_async returned")
    if not jid:
        raise ValueError("the id of a job is empty: give the text that perform_async returned")


def chosen_shards(shard: str | None) -> list[Shard]:
    """Return the shard of that name, or every shard of the configuration.

    Raises:
        UnknownShardError: the configuration has no such shard.
        ConfigurationError: the configuration is invalid.
    """
    shards = port.current().shards
    return [shards[shard]] if shard is not None else [shards[name] for name in sorted(shards)]


def answering_shards(shard: str | None) -> Iterator[tuple[Shard, ShardUnavailableError | None]]:
    """Yield the chosen shards, each with the error of one that does not answer within a second.

    All are asked at the same time, and those that answer late come last. A shard that is the only one is not asked: it may be slow.
    Raises as ``chosen_shards``.
    """
    chosen = chosen_shards(shard)
    return answering(chosen) if len(chosen) > 1 else iter([(one, None) for one in chosen])


def deadline_of(time_limit: timedelta | float | None) -> float:
    """Return when an action with this time limit stops, by the monotonic clock; ``None`` is no limit."""
    if time_limit is None:
        return math.inf
    return time.monotonic() + (time_limit.total_seconds() if isinstance(time_limit, timedelta) else time_limit)


def ask(shard: str | None, step: Callable[[Shard], T]) -> Answers[T]:
    """Run the step on the shard of that name, or on each shard in turn: one that does not answer costs the others a second.

    Raises:
        ShardUnavailableError: no shard answers.
        UnknownShardError: the configuration has no such shard.
        ConfigurationError: the configuration is invalid.
    """
    answers = run_on_each(shard, step)
    if not answers.by_shard:
        raise next(iter(answers.unanswered.values()))
    return answers


def run_on_each(shard: str | None, step: Callable[[Shard], T]) -> Answers[T]:
    """Run the step as ``ask``; return the errors also when no shard answers."""
    answers = Answers[T]()
    for one, late in answering_shards(shard):
        if late is not None:
            answers.unanswered[one.name] = late
            continue
        try:
            answers.by_shard[one.name] = step(one)
        except (RedisError, OSError) as error:
            answers.unanswered[one.name] = unavailable_error(one.name, one.endpoint, error)
    return answers


def collect(shard: str | None, step: Callable[[Shard], Iterable[T]]) -> Listing[T]:
    """Return the results of the step on all shards, in one list. Raises as ``ask``."""
    answers = ask(shard, lambda one: list(step(one)))
    return Listing((one for found in answers.by_shard.values() for one in found), answers.unanswered)


def sum_of(shard: str | None, step: Callable[[Shard], int]) -> int:
    """Return the sum over the shards. Raises ShardUnavailableError if one does not answer."""
    answers = ask(shard, step)
    raise_first(answers.unanswered)
    return sum(answers.by_shard.values())


def raise_first(unanswered: Mapping[str, ShardUnavailableError]) -> None:
    """Raise the error of a shard that did not answer, if there is one."""
    for error in unanswered.values():
        raise error


def iterate(shard: str | None, step: Callable[[Shard], Iterable[T]]) -> Iterator[T]:
    """Yield the results of the step on each shard in turn, while they are read.

    A shard that does not answer is left out, and its error is raised after the last item: no loop ends as if it had seen all.

    Raises:
        ShardUnavailableError: a shard did not answer, or stopped to.
        UnknownShardError: the configuration has no such shard.
        ConfigurationError: the configuration is invalid.
    """
    failed: ShardUnavailableError | None = None
    for one, late in answering_shards(shard):
        failed = failed or late
        try:
            if late is None:
                yield from step(one)
        except (RedisError, OSError) as error:
            failed = failed or unavailable_error(one.name, one.endpoint, error)
    if failed is not None:
        raise failed


Status = TypeVar("Status")


class StatusSet(ABC, Generic[Status]):
    """All batches or workflows of one shard or of every shard: a loop reads the status of each."""

    def __init__(self, shard: str | None) -> None:
        self.shard = shard

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shard={self.shard!r})"

    @abstractmethod
    def _of_shard(self, shard: Shard) -> Iterable[Status]:
        """Yield the statuses of one shard."""

    def __iter__(self) -> Iterator[Status]:
        """Yield each status, in pages, while they change.

        Raises:
            ShardUnavailableError: a shard did not answer, or stopped to; after the statuses of the others.
            UnknownShardError: the configuration has no such shard.
            ConfigurationError: the configuration is invalid.
        """
        return iterate(self.shard, self._of_shard)

    def __aiter__(self) -> AsyncIterator[Status]:
        """Yield as a loop without ``async``, without blocking the event loop."""
        return async_items(self)
