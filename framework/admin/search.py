"""Where a job is: every key of a shard that may hold it, gone through in bounded steps beside running processes."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import redis
from redis.exceptions import ResponseError

from framework.admin.job_counts import named_queues
from framework.errors import PayloadError
from framework.process.held_jobs import HeldJobsKey
from framework.store.script import SEARCH, is_wrong_type
from framework.types import Payload
from framework.wire import keys
from framework.wire.job import clamp_time
from framework.wire.json import dumps, loads

StoreKind: TypeAlias = Literal[
    "scheduled", "retry", "queue", "waiting", "paused", "migrating", "in flight", "dead", "interrupted"
]
_Page: TypeAlias = list[tuple[bytes, float]]
OnProgress: TypeAlias = Callable[[str, int], None]
"""Hears, after every step, the key that is gone through and how many jobs have been looked at."""

PAGE = 1_000
STEP_JOBS, STEP_BYTES = 5_000, 1_000_000
"""So much of lists does one step read at most: some milliseconds of Redis's time."""

_KEYS_PER_STEP = 1_000
"""So many keys does one step look at, at most."""

_LISTS = ("queue", "in flight", "migrating")
_GLOB = re.compile(rb"([*?\[\]\\^-])")
_QUEUE, _LIMIT, _PAUSED = keys.queue("").encode(), keys.limit("").encode(), keys.paused_jobs("").encode()
_WORKING = keys.working("").encode()
_WAITING = b":waiting:"


class JobStore(NamedTuple):
    """One key that holds jobs."""

    kind: StoreKind
    key: bytes

    @property
    def name(self) -> str:
        """Of what it holds jobs: a queue, an identity, a limit's base, a class; empty for a set of which there is one."""
        match self.kind:
            case "queue":
                return display_name(self.key.removeprefix(_QUEUE))
            case "paused":
                return display_name(self.key.removeprefix(_PAUSED))
            case "waiting":
                return display_name(self.key.removeprefix(_LIMIT).partition(_WAITING)[0])
            case "in flight":
                return keys.owner(display_name(self.key))
            case "migrating":
                return keys.migrated_queue(keys.owner(display_name(self.key))) or ""
            case _:
                return ""

    def as_held_jobs(self) -> HeldJobsKey:
        """Return it as one of those with parked jobs."""
        return HeldJobsKey("paused" if self.kind == "paused" else "waiting", self.name, self.key)


@dataclass(frozen=True, slots=True)
class JobLocation:
    """A job, and where it was seen: ``position`` 1 is the next to leave, ``score`` is its place's (due, or since when)."""

    store: JobStore
    data: bytes
    position: int
    total: int
    score: float | None = None

    @property
    def payload(self) -> Payload:
        """The job, as far as it can be read."""
        return parse_object(self.data)


def search(client: "redis.Redis", jid: str, on_progress: OnProgress) -> list[JobLocation]:
    """Return everywhere that the job is. Raises redis errors.

    What moves from a place that has not been looked at to one that has would be missed: places are gone through in the order
    of a job's way, and once more against it when nothing was found. Several sightings of one job are no rarity: a job that
    was taken back from a dead process may be in a queue and in the hands of who was thought dead.
    """
    wanted = dumps(jid)[1:-1]
    looked = 0

    def told(key: str, jobs: int) -> None:
        nonlocal looked
        looked += jobs
        on_progress(key, looked)

    for turn in (1, -1):
        on_the_way = list_job_stores(client, told)[::turn]
        sightings = (one for group in _batches(on_the_way) for one in _search_batch(client, group, wanted, told))
        # What cannot be read is reported; a job that has the id among its arguments is another.
        found = [one for one in sightings if one.payload.get("jid", jid) == jid]
        if found:
            return found
    return []


def list_job_stores(client: "redis.Redis", on_progress: OnProgress = lambda _key, _jobs: None) -> list[JobStore]:
    """Return every key that holds jobs, in the order of a job's way. Raises redis errors."""
    found = _keys_by_prefix(client, (_QUEUE, _LIMIT, _PAUSED, _WORKING), on_progress)
    queues = found[_QUEUE].union(_QUEUE + name for name in named_queues(client))
    return [
        JobStore("scheduled", b"schedule"),
        JobStore("retry", b"retry"),
        *(JobStore("queue", key) for key in sorted(queues)),
        *_held_stores(found),
        *map(_working_list_store, sorted(found[_WORKING])),
        JobStore("dead", b"dead"),
        JobStore("interrupted", b"interrupted"),
    ]


def list_held_stores(client: "redis.Redis") -> list[JobStore]:
    """Return the keys of those jobs that wait behind a limit or a pause: found by name, so that no index can hide one."""
    return _held_stores(_keys_by_prefix(client, (_LIMIT, _PAUSED), lambda _key, _jobs: None, kind="zset"))


def payload_of_member(member: bytes) -> bytes:
    """Return the payload of a parked job: what comes after its ticket, a line of JSON."""
    return member.partition(b"\n")[2]


def scan_members(client: "redis.Redis", key: bytes | str, needle: bytes | None = None) -> Iterator[_Page]:
    """Every member of a sorted set that stays in it meanwhile, in pages, with its score; those with ``needle`` in them alone.

    Redis does the picking: what is not wanted is not sent. A key of another type has no members. Raises redis errors.
    """
    try:
        first: Any = client.zscan(key, 0, match=_glob_containing(needle), count=PAGE)
    except ResponseError as error:
        first = error
    yield from _remaining_pages(client, key, needle, first)


