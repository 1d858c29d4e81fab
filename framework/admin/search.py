"""Where a job is: every key of a shard that may hold it, gone through in bounded steps beside running processes."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import redis
from redis.exceptions import ResponseError

from framework.errors import PayloadError
from framework.process.parked import ParkedPlace
from framework.shard.leftovers import queue_names
from framework.types import Payload
from framework.wire import keys
from framework.wire.job import moment
from framework.wire.json import dumps, loads

Kind: TypeAlias = Literal[
    "scheduled", "retry", "queue", "waiting", "paused", "migrating", "in hand", "dead", "interrupted"
]
Tell: TypeAlias = Callable[[str, int], None]
"""Hears, after every step, the key that is gone through and how many jobs have been looked at."""

PAGE = 1_000
PAGE_BYTES = 4_000_000
"""So much of a list does one command ask for at most, reckoned from the page before."""

_FIRST_PAGE = 50
_GLOB = re.compile(rb"([*?\[\]\\^-])")
_QUEUE, _LIMIT, _PAUSED = keys.queue("").encode(), keys.limit("").encode(), keys.paused_jobs("").encode()
_WAITING = b":waiting:"


class Place(NamedTuple):
    """One key that holds jobs. ``name`` says of what: a queue, an identity, a limit's base, a class."""

    kind: Kind
    key: bytes
    name: str

    def parked(self) -> ParkedPlace:
        """Return it as one of those with parked jobs."""
        return ParkedPlace("paused" if self.kind == "paused" else "waiting", self.name, self.key)


@dataclass(frozen=True, slots=True)
class Sighting:
    """A job, and where it was seen: ``position`` 1 is the next to leave, ``score`` is its place's (due, or since when)."""

    place: Place
    data: bytes
    position: int
    of: int
    score: float | None = None

    @property
    def payload(self) -> Payload:
        """The job, as far as it can be read."""
        return read_object(self.data)


def search(client: "redis.Redis", jid: str, tell: Tell) -> list[Sighting]:
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
        tell(key, looked)

    for turn in (1, -1):
        found = [sighting for place in places(client)[::turn] for sighting in _look(client, place, wanted, jid, told)]
        if found:
            return found
    return []


def places(client: "redis.Redis") -> list[Place]:
    """Return every key that holds jobs, in the order of a job's way. Raises redis errors."""
    found = [Place("scheduled", b"schedule", ""), Place("retry", b"retry", "")]
    found += [Place("queue", _QUEUE + name, text(name)) for name in queue_names(client)]
    found += parked_places(client)
    for key in sorted(_scan(client, keys.WORKING_LISTS.encode(), "list")):
        owner = keys.owner(text(key))
        migrated = keys.migrated(owner)
        found.append(Place("in hand", key, owner) if migrated is None else Place("migrating", key, migrated))
    return [*found, Place("dead", b"dead", ""), Place("interrupted", b"interrupted", "")]


def parked_places(client: "redis.Redis") -> list[Place]:
    """Return the keys of those jobs that wait behind a limit or a pause: found by name, so that no index can hide one."""
    found = [Place("paused", key, text(key.removeprefix(_PAUSED))) for key in _scan(client, _PAUSED + b"*", "zset")]
    for key in _scan(client, _LIMIT + b"*" + _WAITING + b"*", "zset"):
        base, _, _ = key.removeprefix(_LIMIT).partition(_WAITING)
        found.append(Place("waiting", key, text(base)))
    return sorted(found)


def payload_of(member: bytes) -> bytes:
    """Return the payload of a parked job: what comes after its ticket, a line of JSON."""
    return member.partition(b"\n")[2]


def members(
    client: "redis.Redis", key: bytes | str, needle: bytes | None = None
) -> Iterator[list[tuple[bytes, float]]]:
    """Every member of a sorted set that stays in it meanwhile, in pages, with its score; those with ``needle`` in them alone.

    Redis does the picking: what is not wanted is not sent. A key of another type has no members. Raises redis errors.
    """
    match = None if needle is None else b"*" + _GLOB.sub(rb"\\\1", needle) + b"*"
    cursor = 0
    try:
        while True:
            reply: Any = client.zscan(key, cursor, match=match, count=PAGE)
            cursor, page = reply
            yield cast("list[tuple[bytes, float]]", page)
            if not cursor:
                return
    except ResponseError as error:
        if "WRONGTYPE" not in str(error):
            raise


def text(name: bytes) -> str:
    """Return a name as it is shown: nobody says that what others wrote is text."""
    return name.decode(errors="backslashreplace")


def read_object(data: bytes) -> Payload:
    """Return the JSON object in ``data``, empty when it holds none."""
    try:
        found = loads(data)
    except PayloadError:
        return {}
    return cast("Payload", found) if isinstance(found, dict) else {}


def _look(client: "redis.Redis", place: Place, wanted: bytes, jid: str, told: Tell) -> list[Sighting]:
    look = _in_list if place.kind in ("queue", "in hand", "migrating") else _in_set
    # What cannot be read is told of; a job that has the id among its arguments is another.
    return [one for one in look(client, place, wanted, told) if one.payload.get("jid", jid) == jid]


def _in_set(client: "redis.Redis", place: Place, wanted: bytes, told: Tell) -> Iterator[Sighting]:
    parked = place.kind in ("waiting", "paused")
    for page in members(client, place.key, wanted):
        told(text(place.key), PAGE)
        for member, score in page:
            pipeline: Any = client.pipeline()
            pipeline.zrank(place.key, member)
            pipeline.zcard(place.key)
            rank, size = pipeline.execute()
            if rank is not None:
                yield Sighting(place, payload_of(member) if parked else member, rank + 1, size, moment(score))


def _in_list(client: "redis.Redis", place: Place, wanted: bytes, told: Tell) -> Iterator[Sighting]:
    """From the left end: what is pushed meanwhile moves jobs into the next page, and none past it."""
    start, size = 0, _FIRST_PAGE
    while page_and_length := _page(client, place.key, start, size):
        page, length = page_and_length
        told(text(place.key), len(page))
        for index, data in enumerate(page, start):
            if wanted in data:
                yield Sighting(place, data, max(1, length - index), length)
        start += len(page)
        size = max(1, min(PAGE, PAGE_BYTES * len(page) // (sum(map(len, page)) or 1)))


def _page(client: "redis.Redis", key: bytes, start: int, size: int) -> tuple[Sequence[bytes], int] | None:
    pipeline: Any = client.pipeline()  # a transaction: the position is that of the moment
    pipeline.lrange(key, start, start + size - 1)
    pipeline.llen(key)
    page, length = pipeline.execute(raise_on_error=False)
    if isinstance(page, ResponseError) and "WRONGTYPE" not in str(page):
        raise page
    return (page, length) if page and not isinstance(page, ResponseError) else None


def _scan(client: "redis.Redis", pattern: bytes, kind: str) -> list[bytes]:
    found = cast("Iterator[bytes]", client.scan_iter(match=pattern, count=PAGE, _type=kind))
    return sorted(set(found))
