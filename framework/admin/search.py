"""Find a job: search every key of a shard that may hold it, in bounded steps while processes run."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import redis
from redis.exceptions import ResponseError

from framework.admin.held_jobs import HeldJobsKey
from framework.admin.statistics import OnProgress, named_queues
from framework.feature import features
from framework.fetch.blocks import expand
from framework.fetch.deferred_blocks import DeferredBlock
from framework.fetch.held_blocks import expand_member, expand_members, first_block, has_only_blocks, packed_held
from framework.process.record import read_processes, recorded_payload
from framework.store.script import SEARCH, is_wrong_type
from framework.store.steps import UNPACED, BoundedSteps
from framework.text import decode_escaped
from framework.types import Payload
from framework.wire import keys
from framework.wire.blocks import STORED, is_block, stored_id
from framework.wire.job import clamp_time
from framework.wire.json import dumps, loads_object

StoreKind: TypeAlias = Literal[
    "scheduled", "retry", "queue", "waiting", "paused", "migrating", "in flight", "running", "dead", "interrupted"
]
ScanPage: TypeAlias = list[tuple[bytes, float]]
"""Members of a sorted set with their scores."""

PAGE = 1_000
STEP_BYTES = 1_000_000
"""The most that one step reads of lists."""

LIST_STEP, SET_STEP = (300, 2_000), (50, 1_000)
"""The fewest and the most jobs of one step. Redis needs a millisecond to reach the middle of a long list: fewer are not worth it.
A set from which most jobs have gone is sparse: a step of it takes several times as long as the one before."""

_OBJECTS_PER_STEP = 20
"""The most objects of the payload store that are read for one step: a bucket takes some 50 ms for each."""

_KEYS_PER_STEP = 1_000
"""The most keys in one step."""

_RECORDS_PER_STEP = 100
"""The most records of processes in one step: each may have as many jobs as the process has threads."""

_LISTS = ("queue", "in flight", "migrating")
HELD_KINDS = ("waiting", "paused")
_GLOB = re.compile(rb"([*?\[\]\\^-])")
_QUEUE, _LIMIT, _PAUSED = keys.queue("").encode(), keys.limit("").encode(), keys.paused_jobs("").encode()
_WORKING = keys.working("").encode()
_WAITING = b":waiting:"


class JobStore(NamedTuple):
    """One key that holds jobs."""

    kind: StoreKind
    key: bytes

    @property
    def is_list(self) -> bool:
        """Whether the key is a list; the others are sorted sets."""
        return self.kind in _LISTS

    @property
    def name(self) -> str:
        """The queue, identity, limit or class whose jobs the key holds; empty for a set that exists once."""
        match self.kind:
            case "queue":
                return decode_escaped(self.key.removeprefix(_QUEUE))
            case "paused":
                return decode_escaped(self.key.removeprefix(_PAUSED))
            case "waiting":
                return decode_escaped(self.key.removeprefix(_LIMIT).partition(_WAITING)[0])
            case "in flight":
                return keys.owner(decode_escaped(self.key))
            case "migrating":
                return keys.migrated_queue(keys.owner(decode_escaped(self.key))) or ""
            case "running":
                return decode_escaped(self.key.rpartition(b":")[0])
            case _:
                return ""

    def as_held_jobs(self) -> HeldJobsKey:
        return HeldJobsKey("paused" if self.kind == "paused" else "waiting", self.name, self.key)


@dataclass(frozen=True, slots=True)
class JobLocation:
    """A job and where it was found. ``position`` 1 leaves next; ``score`` is its score in a sorted set (due time, or
    since when).
    """

    store: JobStore
    data: bytes
    position: int
    total: int
    score: float | None = None

    @property
    def payload(self) -> Payload:
        """The job's payload, empty if it is malformed."""
        return loads_object(self.data)


