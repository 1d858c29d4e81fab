"""Search the jobs of a shard in every place for what an operator types into one box, for a bounded time, from where it stopped on."""

import re
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, get_args

import redis

from framework.admin.job_record import JobRecord, exact_needle
from framework.admin.search import (
    HELD_KINDS,
    JobStore,
    ScanPage,
    StoreKind,
    list_job_stores,
    payload_of_member,
    scan_from,
    scan_packed_from,
    search_list_steps,
    search_records,
    share_of_cursor,
)
from framework.admin.statistics import OnProgress, ignore_progress
from framework.fetch.held_blocks import packed_held
from framework.settings.model import SizeLimitSettings
from framework.shard.shard import Shard
from framework.store.connect import server_time
from framework.text import Sentence, decode_escaped, did_you_mean, parse_duration
from framework.wire.job import clamp_time

JobStatus: TypeAlias = str

STATUSES: Mapping[JobStatus, tuple[StoreKind, ...]] = {
    "queued": ("queue", "migrating"),
    "running": ("in flight", "running"),
    "scheduled": ("scheduled",),
    "retry": ("retry",),
    "held": ("waiting", "paused"),
    "dead": ("dead",),
    "interrupted": ("interrupted",),
}
"""The places of jobs by the word that the query has for them."""

_KEY = re.compile(r"([A-Za-z_][\w.-]*):(?!:)(.+)", re.DOTALL)
"""A word with a key, such as ``user:42``; ``Chaos::SleepWorker`` is none."""
_OWN_KEYS = ("jid", "class", "queue", "error", "tag", "arg", "age", "status")
_RECORDS = b"records"
"""The place in a resume point behind all keys: the records of Sidekiq's processes."""

Arguments: TypeAlias = Callable[[JobRecord], Sequence[Any]]
"""Returns the arguments of a job that the caller may see: others match nothing."""


