"""Count the jobs of a place by class, queue, error, tag or a field of their context: all of them, or a sample with bounds.

A place with many jobs is sampled by default: each shard draws jobs at random, with repetition, which costs Redis a fraction of a
second however long the place is. The bounds are those of Wilson's score interval (E. B. Wilson, 1927). Those of several shards are
added as independent errors. Of 100 such intervals 95 contain the true number.
"""

import math
import random
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Unpack, cast

import redis

from framework.admin import port
from framework.admin.access import run_on_each
from framework.admin.entries import SET_KEYS, JobSetKind
from framework.admin.held_jobs import held_keys
from framework.admin.held_set import HeldRecord
from framework.admin.job_record import JobCriteria, JobFilter, JobRecord, job_filter
from framework.admin.pages import ranked_pages
from framework.admin.process_list import read_work
from framework.admin.queue_reader import scan_queue, sub_queues
from framework.admin.search import HELD_KINDS, JobStore
from framework.admin.shard_job_set import SetRecord
from framework.admin.statistics import OnProgress, ignore_progress, named_queues, reply_number
from framework.async_twin import async_twin
from framework.errors import ShardUnavailableError
from framework.fetch.blocks import expand, packed_jobs, true_size
from framework.fetch.held_blocks import expand_member, expand_members, has_only_blocks, packed_held
from framework.settings.model import CoreSettings
from framework.shard.shard import Shard
from framework.store.connect import server_time
from framework.text import decode_escaped
from framework.typeguards import short_repr
from framework.wire import keys
from framework.wire.blocks import stored_id

QUEUE_PLACE = "queue:"
"""The prefix of a place that is one queue; its name follows."""
QUEUES, HELD, RUNNING = "queues", "held", "running"
PLACES = (*SET_KEYS, HELD, QUEUES, RUNNING)
GROUPINGS = ("class", "queue", "error", "tag")
ERROR_AND_CLASS = "error and class"
"""The grouping of ``error_groups``: the name of a group has both, see ``split_error_and_class``."""
CONTEXT = "context:"
"""The prefix of a grouping by a field of the context; its name follows."""

SAMPLED_ABOVE = 10_000
"""The number of jobs of a place on one shard above which it is sampled."""
_SAMPLE = 5_000
# A job at a random index of a list costs Redis up to a millisecond for each million of jobs: such a sample ends by its time.
_LIST_SAMPLE, _LIST_SAMPLE_S = 2_000, 0.5
_ROUND, _LIST_ROUND = 500, 50
"""The jobs of one round trip of a sample."""
_PAGE = 500
_MOST_NAMES = 20_000
"""The most groups that are counted apart."""
_LONGEST_NAME = 200
_Z = 1.959964
"""The quantile of the normal distribution for bounds of 95 %."""

NO_NAME = "(none)"
OTHERS = "(others)"

_UUID = r"\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b"
_HEX = r"\b(?:0x[0-9a-fA-F]+|(?=[a-fA-F]*[0-9])[0-9a-fA-F]{8,})\b"
_WORD = r"\b(?=[A-Za-z_-]*[0-9])[A-Za-z0-9_-]{20,}\b"
_VARIABLE = re.compile(rf"(?P<id>{_UUID}|{_HEX}|{_WORD})|[0-9]+(?:[.,:][0-9]+)*")


class JobGroup(NamedTuple):
    """The jobs of one group: their number, or its estimate with the bounds that contain it in 95 of 100 samples."""

    name: str
    jobs: int
    low: int
    high: int
    example: str
    """The id of one of its jobs; empty if none has one."""


@dataclass(frozen=True, slots=True)
class JobGroups:
    """The groups of a place, the largest first."""

    place: str
    by: str
    groups: Sequence[JobGroup]
    total: int
    """The jobs of the place, those that a filter leaves out too."""
    examined: int
    """The jobs that were read: fewer than ``total`` for an estimate."""
    is_estimate: bool
    further: int
    """The number of groups that are left out."""
    unseen_at_most: int
    """The most jobs of a group of which no job was read, by the bounds; 0 when all jobs were read."""
    short_by: int = 0
    """By how many jobs a group may have been counted too small: above 0 when there were too many groups to count each."""
    unanswered: Mapping[str, ShardUnavailableError] = field(default_factory=dict[str, ShardUnavailableError])