def search(client: "redis.Redis", jid: str, on_progress: OnProgress) -> list[JobLocation]:
    """Return every place of the job, as ``find``. Raises redis errors."""
    return list(find(client, jid, on_progress))


def find(client: "redis.Redis", jid: str, on_progress: OnProgress) -> Iterator[JobLocation]:
    """Yield every place of the job. Raises redis errors.

    A job that moves to a place that was already searched would be missed. So places are searched in the order of a
    job's way, and then once in the opposite order if nothing was found. Several places for one job are normal: a job
    that was reclaimed from a dead process may be in a queue, and still in the working list of a process that was only
    slow.
    """
    wanted = dumps(jid)[1:-1]
    scanned = 0

    def on_step(key: str, jobs: int) -> None:
        nonlocal scanned
        scanned += jobs
        on_progress(key, scanned)

    for turn in (1, -1):
        stores = list_job_stores(client, on_step)[::turn]
        locations = (one for group in _batches(stores) for one in _search_batch(client, group, wanted, on_step))
        # A malformed payload is reported; a job with the id only among its arguments is a different one.
        is_found = False
        for one in locations:
            if one.payload.get("jid", jid) == jid:
                is_found = True
                yield one
        for one in () if is_found else search_records(client, wanted, on_step):
            if one.payload.get("jid") == jid:
                is_found = True
                yield one
        if is_found:
            return


def search_records(client: "redis.Redis", text: bytes, on_progress: OnProgress) -> Iterator[JobLocation]:
    """Yield the jobs that processes of Sidekiq run and whose payload has the text; all jobs for an empty one.

    Such a process takes a job out of Redis when it fetches it, so only the record that it writes with each heartbeat has the job.
    Raises redis errors.
    """
    identities = [one.identity for one in read_processes(client) if one.is_ruby]
    for start in range(0, len(identities), _RECORDS_PER_STEP):
        # Sidekiq writes one of the two keys, by its version.
        names = [key for identity in identities[start : start + _RECORDS_PER_STEP] for key in keys.work(identity)]
        pipeline: Any = client.pipeline(transaction=False)
        for name in names:
            pipeline.hvals(name)
        for name, reply in zip(names, pipeline.execute(raise_on_error=False), strict=True):
            # A key of another type, which records no job, answers with an error.
            entries = cast("list[bytes]", reply) if isinstance(reply, list) else []
            jobs = [recorded_payload(loads_object(entry)) for entry in entries]
            on_progress(name, len(jobs))
            for number, data in enumerate(jobs, start=1):
                if text in data:
                    yield JobLocation(JobStore("running", name.encode()), data, number, len(jobs))


def search_lists(
    client: "redis.Redis", stores: Sequence[JobStore], text: bytes, on_progress: OnProgress
) -> Iterator[JobLocation]:
    """Yield the jobs of queues and working lists whose payload has the text; all jobs for an empty one. Raises redis errors."""
    for start in range(0, len(stores), _KEYS_PER_STEP):
        yield from _search_lists(client, stores[start : start + _KEYS_PER_STEP], text, on_progress)


def search_queue(
    client: "redis.Redis", names: Iterable[str], text: bytes, on_progress: OnProgress
) -> Iterator[tuple[str, bytes]]:
    """Yield the jobs in the lists of these names whose payload has the text, each with the name of its list, the newest first.

    A job is yielded once, unless more than a step of jobs is pushed between two steps. Raises redis errors.
    """
    scanned = 0

    def on_step(key: str, jobs: int) -> None:
        nonlocal scanned
        scanned += jobs
        on_progress(key, scanned)

    # Pushes move jobs into the next step, which finds them again.
    last, recent = "", set[bytes]()
    stores = [JobStore("queue", keys.queue(name).encode()) for name in names]
    for step in search_list_steps(client, stores, text, on_step):
        fresh = [one for one in step.found if one.store.name != last or one.data not in recent]
        yield from ((one.store.name, one.data) for one in fresh)
        if step.found:
            last = step.found[-1].store.name
            recent = {one.data for one in step.found if one.store.name == last}


