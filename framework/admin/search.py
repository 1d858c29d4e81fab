"""Where a job is: every key of a shard that may hold it, gone through in bounded steps beside running processes."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import redis
from redis.exceptions import ResponseError

from framework.errors import PayloadError
from framework.process.parked import ParkedPlace
from framework.shard.leftovers import named_queues
from framework.store.script import SEARCH, is_wrong_type
from framework.types import Payload
from framework.wire import keys
from framework.wire.job import moment
from framework.wire.json import dumps, loads

Kind: TypeAlias = Literal[
    "scheduled", "retry", "queue", "waiting", "paused", "migrating", "in hand", "dead", "interrupted"
]
_Page: TypeAlias = list[tuple[bytes, float]]
Tell: TypeAlias = Callable[[str, int], None]
"""Hears, after every step, the key that is gone through and how many jobs have been looked at."""

PAGE = 1_000
STEP_JOBS, STEP_BYTES = 5_000, 1_000_000
"""So much of lists does one step read at most: some milliseconds of Redis's time."""

_TOGETHER = 1_000
"""So many keys does one step look at, at most."""

_LISTS = ("queue", "in hand", "migrating")
_GLOB = re.compile(rb"([*?\[\]\\^-])")
_QUEUE, _LIMIT, _PAUSED = keys.queue("").encode(), keys.limit("").encode(), keys.paused_jobs("").encode()
_WORKING = keys.working("").encode()
_WAITING = b":waiting:"


class Place(NamedTuple):
    """One key that holds jobs."""

    kind: Kind
    key: bytes

    @property
    def name(self) -> str:
        """Of what it holds jobs: a queue, an identity, a limit's base, a class; empty for a set of which there is one."""
        match self.kind:
            case "queue":
                return text(self.key.removeprefix(_QUEUE))
            case "paused":
                return text(self.key.removeprefix(_PAUSED))
            case "waiting":
                return text(self.key.removeprefix(_LIMIT).partition(_WAITING)[0])
            case "in hand":
                return keys.owner(text(self.key))
            case "migrating":
                return keys.migrated(keys.owner(text(self.key))) or ""
            case _:
                return ""

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
        on_the_way = places(client, told)[::turn]
        sightings = (one for group in _alike(on_the_way) for one in _look(client, group, wanted, told))
        # What cannot be read is reported; a job that has the id among its arguments is another.
        found = [one for one in sightings if one.payload.get("jid", jid) == jid]
        if found:
            return found
    return []


def places(client: "redis.Redis", told: Tell = lambda _key, _jobs: None) -> list[Place]:
    """Return every key that holds jobs, in the order of a job's way. Raises redis errors."""
    found = _holders(client, (_QUEUE, _LIMIT, _PAUSED, _WORKING), told)
    queues = found[_QUEUE].union(_QUEUE + name for name in named_queues(client))
    return [
        Place("scheduled", b"schedule"),
        Place("retry", b"retry"),
        *(Place("queue", key) for key in sorted(queues)),
        *_parked(found),
        *map(_working_place, sorted(found[_WORKING])),
        Place("dead", b"dead"),
        Place("interrupted", b"interrupted"),
    ]


def parked_places(client: "redis.Redis") -> list[Place]:
    """Return the keys of those jobs that wait behind a limit or a pause: found by name, so that no index can hide one."""
    return _parked(_holders(client, (_LIMIT, _PAUSED), lambda _key, _jobs: None, kind="zset"))


def payload_of(member: bytes) -> bytes:
    """Return the payload of a parked job: what comes after its ticket, a line of JSON."""
    return member.partition(b"\n")[2]


def members(client: "redis.Redis", key: bytes | str, needle: bytes | None = None) -> Iterator[_Page]:
    """Every member of a sorted set that stays in it meanwhile, in pages, with its score; those with ``needle`` in them alone.

    Redis does the picking: what is not wanted is not sent. A key of another type has no members. Raises redis errors.
    """
    try:
        first: Any = client.zscan(key, 0, match=_containing(needle), count=PAGE)
    except ResponseError as error:
        first = error
    yield from _rest(client, key, needle, first)


