"""Measure the memory of a shard by class and place, from lengths and samples: its cost is bounded, however many jobs wait.

Jobs are counted exactly by key, and their classes and sizes are drawn at random. Keys of one job each (locks, states, results) are
counted with a scan, or where there are many from keys drawn at random. Redis measures some of them (``MEMORY USAGE``), from which the
cost of the others follows. No command reads more than some hundred entries, so none holds Redis for long.
"""

import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias, cast

import redis
from redis.exceptions import ResponseError

from framework.admin.groups import draw_indexes, draw_members, read_all, sized_stores
from framework.admin.held_jobs import held_keys
from framework.admin.job_record import JobRecord
from framework.admin.search import JobStore, payload_of_member
from framework.admin.statistics import OnProgress, ignore_progress, named_queues
from framework.errors import StoredBlocksError
from framework.feature import features
from framework.fetch.held_blocks import has_only_blocks, packed_held
from framework.settings.model import SizeLimitSettings
from framework.shard.memory_report import NO_CLASS, OTHER, MemoryPart, ShardMemory
from framework.text import decode_escaped
from framework.wire import keys
from framework.wire.job import DEFERRED

_SETS = {"scheduled": keys.SCHEDULE, "retry": keys.RETRY, "dead": keys.DEAD, "interrupted": keys.INTERRUPTED}
_WINDOWS = "windows"
_HELD = ("waiting", "paused")
_QUEUE = keys.queue("").encode()

_READ_WHOLE = 1_000
"""The jobs of the keys of a place that are read whole."""
_DRAWN_ENTRIES, _LEAST_DRAWN, _DRAWN_WITHIN_S = 5_000, 50, 0.5
"""The jobs that are drawn of a place, those of each key at least, and for how long jobs are drawn from lists."""
_ROUND, _LIST_ROUND, _FIRST_ROUND = 500, 50, 20
"""The jobs of one round trip: a job of a list costs Redis up to a millisecond for each million. Of the first ones, while blocks are
among them, so that few are drawn behind ``_READ_DRAWN``."""
_READ_DRAWN = 20_000
"""The jobs of a place after which no more are drawn: each block that is drawn has hundreds, and each job has to be parsed."""
_SCANNED_KEYS = 50_000
"""With at most so many keys all are scanned; of more, a sample is drawn."""
_DRAWN_KEYS, _DRAW = 6_000, 500
_MEASURED_KEYS = 2_000
"""The most keys of one scan that Redis measures."""
_SAMPLE, _NODES = 100, 2_000
"""The entries of a set, and the nodes of a list, that ``MEMORY USAGE`` reads."""
_BESIDE = 120.0
_BESIDE_STORES = 20
"""About the commands that read a shard with few jobs, beside those for each of their keys."""
_TOLD = 50
"""The jobs of a step of which the caller is told."""

_NODE_BYTES, _NODE_HEAD, _NODE_FACTS = 8_192, 7, 40
"""A list keeps its entries in nodes of 8 KB, or one larger entry in a node of its own (``list-max-listpack-size`` -2)."""


_Name: TypeAlias = tuple[str, str]
"""A class and a place."""


def measure_memory(client: "redis.Redis", sizes: SizeLimitSettings, *, exact: bool = False) -> ShardMemory:
    """Measure the memory of a shard. ``exact`` reads every key and every job. Raises redis errors."""
    info: Mapping[str, Any] = cast("Any", client.info())
    jobs = _JobPlaces(client, sizes, exact=exact)
    found = [*jobs.parts(), *_small_keys(client, info, exact=exact)]
    used = int(info.get("used_memory", 0))
    base = int(info.get("used_memory_startup", 0))
    # The memory of an empty server is explained, and in no place.
    other = used - base - sum(one.bytes for one in found)
    parts = sorted((one for one in found if one.bytes), key=lambda one: (-one.bytes, one.cls, one.place))
    return ShardMemory(
        used,
        int(info.get("maxmemory", 0)),
        str(info.get("maxmemory_policy", "")),
        int(info.get("total_system_memory", 0)),
        [*parts, MemoryPart(NO_CLASS, OTHER, 0, other)],
        jobs.drew,
    )


def measure_parts(client: "redis.Redis", sizes: SizeLimitSettings, on_progress: OnProgress) -> Iterator[MemoryPart]:
    """Yield the parts of the memory in no order, without ``other``. Raises redis errors.

    ``on_progress`` is called with each place, and how many of its jobs or keys were read.
    """
    yield from _JobPlaces(client, sizes, exact=False, on_progress=on_progress).parts()
    yield from _small_keys(client, cast("Any", client.info()), exact=False, on_progress=on_progress)