def list_job_stores(client: "redis.Redis", on_progress: OnProgress = lambda _key, _jobs: None) -> list[JobStore]:
    """Return every key that holds jobs, in the order of a job's way. Raises redis errors."""
    found = _keys_by_prefix(client, (_QUEUE, _LIMIT, _PAUSED, _WORKING), on_progress)
    queues = found[_QUEUE].union(_QUEUE + name for name in named_queues(client))
    return [
        JobStore("scheduled", b"schedule"),
        JobStore("scheduled", keys.DEFERRED_PACKED.encode()),
        JobStore("retry", b"retry"),
        *(JobStore("queue", key) for key in sorted(queues)),
        *_held_stores(found),
        *map(_working_list_store, sorted(found[_WORKING])),
        JobStore("dead", b"dead"),
        JobStore("interrupted", b"interrupted"),
    ]


def list_held_stores(client: "redis.Redis") -> list[JobStore]:
    """Return the keys of jobs held at a limit or by a pause. They are found by name, so a broken index hides none."""
    return _held_stores(_keys_by_prefix(client, (_LIMIT, _PAUSED), lambda _key, _jobs: None, kind="zset"))


def payload_of_member(member: bytes) -> bytes:
    """Return the payload of a held job: it follows a line of JSON, its ticket."""
    return member.partition(b"\n")[2]


def scan_members(client: "redis.Redis", key: bytes | str, needle: bytes | None = None) -> Iterator[ScanPage]:
    """Yield, in pages with scores, each member that stays in a sorted set during the scan; with ``needle``, only those
    that contain it.

    Redis filters, so other members are not sent. A key of another type has no members. Raises redis errors.
    """
    return (page for _, page in scan_held(client, key, needle))


def scan_held(
    client: "redis.Redis", key: bytes | str, needle: bytes | None = None
) -> Iterator[tuple[bytes | None, ScanPage]]:
    """Yield the pages of ``scan_members``, each with the block (``wire/blocks.py``) that its jobs are in, ``None`` for none."""
    if (key if isinstance(key, bytes) else key.encode()) not in packed_held(client):
        yield from ((None, page) for _, page in scan_from(client, key, needle, 0))
        return
    # Redis cannot look into a block.
    for _, page in scan_from(client, key, None, 0):
        plain: ScanPage = []
        for member, score in page:
            (jobs,) = expand_members(client, key, [(member, score)])
            inside = [one for one in jobs if needle is None or needle in one.data]
            if is_block(member) or has_only_blocks(key):
                yield member, cast("ScanPage", inside)
            else:
                plain += inside
        yield None, plain


def scan_packed_from(
    client: "redis.Redis", key: bytes, needle: bytes | None, cursor: int
) -> Iterator[tuple[int, ScanPage]]:
    """Yield the jobs of a set with blocks as ``scan_from`` does: those of a few blocks at a time, into which Redis cannot look."""
    for following, page in scan_from(client, key, None, cursor, (1, _OBJECTS_PER_STEP)):
        found = [one for jobs in expand_members(client, key, page) for one in jobs]
        yield following, [(one.data, one.score) for one in found if needle is None or needle in one.data]


def scan_from(
    client: "redis.Redis", key: bytes | str, needle: bytes | None, cursor: int, step: tuple[int, int] | None = None
) -> Iterator[tuple[int, ScanPage]]:
    """Yield the pages of ``scan_members`` from ``cursor`` on, each with the cursor of the next; 0 after the last one."""
    steps, match = BoundedSteps(*(step or SET_STEP), rate=UNPACED), _glob_containing(needle)
    try:
        while True:
            with steps.step() as count:
                reply: Any = client.zscan(key, cursor, match=match, count=count)
            cursor, page = reply
            yield cursor, cast("ScanPage", page)
            if not cursor:
                return
    except ResponseError as error:
        if not is_wrong_type(error):
            raise