def _rest(client: "redis.Redis", key: bytes | str, needle: bytes | None, reply: Any) -> Iterator[_Page]:
    """The page in ``reply`` of ZSCAN, and those after it."""
    try:
        while True:
            if isinstance(reply, ResponseError):
                raise reply
            cursor, page = reply
            yield cast("_Page", page)
            if not cursor:
                return
            reply = client.zscan(key, cursor, match=_containing(needle), count=PAGE)
    except ResponseError as error:
        if not is_wrong_type(error):
            raise


def _containing(needle: bytes | None) -> bytes | None:
    return None if needle is None else b"*" + _GLOB.sub(rb"\\\1", needle) + b"*"


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


def _holders(
    client: "redis.Redis", prefixes: Sequence[bytes], told: Tell, kind: str | None = None
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
        told("the names of keys", 0)
        if not cursor:
            return found


def _parked(found: Mapping[bytes, set[bytes]]) -> list[Place]:
    waiting = (Place("waiting", key) for key in found[_LIMIT] if _WAITING in key)
    return sorted([*(Place("paused", key) for key in found[_PAUSED]), *waiting])


def _working_place(key: bytes) -> Place:
    return Place("in hand" if keys.migrated(keys.owner(text(key))) is None else "migrating", key)


def _alike(on_the_way: Sequence[Place]) -> Iterator[list[Place]]:
    """Yield the places in their order, those together that one step may look through: many lists, or many parked sets."""
    for _, group in groupby(on_the_way, lambda place: "list" if place.kind in _LISTS else place.kind):
        together = list(group)
        yield from (together[start : start + _TOGETHER] for start in range(0, len(together), _TOGETHER))


def _look(client: "redis.Redis", group: Sequence[Place], wanted: bytes, told: Tell) -> Iterator[Sighting]:
    return (_in_lists if group[0].kind in _LISTS else _in_sets)(client, group, wanted, told)


def _in_sets(client: "redis.Redis", group: Sequence[Place], wanted: bytes, told: Tell) -> Iterator[Sighting]:
    """The first page of every set in one round trip: most parked sets, one to a scope, have no more."""
    pipeline: Any = client.pipeline(transaction=False)
    for place in group:
        pipeline.zscan(place.key, 0, match=_containing(wanted), count=PAGE)
        pipeline.zcard(place.key)
    replies: list[Any] = pipeline.execute(raise_on_error=False)
    for place, reply, size in zip(group, replies[::2], replies[1::2], strict=True):
        left = size if isinstance(size, int) else 0
        for page in _rest(client, place.key, wanted, reply):
            told(text(place.key), min(left, PAGE))
            left = max(0, left - PAGE)
            yield from _ranked(client, place, page)


def _ranked(client: "redis.Redis", place: Place, page: _Page) -> Iterator[Sighting]:
    for member, score in page:
        pipeline: Any = client.pipeline()
        pipeline.zrank(place.key, member)
        pipeline.zcard(place.key)
        rank, size = pipeline.execute()
        if rank is not None:
            data = payload_of(member) if place.kind in ("waiting", "paused") else member
            yield Sighting(place, data, rank + 1, size, moment(score))


def _in_lists(client: "redis.Redis", group: Sequence[Place], wanted: bytes, told: Tell) -> Iterator[Sighting]:
    """From the left end: what is pushed meanwhile moves jobs into the next page, and none past it.

    Redis does the picking here too, in steps of a few milliseconds each, however many lists and bytes there are.
    """
    done, start = 0, 0
    while done < len(group):
        left = group[done:]
        reply: Any = SEARCH(client, [place.key for place in left], [wanted, start, STEP_BYTES, STEP_JOBS])
        finished, start, looked = reply[:3]
        hits: list[tuple[int, int, int, bytes]] = reply[3:]
        told(text(left[max(0, finished - 1)].key), looked)
        for number, index, length, data in hits:
            yield Sighting(left[number - 1], data, max(1, length - index), length)
        done += finished