# --- jobs


def read_jobs(client: "redis.Redis", sizes: SizeLimitSettings) -> Iterator[tuple[str, bytes]]:
    """Yield the kind of place and the payload of every job of a shard, in pages. Raises redis errors."""
    places = _JobPlaces(client, sizes, exact=True)
    for stores in places.places().values():
        for store, data, _ in read_all(client, stores):
            yield store.kind, payload_of_member(data) if store.kind in _HELD else data


class _JobPlaces:
    """Measure the jobs of a shard by place and class."""

    def __init__(
        self,
        client: "redis.Redis",
        sizes: SizeLimitSettings,
        *,
        exact: bool,
        on_progress: OnProgress = ignore_progress,
    ) -> None:
        self._client = client
        self._sizes = sizes
        self._exact = exact
        self._on_progress = on_progress
        self._packed: Mapping[bytes, int] = {}
        """The jobs of sets of held jobs beyond their members."""
        self.drew = False
        """Whether the jobs of a place were estimated from some of them."""

    def parts(self) -> Iterator[MemoryPart]:
        for stores in self.places().values():
            yield from self._place(stores)

    def places(self) -> dict[str, list[tuple[JobStore, int]]]:
        client = self._client
        stores = [JobStore("queue", _QUEUE + name) for name in sorted({*named_queues(client)})]
        stores += [JobStore(cast("Any", kind), key.encode()) for kind, key in _SETS.items()]
        stores.append(JobStore("scheduled", keys.DEFERRED_PACKED.encode()))
        stores += [JobStore(one.kind, one.key) for one in held_keys(client)]
        stores += [JobStore("in flight", key.encode()) for key in self._working_lists()]
        found: dict[str, list[tuple[JobStore, int]]] = defaultdict(list)
        self._packed = packed_held(client)
        for store, jobs in sized_stores(client, stores):
            found[store.kind].append((store, jobs))
        # The number and the bytes of each key are commands, and the pages of a short one.
        self._on_progress("stores", 6 * len(stores) + _BESIDE_STORES)
        return found

    def _working_lists(self) -> Iterator[str]:
        identities: Any = self._client.zrange(keys.REGISTRY, 0, -1)
        owners = [identity.decode(errors="replace") for identity in identities]
        pipeline: Any = self._client.pipeline(transaction=False)
        for owner in owners:
            pipeline.hkeys(keys.process(owner))
        replies: list[Any] = pipeline.execute(raise_on_error=False)
        for owner, fields in zip(owners, replies, strict=True):
            yield keys.working(owner)
            for capsule in keys.capsules_of(() if isinstance(fields, Exception) else fields):
                yield keys.working(keys.capsule_owner(owner, capsule))

    def _place(self, stores: Sequence[tuple[JobStore, int]]) -> Iterator[MemoryPart]:
        used = self._usages(stores)
        read: dict[JobStore, _Read] = {store: _Read() for store, _ in stores}
        beside = self._beside(*max(stores, key=lambda one: used[one[0]]))
        # Blocks whose payload store cannot be read end the sample: what was read before counts.
        with suppress(StoredBlocksError):
            for number, (store, data) in enumerate(self._entries(stores, used), start=1):
                if not number % _TOLD:
                    self._on_progress(store.kind, number)
                record = JobRecord("", payload_of_member(data) if store.kind in _HELD else data, self._sizes)
                is_deferred = store.kind == "scheduled" and record.payload.get(DEFERRED) is True
                place: str = "deferred" if is_deferred else store.kind
                cost = list_entry_bytes(len(data)) if store.is_list else len(data) + beside
                read[store].add((record.display_class or "(malformed)", place), cost)
        counts: dict[_Name, float] = defaultdict(float)
        costs: dict[_Name, float] = defaultdict(float)
        for store, jobs in stores:
            found = read[store]
            scale: float = jobs / max(1, found.jobs)
            # A list was measured; of a set the drawn entries say more than those that Redis measures, which are its first.
            is_measured = store.is_list or store.key in self._packed
            cost_scale: float = used[store] / max(1.0, sum(found.costs.values())) if is_measured else scale
            if not found.jobs:
                # The time was over before one of its jobs was drawn, or they have left.
                counts["(not read)", store.kind] += jobs
                costs["(not read)", store.kind] += used[store]
            for name, count in found.counts.items():
                counts[name] += count * scale
                costs[name] += found.costs[name] * cost_scale
        for (cls, place), total in counts.items():
            yield MemoryPart(cls, place, round(total), round(costs[cls, place]))

    def _usages(self, stores: Sequence[tuple[JobStore, int]]) -> dict[JobStore, int]:
        pipeline: Any = self._client.pipeline(transaction=False)
        for store, _ in stores:
            # A set with blocks has few members, and their sizes differ much: all are measured.
            of_set = 0 if store.key in self._packed else _SAMPLE
            pipeline.memory_usage(store.key, samples=_NODES if store.is_list else of_set)
        # The names of blocks are one set, their bytes another key.
        pipeline.memory_usage(keys.DEFERRED_BLOCKS, samples=0)
        *replies, of_blocks = pipeline.execute()
        return {
            store: (used or 0) + ((of_blocks or 0) if has_only_blocks(store.key) else 0)
            for (store, _), used in zip(stores, replies, strict=True)
        }

    def _beside(self, store: JobStore, jobs: int) -> float:
        """Return what an entry of a set takes beside its own bytes, measured at the largest set of the place."""
        if store.is_list or store.key in self._packed:
            return 0.0 if store.is_list else _BESIDE
        pipeline: Any = self._client.pipeline(transaction=False)
        pipeline.memory_usage(store.key, samples=_SAMPLE)
        pipeline.zrange(store.key, 0, _SAMPLE - 1)
        used, first = pipeline.execute()
        return used / jobs - sum(map(len, first)) / len(first) if used and first else _BESIDE

    def _entries(
        self, stores: Sequence[tuple[JobStore, int]], used: Mapping[JobStore, int]
    ) -> Iterator[tuple[JobStore, bytes]]:
        """Yield entries of each key: all of a short one, of the others as many as their bytes deserve."""
        whole = stores if self._exact else [one for one in stores if one[1] <= _READ_WHOLE // len(stores)]
        for store, data, _ in read_all(self._client, whole):
            yield store, data
        drawn = [one for one in stores if one not in whole]
        if not drawn:
            return
        self.drew = True
        is_list, total = drawn[0][0].is_list, sum(used[store] for store, _ in drawn) or 1
        least = max(1, min(_LEAST_DRAWN, _DRAWN_ENTRIES // len(drawn)))
        wanted = [
            at for at, (store, _) in enumerate(drawn) for _ in range(max(least, _DRAWN_ENTRIES * used[store] // total))
        ]
        # In any order: a job at a random index of a long list is not read at once, so its time may end this.
        random.shuffle(wanted)
        end, most = time.monotonic() + _DRAWN_WITHIN_S, _LIST_ROUND if is_list else _ROUND
        read = start = 0
        step = _FIRST_ROUND
        while start < len(wanted) and read < _READ_DRAWN and not (is_list and time.monotonic() >= end):
            counts = Counter(wanted[start : start + step])
            draw = draw_indexes if is_list else draw_members
            for store, data, _ in draw(self._client, [(*drawn[at], count) for at, count in counts.items()]):
                read += 1
                yield store, data
            start += step
            if read <= start:
                step = min(most, 2 * step)


class _Read:
    """The entries of one key that were read, by class and place."""

    def __init__(self) -> None:
        self.jobs = 0
        self.counts = Counter[_Name]()
        self.costs: dict[_Name, float] = defaultdict(float)

    def add(self, name: _Name, cost: float) -> None:
        self.jobs += 1
        self.counts[name] += 1
        self.costs[name] += cost


def list_entry_bytes(size: int) -> int:
    """Return what an entry of so many bytes takes in a long list: its share of a node, whose end stays empty."""
    entry = size + (1 if size < 64 else 2 if size < 4_096 else 5)
    entry += 1 if entry < 128 else 2 if entry < 16_384 else 3
    per_node = max(1, (_NODE_BYTES - _NODE_HEAD) // entry)
    return round((_allocated(per_node * entry + _NODE_HEAD) + _NODE_FACTS) / per_node)


def _allocated(size: int) -> int:
    """Return the bytes that the allocator of Redis (jemalloc) takes for so many: it has four sizes between two powers of two."""
    step = 1 << max(4, (size - 1).bit_length() - 3)
    return -(-size // step) * step


# --- keys of one job each


def _small_keys(
    client: "redis.Redis", info: Mapping[str, Any], *, exact: bool, on_progress: OnProgress = ignore_progress
) -> Iterator[MemoryPart]:
    """Measure the keys of which there may be one for each job, by the prefixes that the features name."""
    prefixes = {prefix.encode(): place for one in features() for prefix, place in one.places.items()}
    options = cast("dict[str, Any]", client.get_connection_kwargs())
    facts: Mapping[str, Any] = info.get(f"db{options.get('db') or 0}", {})
    total, expiring = int(facts.get("keys", 0)), int(facts.get("expires", 0))
    if not total or not prefixes:
        return
    beside = _table_bytes(total, info) + _table_bytes(expiring, info, 24) * expiring / total
    counts, measured = Counter[str](), defaultdict[str, list[_MeasuredKey]](list)
    read = measures = 0
    is_whole = exact or total <= _SCANNED_KEYS
    for page in _scan_pages(client) if is_whole else _draw_pages(client):
        read += len(page)
        on_progress("keys", read)
        known = [(key, place) for key in page if (place := _place_of(key, prefixes))]
        counts.update(place for _, place in known)
        # Of a scan, as large a share of each page: the averages are of all pages.
        share = max(20, _MEASURED_KEYS * len(page) // total) if is_whole else len(known)
        drawn = random.sample(known, min(len(known), share))
        for (_, place), one in zip(drawn, _measure_keys(client, [key for key, _ in drawn]), strict=True):
            if one.bytes:
                measured[place].append(one)
        measures += len(drawn)
        on_progress("measured keys", measures)
    scale = 1.0 if is_whole or not read else total / read
    for place, count in counts.items():
        found = measured[place]
        numbers, sizes = Counter[_Name](), defaultdict[_Name, float](float)
        for one in found:
            name = one.cls, _WINDOWS if one.is_window else place
            numbers[name] += 1
            sizes[name] += one.bytes + beside
        each = count * scale / len(found) if found else 0.0
        for (cls, kind), number in numbers.items():
            yield MemoryPart(cls, kind, round(number * each), round(sizes[cls, kind] * each))


def _table_bytes(entries: int, info: Mapping[str, Any], node: int = 0) -> float:
    """Return what each key takes in a table of so many, beside what Redis measures: a slot, and a node in the table of expiries."""
    if not entries:
        return 0.0
    if "valkey_version" in info:
        # Its tables have no nodes: seven keys share 64 bytes, a fourth of which stays free.
        return 13.0
    # The table has a power of two of slots. The allocator of some builds rounds a node of 24 bytes up to 32.
    return 8 * (1 << max(2, (entries - 1).bit_length())) / entries + node + 4


def _place_of(key: bytes, prefixes: Mapping[bytes, str]) -> str:
    return next((place for prefix, place in prefixes.items() if key.startswith(prefix)), "")


def _scan_pages(client: "redis.Redis") -> Iterator[list[bytes]]:
    cursor = 0
    while True:
        reply: Any = client.scan(cursor, count=1_000)
        cursor, page = reply
        yield page
        if not cursor:
            return


def _draw_pages(client: "redis.Redis") -> Iterator[list[bytes]]:
    for _ in range(_DRAWN_KEYS // _DRAW):
        pipeline: Any = client.pipeline(transaction=False)
        for _ in range(_DRAW):
            pipeline.randomkey()
        yield [key for key in pipeline.execute() if key is not None]


class _MeasuredKey(NamedTuple):
    """A key that Redis has measured; 0 bytes if it has gone."""

    bytes: int
    cls: str
    """The class in its field ``class``, if it has one."""
    is_window: bool
    """Whether it is a lock that names a job of the schedule set, to which further pushes add (``push_window.lua``)."""


def _measure_keys(client: "redis.Redis", names: Sequence[bytes]) -> Iterator[_MeasuredKey]:
    pipeline: Any = client.pipeline(transaction=False)
    for name in names:
        pipeline.memory_usage(name, samples=5)
        pipeline.hget(name, "class")
        pipeline.hstrlen(name, "member")
    replies: list[Any] = pipeline.execute(raise_on_error=False)
    for at in range(0, len(replies), 3):
        # A key of another type than a hash has no fields.
        used, cls, member = (None if isinstance(one, ResponseError) else one for one in replies[at : at + 3])
        yield _MeasuredKey(used or 0, decode_escaped(cls or b""), bool(member))