def share_of_cursor(cursor: int, size: int) -> float:
    """Return how much of a set of this size was scanned when this cursor is the next, about: Redis counts with reversed bits."""
    if not cursor:
        return 1.0
    bits = max(size.bit_length(), cursor.bit_length())
    return int(f"{cursor:0{bits}b}"[::-1], 2) / (1 << bits)


def _glob_containing(needle: bytes | None) -> bytes | None:
    return None if needle is None else b"*" + _GLOB.sub(rb"\\\1", needle) + b"*"


def _keys_by_prefix(
    client: "redis.Redis", prefixes: Sequence[bytes], on_progress: OnProgress, kind: str | None = None
) -> Mapping[bytes, set[bytes]]:
    """Return the keys with each of the prefixes, found in one scan of the key space."""
    # One pattern for all prefixes: at each position, any character that one of them has there. False matches are
    # removed below.
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
    return JobStore("in flight" if keys.migrated_queue(keys.owner(decode_escaped(key))) is None else "migrating", key)


def _batches(stores: Sequence[JobStore]) -> Iterator[list[JobStore]]:
    """Yield the stores in their order, grouped by what one step can search: many lists, or many sets of held jobs."""
    for _, group in groupby(stores, lambda store: "list" if store.kind in _LISTS else store.kind):
        same_kind = list(group)
        yield from (same_kind[start : start + _KEYS_PER_STEP] for start in range(0, len(same_kind), _KEYS_PER_STEP))


def _search_batch(
    client: "redis.Redis", batch: Sequence[JobStore], wanted: bytes, on_progress: OnProgress
) -> Iterator[JobLocation]:
    return (_search_lists if batch[0].kind in _LISTS else _search_sets)(client, batch, wanted, on_progress)


def _search_sets(
    client: "redis.Redis", batch: Sequence[JobStore], wanted: bytes, on_progress: OnProgress
) -> Iterator[JobLocation]:
    """Search the first page of every set in one round trip: most sets of held jobs, one per scope, have only one."""
    first = SET_STEP[0]
    packed: Mapping[bytes, int] = packed_held(client) if batch[0].kind in (*HELD_KINDS, "scheduled") else {}
    for store in batch:
        if store.key in packed:
            yield from _search_packed(client, store, wanted, packed[store.key])
            on_progress(decode_escaped(store.key), packed[store.key])
    # The name of a block of deferred jobs is no job.
    batch = [store for store in batch if store.key not in packed and not has_only_blocks(store.key)]
    pipeline: Any = client.pipeline(transaction=False)
    for store in batch:
        pipeline.zscan(store.key, 0, match=_glob_containing(wanted), count=first)
        pipeline.zcard(store.key)
    replies: list[Any] = pipeline.execute(raise_on_error=False)
    for store, reply, size in zip(batch, replies[::2], replies[1::2], strict=True):
        if isinstance(reply, ResponseError):
            if is_wrong_type(reply):
                continue
            raise reply
        cursor, found = reply
        yield from _with_ranks(client, store, found)
        for _, page in scan_from(client, store.key, wanted, cursor) if cursor else ():
            on_progress(decode_escaped(store.key), 0)
            yield from _with_ranks(client, store, page)
        on_progress(decode_escaped(store.key), size if isinstance(size, int) else 0)


def _search_packed(client: "redis.Redis", store: JobStore, wanted: bytes, beyond: int) -> Iterator[JobLocation]:
    """Search a set with blocks. Behind the first block the position of a job is an estimate: blocks have about as many jobs."""
    if has_only_blocks(store.key):
        yield from _search_deferred(client, store, wanted, beyond)
        return
    for block, page in scan_held(client, store.key, wanted):
        rank: Any = None if block is None else client.zrank(store.key, block)
        if block is None:
            yield from _with_ranks(client, store, page, beyond)
        elif rank is not None:
            inside = [one.data for one in expand_member(client, block, 0.0)]
            first, total = first_block(client, store.key, rank), client.zcard(store.key) + beyond
            for member, score in page:
                before = first + (rank - first) * len(inside) + inside.index(member)
                yield JobLocation(store, payload_of_member(member), min(total, before + 1), total, clamp_time(score))