@dataclass(frozen=True, slots=True)
class JobQuery:
    """What a job must have: every word of the query."""

    words: tuple[str, ...] = ()
    """Texts without a key: in the id, class, queue, error, a tag, a fact of the context, or an argument."""
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Texts by their key, of ``jid class queue error tag arg``."""
    context: Mapping[str, str] = field(default_factory=dict[str, str])
    older_than_s: float = 0.0
    kinds: frozenset[StoreKind] = frozenset(get_args(StoreKind))

    def __bool__(self) -> bool:
        return self != JobQuery()

    @property
    def needle(self) -> bytes:
        """The longest text that each matching payload has as it is written: Redis filters by it. Empty for none."""
        texts = [*self.words, *self.context.values(), *(one for texts in self.parts.values() for one in texts)]
        return exact_needle(texts)

    def matches(self, job: JobRecord, since: float | None, now: float, arguments: Arguments) -> bool:
        """Return whether a job has every word."""
        if self.older_than_s and (since is None or now - since <= self.older_than_s):
            return False
        if any(job.fact(name) != value for name, value in self.context.items()):
            return False
        texts = _texts_of(job, arguments)
        if any(not any(text in one for one in texts[key]) for key, wanted in self.parts.items() for text in wanted):
            return False
        return all(any(word in one for found in texts.values() for one in found) for word in self.words)


def parse_query(text: str) -> JobQuery:
    """Return what the text of the search box asks for: ``class:Charge user:42 age:1h status:dead "a text"``.

    Raises:
        ValueError: a word is not allowed.
    """
    try:
        words = shlex.split(text)
    except ValueError:
        # A single quote within a text.
        words = text.split()
    plain: list[str] = []
    parts: dict[str, tuple[str, ...]] = {}
    context: dict[str, str] = {}
    older_than_s, kinds = 0.0, frozenset(get_args(StoreKind))
    for word in words:
        found = _KEY.fullmatch(word)
        key, value = found.groups() if found else ("", word)
        match key:
            case "":
                plain.append(word)
            case "age":
                older_than_s = parse_duration(value.lstrip(">"))
            case "status":
                if value not in STATUSES:
                    hint = did_you_mean(value, STATUSES)
                    raise ValueError(
                        Sentence(
                            "{value!r} is no status{hint}: there are {names}",
                            value=value,
                            hint=hint,
                            names=", ".join(STATUSES),
                        )
                    )
                kinds = frozenset(STATUSES[value])
            case "jid" | "class" | "queue" | "error" | "tag" | "arg":
                parts[key] = (*parts.get(key, ()), value)
            case _:
                context[key] = value
    return JobQuery(tuple(plain), parts, context, older_than_s, kinds)


class FoundJob(NamedTuple):
    """A job that matches, and its place."""

    job: JobRecord
    store: JobStore
    since: float | None


@dataclass(slots=True)
class ShardSearch:
    """What a search has found on one shard."""

    found: list[FoundJob] = field(default_factory=list[FoundJob])
    searched: float = 0.0
    """The jobs that were searched, about."""
    total: int = 0
    resume: tuple[str, int] | None = None
    """The key where to go on, and the position in it; ``None`` if all was searched."""


def search_shard(
    shard: Shard,
    query: JobQuery,
    arguments: Arguments,
    sizes: SizeLimitSettings,
    *,
    time_limit_s: float,
    most: int,
    resume: tuple[str, int] | None = None,
    into: ShardSearch | None = None,
    on_progress: OnProgress = ignore_progress,
) -> ShardSearch:
    """Search the places of a shard until the time or the number of jobs is reached, from ``resume`` on. Raises redis errors.

    ``into`` gets what is found, while the search goes on, too.

    A job that moves meanwhile may be missed, or found twice. Compressed and encrypted arguments are not searched.
    """
    found = ShardSearch() if into is None else into
    return _Search(shard, query, arguments, sizes, time.monotonic() + time_limit_s, most, found, on_progress).run(
        resume
    )


class _Search:
    def __init__(
        self,
        shard: Shard,
        query: JobQuery,
        arguments: Arguments,
        sizes: SizeLimitSettings,
        deadline: float,
        most: int,
        result: ShardSearch,
        on_progress: OnProgress,
    ) -> None:
        self._shard, self._client = shard.name, shard.client
        self._query, self._arguments, self._sizes = query, arguments, sizes
        self._deadline, self._most = deadline, most
        self._needle = query.needle
        self._now = server_time(shard.client)
        self._result, self._on_progress = result, on_progress

    def run(self, resume: tuple[str, int] | None) -> ShardSearch:
        stores = [one for one in list_job_stores(self._client) if one.kind in self._query.kinds]
        counts = _sizes_of(self._client, stores)
        self._result.total = sum(counts)
        first, position = self._begin(stores, resume)
        self._result.searched = float(sum(counts[:first]))
        at = first
        while at < len(stores):
            # Neighbours that are lists are searched in one call.
            last = at + 1
            while stores[at].is_list and last < len(stores) and stores[last].is_list:
                last += 1
            search = self._lists if stores[at].is_list else self._set
            stopped = search(stores[at:last], counts[at:last], position)
            if stopped is not None:
                self._result.resume = stopped
                return self._result
            at, position = last, 0
        if "running" in self._query.kinds:
            self._take(search_records(self._client, self._needle, ignore_progress))
        self._result.searched = float(self._result.total)
        return self._result

    @staticmethod
    def _begin(stores: Sequence[JobStore], resume: tuple[str, int] | None) -> tuple[int, int]:
        """Return the number of the store where to begin, and the position in it."""
        if resume is None:
            return 0, 0
        names = [decode_escaped(one.key) for one in stores]
        # A key that has gone since: begin again, rather than miss the keys behind it.
        return (names.index(resume[0]), resume[1]) if resume[0] in names else (0, 0)

    def _ends(self) -> bool:
        self._on_progress("", round(self._result.searched))
        return time.monotonic() >= self._deadline or len(self._result.found) >= self._most

    def _lists(self, stores: Sequence[JobStore], counts: Sequence[int], start: int) -> tuple[str, int] | None:
        before = self._result.searched
        for step in search_list_steps(self._client, stores, self._needle, ignore_progress, start):
            for one in step.found:
                self._note(FoundJob(self._record(one.data), one.store, None))
            self._result.searched = before + sum(counts[: step.done]) + step.start
            if step.done < len(stores) and self._ends():
                return decode_escaped(stores[step.done].key), step.start
        self._result.searched = before + sum(counts)
        return None

    def _set(self, stores: Sequence[JobStore], counts: Sequence[int], cursor: int) -> tuple[str, int] | None:
        (store,), (size,), before = stores, counts, self._result.searched
        for following, page in self._pages(store, cursor):
            for member, score in page:
                data = payload_of_member(member) if store.kind in HELD_KINDS else member
                self._note(FoundJob(self._record(data), store, clamp_time(score)))
            self._result.searched = before + size * share_of_cursor(following, size)
            if following and self._ends():
                return decode_escaped(store.key), following
        self._result.searched = before + size
        return None

    def _pages(self, store: JobStore, cursor: int) -> Iterator[tuple[int, ScanPage]]:
        scan = scan_packed_from if store.key in packed_held(self._client) else scan_from
        return scan(self._client, store.key, self._needle or None, cursor)

    def _take(self, found: Any) -> None:
        for one in found:
            self._note(FoundJob(self._record(one.data), one.store, None))

    def _record(self, data: bytes) -> JobRecord:
        return JobRecord(self._shard, data, self._sizes)

    def _note(self, one: FoundJob) -> None:
        since = _since(one)
        if self._query.matches(one.job, since, self._now, self._arguments):
            self._result.found.append(one._replace(since=since))


def _since(one: FoundJob) -> float | None:
    """Return since when the job is at its place, or for one that has not run, since it was pushed."""
    match one.store.kind:
        case "dead" | "interrupted" | "waiting" | "paused":
            return one.since
        case "retry":
            return one.job.retried_at or one.job.failed_at
        case "scheduled":
            return one.job.created_at
        case _:
            return one.job.enqueued_at


def _texts_of(job: JobRecord, arguments: Arguments) -> Mapping[str, Sequence[str]]:
    return {
        "jid": [job.jid],
        "class": [job.display_class, job.worker],
        "queue": [job.queue],
        "error": [job.error_class, job.error_message],
        "tag": job.tags,
        "arg": [one if isinstance(one, str) else str(one) for one in arguments(job)],
        "context": [str(one) for one in job.context.values()],
    }


def _sizes_of(client: "redis.Redis", stores: Sequence[JobStore]) -> list[int]:
    pipeline: Any = client.pipeline(transaction=False)
    for one in stores:
        pipeline.llen(one.key) if one.is_list else pipeline.zcard(one.key)
    return [one if isinstance(one, int) else 0 for one in pipeline.execute(raise_on_error=False)]