def check_grouping(by: str) -> str:
    """Return the grouping.

    Raises:
        ValueError: it is none.
    """
    if by in (*GROUPINGS, ERROR_AND_CLASS) or (by.startswith(CONTEXT) and by != CONTEXT):
        return by
    raise ValueError(
        f"by={short_repr(by)} is no grouping: there are {', '.join(GROUPINGS)} and {CONTEXT}NAME, such as context:user"
    )


def general_message(message: str) -> str:
    """Return the first line of an error's message with ``ID`` and ``N`` in place of what differs from job to job."""
    line = message.partition("\n")[0][:_LONGEST_NAME]
    return _VARIABLE.sub(lambda found: "ID" if found["id"] else "N", line)


def split_error_and_class(name: str) -> tuple[str, str]:
    """Return the error and the class that the name of a group has, grouped by both."""
    error, _, cls = name.partition("\n")
    return error, cls


def error_name(record: JobRecord) -> str:
    """Return the name of the group of a job's last error: its class, and its message without numbers and ids."""
    parts = (record.error_class, general_message(record.error_message))
    return ": ".join(filter(None, parts)).replace("\n", " ") or NO_NAME


class _Tally:
    """The jobs of one shard by group, in bounded memory."""

    def __init__(self) -> None:
        self.counts = Counter[str]()
        self.examples: dict[str, str] = {}
        self.examined = 0
        self.total = 0
        self.others = 0
        self.short_by = 0

    @property
    def is_whole(self) -> bool:
        """Whether every job was read."""
        return self.examined >= self.total

    def add(self, names: Iterable[str], jid: str) -> None:
        for name in names:
            self.counts[name] += 1
            self.examples.setdefault(name, jid)
        if len(self.counts) > _MOST_NAMES:
            self._merge_small()

    def _merge_small(self) -> None:
        """Leave out the smaller half of the groups; one that appears again is counted from zero on."""
        ordered = self.counts.most_common()
        kept, left = ordered[: _MOST_NAMES // 2], ordered[_MOST_NAMES // 2 :]
        self.short_by += left[0][1]
        self.others += sum(count for _, count in left)
        self.counts = Counter(dict(kept))
        self.examples = {name: self.examples[name] for name, _ in kept}

    def interval(self, count: int) -> tuple[float, float]:
        """Return the centre of the bounds of a group with so many jobs of those that were read, and their distance from it."""
        n, all_jobs = self.examined, self.total
        if self.is_whole or n == 0:
            return float(count), 0.0
        share, spread = count / n, _Z * _Z / n
        half = _Z * math.sqrt(share * (1 - share) / n + spread / (4 * n))
        return all_jobs * (share + spread / 2) / (1 + spread), all_jobs * half / (1 + spread)

    def estimate(self, count: int) -> float:
        return count if self.is_whole or self.examined == 0 else self.total * count / self.examined


class GroupCount:
    """One count of a place by group: ``read`` each shard, then take the ``result``."""

    def __init__(
        self, place: str, by: str, wanted: JobFilter, settings: CoreSettings, *, exact: bool, sample: int | None = None
    ) -> None:
        """Count a place. ``sample``: read about so many jobs of a set that has more, for a page that is read every few seconds."""
        self._place = place
        self._by = check_grouping(by)
        self._wanted = wanted
        self._settings = settings
        self._exact = exact
        self._sample = sample
        self._tallies: list[_Tally] = []

    def read(self, shard: Shard, on_progress: OnProgress = ignore_progress) -> None:
        """Count the jobs of one shard. Raises redis errors; nothing of the shard is counted then."""
        tally, now, selects = _Tally(), server_time(shard.client), bool(self._wanted)
        for record, since in self._records(shard, tally):
            tally.examined += 1
            if tally.examined % _PAGE == 0:
                on_progress(self._place, tally.examined)
            if not selects or self._wanted.matches(record, since, now):
                tally.add(self._names_of(record), record.jid)
        if self._reads_all(tally.total):
            # Jobs come and go during the reading.
            tally.total = tally.examined
        self._tallies.append(tally)

    def result(self, limit: int, unanswered: Mapping[str, ShardUnavailableError] | None = None) -> JobGroups:
        """Return the largest groups of all shards that were read."""
        tallies = self._tallies
        names = {name for tally in tallies for name in tally.counts}
        groups = sorted(map(self._group, names), key=lambda one: (-one.jobs, one.name))
        others = sum(round(tally.estimate(tally.others)) for tally in tallies)
        if others:
            groups.append(JobGroup(OTHERS, others, others, others, ""))
        unseen = self._bounds([tally.interval(0) for tally in tallies])[1]
        return JobGroups(
            self._place,
            self._by,
            groups[:limit],
            sum(tally.total for tally in tallies),
            sum(tally.examined for tally in tallies),
            not all(tally.is_whole for tally in tallies),
            max(0, len(groups) - limit),
            round(unseen),
            sum(tally.short_by for tally in tallies),
            unanswered or {},
        )

    def _group(self, name: str) -> JobGroup:
        tallies = self._tallies
        seen = sum(tally.counts[name] for tally in tallies)
        low, high = self._bounds([tally.interval(tally.counts[name]) for tally in tallies])
        jobs = round(sum(tally.estimate(tally.counts[name]) for tally in tallies))
        example = next((tally.examples[name] for tally in tallies if tally.examples.get(name)), "")
        return JobGroup(name, jobs, max(seen, math.floor(low)), math.ceil(high), example)

    @staticmethod
    def _bounds(intervals: Sequence[tuple[float, float]]) -> tuple[float, float]:
        centre = sum(one for one, _ in intervals)
        half = math.sqrt(sum(one * one for _, one in intervals))
        return centre - half, centre + half

    def _reads_all(self, jobs: int) -> bool:
        return self._exact or self._place == RUNNING or jobs <= (self._sample or SAMPLED_ABOVE)

    def _names_of(self, record: JobRecord) -> Iterable[str]:
        match self._by:
            case "class":
                return (record.display_class or "(malformed)",)
            case "queue":
                return (record.queue or NO_NAME,)
            case "error":
                return (error_name(record),)
            case "error and class":
                return (f"{error_name(record)}\n{record.display_class or '(malformed)'}",)
            case "tag":
                return dict.fromkeys(record.tags) or (NO_NAME,)
            case _:
                value = record.fact(self._by.removeprefix(CONTEXT))
                return (NO_NAME if value is None else value[:_LONGEST_NAME],)

    def _records(self, shard: Shard, tally: _Tally) -> Iterator[tuple[JobRecord, float | None]]:
        """Yield the jobs of the place, or a sample, each with the time since when it is there."""
        if self._place == RUNNING:
            for running in read_work(shard, self._settings.size_limit):
                yield running.job, running.since
            return
        stores = self._stores(shard.client)
        tally.total = sum(jobs for _, jobs in stores)
        whole = self._reads_all(tally.total)
        if not whole:
            members = _draw(shard.client, stores, self._sample)
        elif self._sample is None:
            members = read_all(shard.client, stores)
        else:
            members = _read_small(shard.client, stores, self._sample)
        for store, data, score in members:
            yield self._record(shard, store, data, score)

    def _stores(self, client: "redis.Redis") -> list[tuple[JobStore, int]]:
        """Return the keys of the place with their numbers of jobs."""
        if self._place in SET_KEYS:
            kind = cast("JobSetKind", self._place)
            found = [JobStore(kind, SET_KEYS[kind].encode())]
            # A place of deferred jobs that Ruby does not see.
            found += [JobStore(kind, keys.DEFERRED_PACKED.encode())] if kind == "scheduled" else []
            return sized_stores(client, found)
        if self._place == HELD:
            return sized_stores(client, [JobStore(one.kind, one.key) for one in held_keys(client)])
        if self._place == QUEUES:
            names = sorted(map(decode_escaped, named_queues(client)))
        else:
            queue = self._place.removeprefix(QUEUE_PLACE)
            names = [queue, *sub_queues(client, queue)]
        return sized_stores(client, [JobStore("queue", keys.queue(name).encode()) for name in names])

    def _record(self, shard: Shard, store: JobStore, data: bytes, score: float) -> tuple[JobRecord, float | None]:
        match store.kind:
            case "queue":
                queued = JobRecord(shard.name, data, self._settings.size_limit)
                return queued, queued.enqueued_at
            case "waiting" | "paused":
                held = HeldRecord(shard.name, store, data, score, self._settings.size_limit)
                return held, held.since
            case _:
                one = SetRecord(shard.name, cast("JobSetKind", store.kind), data, score, self._settings)
                return one, one.since


def sized_stores(client: "redis.Redis", stores: Sequence[JobStore]) -> list[tuple[JobStore, int]]:
    """Return the keys that have jobs, with their numbers. Raises redis errors."""
    pipeline: Any = client.pipeline(transaction=False)
    for store in stores:
        (pipeline.llen if store.is_list else pipeline.zcard)(store.key)
    replies: list[Any] = pipeline.execute(raise_on_error=False)
    packed: Mapping[str, int] = packed_jobs(client) if any(store.kind == "queue" for store in stores) else {}
    filled = [(store, jobs) for store, jobs in zip(stores, map(reply_number, replies), strict=True) if jobs]
    beyond: Mapping[bytes, int] = packed_held(client) if any(_may_have_blocks(store) for store, _ in filled) else {}
    return [
        (store, true_size(jobs, store.name, packed) if store.kind == "queue" else jobs + beyond.get(store.key, 0))
        for store, jobs in filled
    ]


def _may_have_blocks(store: JobStore) -> bool:
    return store.kind in HELD_KINDS or has_only_blocks(store.key)


_Member = tuple[JobStore, bytes, float]

_BLOCKS_DRAWN = 10
"""The most blocks of deferred jobs, or of the payload store, that one round reads of a key."""


def read_all(client: "redis.Redis", stores: Sequence[tuple[JobStore, int]]) -> Iterator[_Member]:
    """Yield every entry of these keys, each with its key and score. Raises redis errors."""
    for store, _ in stores:
        if store.kind == "queue":
            for data in scan_queue(client, store.name):
                yield store, data, 0.0
        elif store.is_list:
            # What a process has in flight: one page.
            page: Any = client.lrange(store.key, 0, -1)
            yield from ((store, data, 0.0) for data in page)
        else:
            for members in ranked_pages(client, store.key):
                for member, score in members:
                    yield store, member, score


def _read_small(client: "redis.Redis", stores: Sequence[tuple[JobStore, int]], most: int) -> Iterator[_Member]:
    """Yield every job of sets with so few, one command for each, of one moment. Raises redis errors."""
    for store, _ in stores:
        reply: Any = client.zrange(cast("str", store.key), 0, most, withscores=True)
        for inside in expand_members(client, store.key, list(_pairs(reply))):
            yield from ((store, one.data, one.score) for one in inside)


def _draw(
    client: "redis.Redis", stores: Sequence[tuple[JobStore, int]], sample: int | None = None
) -> Iterator[_Member]:
    """Yield jobs at random, with repetition; each job of these keys is as likely as any other."""
    is_list = any(store.is_list for store, _ in stores)
    wanted, size, read = (_LIST_SAMPLE, _LIST_ROUND, draw_indexes) if is_list else (_SAMPLE, _ROUND, draw_members)
    weights = [jobs for _, jobs in stores]
    end = time.monotonic() + _LIST_SAMPLE_S
    size = min(size, sample or wanted)
    for _ in range((sample or wanted) // size):
        counts = Counter(random.choices(range(len(stores)), weights, k=size))
        yield from read(client, [(*stores[at], count) for at, count in counts.items()])
        if is_list and time.monotonic() >= end:
            return


def draw_members(client: "redis.Redis", wanted: Sequence[tuple[JobStore, int, int]]) -> Iterator[_Member]:
    """Yield members of sets at random, for each set (with its size) so many, in one round trip. Raises redis errors."""
    pipeline: Any = client.pipeline(transaction=False)
    for store, _, count in wanted:
        # A negative count draws with repetition.
        pipeline.zrandmember(store.key, -count, withscores=True)
    drawn = _DrawnBlocks()
    for (store, _, count), reply in zip(wanted, pipeline.execute(), strict=True):
        if has_only_blocks(store.key):
            blocks = expand_members(client, store.key, list(_pairs(reply))[:_BLOCKS_DRAWN])
            jobs = [one for inside in blocks for one in inside]
            yield from ((store, one.data, one.score) for one in random.choices(jobs, k=count if jobs else 0))
            continue
        for member, score in _pairs(reply):
            # All jobs of a block: each is as likely as one that is in none.
            for one in expand_member(client, drawn.take(store, member), score):
                yield store, one.data, one.score


class _DrawnBlocks:
    """Let few blocks of the payload store stand for all that were drawn of a key: each is read from there."""

    def __init__(self) -> None:
        self._taken = defaultdict[JobStore, list[bytes]](list)

    def take(self, store: JobStore, element: bytes) -> bytes:
        """Return the element, or one that was taken before it."""
        if stored_id(element) is None:
            return element
        taken = self._taken[store]
        if len(taken) < _BLOCKS_DRAWN:
            taken.append(element)
            return element
        return random.choice(taken)


def _pairs(reply: Sequence[Any]) -> Iterator[tuple[bytes, float]]:
    """Yield members with scores: RESP3 sends pairs, RESP2 a flat list."""
    if reply and isinstance(reply[0], bytes):
        steps = iter(reply)
        return ((member, float(score)) for member, score in zip(steps, steps, strict=True))
    return ((member, float(score)) for member, score in reply)


def draw_indexes(client: "redis.Redis", wanted: Sequence[tuple[JobStore, int, int]]) -> Iterator[_Member]:
    """Yield entries of lists at random. As ``draw_members``."""
    pipeline: Any = client.pipeline(transaction=False)
    for store, _, _ in wanted:
        pipeline.llen(store.key)
    lengths: list[int] = pipeline.execute()
    drawn = [store for (store, _, count), length in zip(wanted, lengths, strict=True) if length for _ in range(count)]
    for (store, _, count), length in zip(wanted, lengths, strict=True):
        for _ in range(count if length else 0):
            pipeline.lindex(store.key, random.randrange(length))
    few = _DrawnBlocks()
    for store, element in zip(drawn, pipeline.execute(), strict=True):
        # The list has become shorter meanwhile. All jobs of a block: each is as likely as one that is in none.
        for data in expand(client, few.take(store, element)) if element is not None else ():
            yield store, data, 0.0


def top(
    place: str,
    by: str = "class",
    *,
    limit: int = 10,
    exact: bool = False,
    shard: str | None = None,
    **criteria: Unpack[JobCriteria],
) -> JobGroups:
    """Return the largest groups of the jobs of a place: ``scheduled``, ``retry``, ``dead``, ``interrupted``, ``held``, ``queues``,
    ``queue:NAME`` or ``running``.

    ``by`` is ``class``, ``queue``, ``error``, ``tag`` or ``context:NAME``. Errors are grouped by their class, and by their message
    without numbers and ids. More than 10,000 jobs of a shard are sampled, unless ``exact``; ``JobCriteria`` explains the criteria.

    Raises:
        ValueError: there is no such place or grouping, or a criterion is wrong.
        ShardUnavailableError: no shard answers.
        UnknownShardError: the configuration has no such shard.
    """
    if place not in PLACES and not (place.startswith(QUEUE_PLACE) and place != QUEUE_PLACE):
        raise ValueError(f"top({short_repr(place)}): there are {', '.join(PLACES)} and {QUEUE_PLACE}NAME")
    return count_groups(place, by, job_filter(**criteria), limit, exact=exact, shard=shard)


atop = async_twin(top)


def count_groups(
    place: str,
    by: str,
    wanted: JobFilter,
    limit: int,
    *,
    exact: bool = False,
    shard: str | None = None,
    sample: int | None = None,
) -> JobGroups:
    """Return the largest groups of the matching jobs of a place. ``sample`` is that of ``GroupCount``. Raises as ``top``."""
    count = GroupCount(place, by, wanted, port.current().settings, exact=exact, sample=sample)
    answers = run_on_each(shard, count.read)
    if not answers.by_shard:
        raise next(iter(answers.unanswered.values()))
    return count.result(limit, answers.unanswered)