def _remaining_pages(client: "redis.Redis", key: bytes | str, needle: bytes | None, reply: Any) -> Iterator[_Page]:
    """The page in ``reply`` of ZSCAN, and those after it."""
    try:
        while True:
            if isinstance(reply, ResponseError):
                raise reply
            cursor, page = reply
            yield cast("_Page", page)
            if not cursor:
                return
            reply = client.zscan(key, cursor, match=_glob_containing(needle), count=PAGE)
    except ResponseError as error:
        if not is_wrong_type(error):
            raise


def _glob_containing(needle: bytes | None) -> bytes | None:
    return None if needle is None else b"*" + _GLOB.sub(rb"\\\1", needle) + b"*"


def display_name(raw: bytes) -> str:
    """Return a name as it is shown: nobody says that what others wrote is text."""
    return raw.decode(errors="backslashreplace")


def parse_object(data: bytes) -> Payload:
    """Return the JSON object in ``data``, empty when it holds none."""
    try:
        found = loads(data)
    except PayloadError:
        return {}
    return cast("Payload", found) if isinstance(found, dict) else {}


def _keys_by_prefix(
    client: "redis.Redis", prefixes: Sequence[bytes], on_progress: OnProgress, kind: str | None = None
) -> Mapping[bytes, set[bytes]]:
    """Return the keys with each of the prefixes, found in one walk through the key space however many prefixes there are."""
    # One pattern for all of them: at each position, the characters that one of them has there. The rest is sorted out here.
    match = b"".join(b"[%b]" % bytes(sorted(set(column))) for column in zip(*prefixes, strict=False)) + b"*"
    found: dict[bytes, set[bytes]] = {prefix: set() for prefix in prefixes}
    cursor = 0
    while True:
        reply: Any = client.scan(cursor, match=match, count=PAGE, _type=kind)
        cursor, page = reply
        for prefix, names in found.items():
            names.update([key for key in page if key.startswith(prefix)])
        on_progress("the names of keys", 0)
        if not cursor:
            return found


def _held_stores(found: Mapping[bytes, set[bytes]]) -> list[JobStore]:
    waiting = (JobStore("waiting", key) for key in found[_LIMIT] if _WAITING in key)
    return sorted([*(JobStore("paused", key) for key in found[_PAUSED]), *waiting])


def _working_list_store(key: bytes) -> JobStore:
    return JobStore("in flight" if keys.migrated_queue(keys.owner(display_name(key))) is None else "migrating", key)


def _batches(on_the_way: Sequence[JobStore]) -> Iterator[list[JobStore]]:
    """Yield the places in their order, those together that one step may look through: many lists, or many parked sets."""
    for _, group in groupby(on_the_way, lambda place: "list" if place.kind in _LISTS else place.kind):
        together = list(group)
        yield from (together[start : start + _KEYS_PER_STEP] for start in range(0, len(together), _KEYS_PER_STEP))


def _search_batch(
    client: "redis.Redis", batch: Sequence[JobStore], wanted: bytes, on_progress: OnProgress
) -> Iterator[JobLocation]:
    return (_search_lists if batch[0].kind in _LISTS else _search_sets)(client, batch, wanted, on_progress)


def _search_sets(
    client: "redis.Redis", batch: Sequence[JobStore], wanted: bytes, on_progress: OnProgress
) -> Iterator[JobLocation]:
    """The first page of every set in one round trip: most parked sets, one to a scope, have no more."""
    pipeline: Any = client.pipeline(transaction=False)
    for place in batch:
        pipeline.zscan(place.key, 0, match=_glob_containing(wanted), count=PAGE)
        pipeline.zcard(place.key)
    replies: list[Any] = pipeline.execute(raise_on_error=False)
    for place, reply, size in zip(batch, replies[::2], replies[1::2], strict=True):
        left = size if isinstance(size, int) else 0
        for page in _remaining_pages(client, place.key, wanted, reply):
            on_progress(display_name(place.key), min(left, PAGE))
            left = max(0, left - PAGE)
            yield from _with_ranks(client, place, page)


def _with_ranks(client: "redis.Redis", store: JobStore, page: _Page) -> Iterator[JobLocation]:
    for member, score in page:
        pipeline: Any = client.pipeline()
        pipeline.zrank(store.key, member)
        pipeline.zcard(store.key)
        rank, size = pipeline.execute()
        if rank is not None:
            data = payload_of_member(member) if store.kind in ("waiting", "paused") else member
            yield JobLocation(store, data, rank + 1, size, clamp_time(score))


def _search_lists(
    client: "redis.Redis", batch: Sequence[JobStore], wanted: bytes, on_progress: OnProgress
) -> Iterator[JobLocation]:
    """From the left end: what is pushed meanwhile moves jobs into the next page, and none past it.

    Redis does the picking here too, in steps of a few milliseconds each, however many lists and bytes there are.
    """
    done, start = 0, 0
    while done < len(batch):
        left = batch[done:]
        reply: Any = SEARCH(client, [place.key for place in left], [wanted, start, STEP_BYTES, STEP_JOBS])
        finished, start, looked = reply[:3]
        hits: list[tuple[int, int, int, bytes]] = reply[3:]
        on_progress(display_name(left[max(0, finished - 1)].key), looked)
        for number, index, length, data in hits:
            yield JobLocation(left[number - 1], data, max(1, length - index), length)
        done += finished