def _search_deferred(client: "redis.Redis", store: JobStore, wanted: bytes, beyond: int) -> Iterator[JobLocation]:
    """Search the blocks of deferred jobs. The position of a job is that among these and the jobs of the schedule set."""
    for _, names in scan_from(client, store.key, None, 0):
        for name in names:
            (jobs,) = expand_members(client, store.key, [name])
            for index, (member, score) in enumerate(jobs):
                if wanted in member:
                    yield _deferred_location(
                        client, store, name[0], index, JobLocation(store, member, 0, beyond, score)
                    )


def _deferred_location(
    client: "redis.Redis", store: JobStore, block: bytes, index: int, found: JobLocation
) -> JobLocation:
    pipeline: Any = client.pipeline(transaction=False)
    pipeline.zrank(store.key, block)
    pipeline.zcard(store.key)
    pipeline.zcount(keys.SCHEDULE, "-inf", f"({found.score:.6f}")
    pipeline.zcard(keys.SCHEDULE)
    rank, blocks, sooner, scheduled = pipeline.execute()
    packed = found.total + blocks
    # Blocks have about as many jobs.
    before = sooner + (rank or 0) * packed // max(1, blocks) + index
    total = scheduled + packed
    return replace(found, position=min(total, before + 1), total=total, score=clamp_time(found.score or 0.0))


def _with_ranks(client: "redis.Redis", store: JobStore, page: ScanPage, beyond: int = 0) -> Iterator[JobLocation]:
    for member, score in page:
        pipeline: Any = client.pipeline()
        pipeline.zrank(store.key, member)
        pipeline.zcard(store.key)
        rank, size = pipeline.execute()
        if rank is not None:
            data = payload_of_member(member) if store.kind in HELD_KINDS else member
            if beyond and first_block(client, store.key, rank) < rank:
                # It is behind the blocks.
                rank += beyond
            yield JobLocation(store, data, rank + 1, size + beyond, clamp_time(score))


def _search_lists(
    client: "redis.Redis", batch: Sequence[JobStore], text: bytes, on_progress: OnProgress
) -> Iterator[JobLocation]:
    return (one for step in search_list_steps(client, batch, text, on_progress) for one in step.found)


class ListStep(NamedTuple):
    """What one step of a search in lists has found, and where the next one begins."""

    found: Sequence[JobLocation]
    done: int
    """The lists that are searched to their ends."""
    start: int
    """The index in the next list."""


def search_list_steps(
    client: "redis.Redis", batch: Sequence[JobStore], text: bytes, on_progress: OnProgress, start: int = 0
) -> Iterator[ListStep]:
    """Yield what each step finds, from the index ``start`` of the first list on. Raises redis errors.

    A deep queue in the payload store needs an object for each thousand jobs: some of them are one step, so that its caller shows
    how far it is, and can end and go on there.

    It searches lists from the left end: pushes meanwhile move jobs into the next step, so none is missed. Redis filters here too.
    """
    done = 0
    # By how many the jobs before the next hit of its list are more than the elements there.
    in_blocks = 0
    for finished, next_start, hits in _list_hits(client, batch, text, on_progress, start):
        left, found, objects = batch[done:], list[JobLocation](), 0
        for at, (number, index, length, element) in enumerate(hits):
            if number > 1 and (not at or number != hits[at - 1][0]):
                in_blocks = 0
            inside = expand(client, element)
            # Redis sends each block: it cannot look into it.
            found += [
                JobLocation(left[number - 1], data, max(1, length - index - in_blocks - newer), length)
                for newer, data in enumerate(inside)
                if data is element or text in data
            ]
            in_blocks += len(inside) - 1
            objects += stored_id(element) is not None
            if objects == _OBJECTS_PER_STEP:
                on_progress(decode_escaped(left[number - 1].key), 0)
                yield ListStep(found, done + number - 1, index + 1)
                found, objects = [], 0
        if finished:
            in_blocks = in_blocks if hits and hits[-1][0] == finished + 1 else 0
        done += finished
        yield ListStep(found, done, next_start)


def _list_hits(
    client: "redis.Redis", batch: Sequence[JobStore], text: bytes, on_progress: OnProgress, start: int
) -> Iterator[tuple[int, int, list[tuple[int, int, int, bytes]]]]:
    """Yield of each step how many lists it has ended, the index in the next one, and what has the text; each block may have it.

    A hit is the number of its list (from 1, of those that were left), its index, the jobs of the list, and the element.
    """
    done, page = 0, 1
    steps = BoundedSteps(*LIST_STEP, rate=UNPACED)
    while done < len(batch):
        left = batch[done:]
        with steps.step() as jobs:
            reply: Any = SEARCH(client, [store.key for store in left], [text, start, STEP_BYTES, jobs, page])
        finished, start, scanned, page = reply[:4]
        on_progress(decode_escaped(left[max(0, finished - 1)].key), scanned)
        done += finished
        yield finished, start, list(zip(*[iter(reply[4:])] * 4, strict=True))


_LISTS_OF_JOBS = ("queue", "in flight", "migrating")


def jobs_with_field(
    client: "redis.Redis", field: str, on_progress: OnProgress, *, backwards: bool = False
) -> Iterator[bytes]:
    """Yield the payloads that contain the name of a field, in the order of a job's way or in the opposite one.

    Jobs that a feature stores, such as the callbacks of a batch, are among them. A job that moves to a place that was searched
    before is missed. Raises redis errors.
    """
    text = f'"{field}"'.encode()
    stores = list_job_stores(client, on_progress)
    lists = [store for store in stores if store.kind in _LISTS_OF_JOBS]
    groups = (
        (data for one in features() if one.stored_jobs is not None for data in one.stored_jobs.load()(client, text)),
        _in_sets(client, stores, text),
        (one.data for one in search_lists(client, lists, text, on_progress)),
    )
    for group in groups[:: -1 if backwards else 1]:
        yield from group


def stored_ids(client: "redis.Redis", on_progress: OnProgress, *, backwards: bool = False) -> Iterator[str]:
    """Yield the ids of the objects that references to blocks (``store/block_store.py``) name, as ``jobs_with_field`` yields jobs."""
    stores = list_job_stores(client, on_progress)
    for store in stores[:: -1 if backwards else 1]:
        for element in _raw_elements(client, store, STORED.encode(), on_progress):
            if (found := stored_id(element)) is not None:
                yield found


def _raw_elements(client: "redis.Redis", store: JobStore, text: bytes, on_progress: OnProgress) -> Iterator[bytes]:
    """Yield the elements of a key that have the text, and blocks as they are."""
    if has_only_blocks(store.key):
        names = (name for _, page in scan_from(client, store.key, None, 0) for name, _ in page)
        for name in names:
            data: Any = client.hget(keys.DEFERRED_BLOCKS, DeferredBlock(name, 0.0).id)
            yield data or b""
    elif store.is_list:
        for _, _, hits in _list_hits(client, [store], text, on_progress, 0):
            yield from (element for *_, element in hits)
    else:
        for _, page in scan_from(client, store.key, text, 0):
            yield from (member for member, _ in page)


def _in_sets(client: "redis.Redis", stores: Sequence[JobStore], text: bytes) -> Iterator[bytes]:
    for store in stores:
        if store.kind in _LISTS_OF_JOBS:
            continue
        for page in scan_members(client, store.key, text):
            for member, _ in page:
                yield payload_of_member(member) if store.kind in HELD_KINDS else member
