"""Read and write a block: many waiting jobs of a queue in one element of its list, or many held jobs in one member of their set.

A block is a JSON object that Ruby's pages can show as one job. Its field ``enqueued_at`` is that of its oldest job, so that the wait
of a queue is right whether its next element is a job or a block.

In a set of held jobs a block has the score of its oldest job. It is a line with such an object, and the compressed bytes.

A block may be stored outside of Redis (``store/block_store.py``). Then a reference stands in its place: the same block, with the id
of the object instead of the bytes of the jobs. All scripts treat it as a block.
"""

import base64
import struct
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from framework.errors import PayloadError
from framework.text import error_class
from framework.types import Payload
from framework.wire.job import generate_jid, timestamp, wire_timestamp
from framework.wire.json import dumps, loads_object
from framework.wire.sub_queues import SEPARATOR, SUB_QUEUE

PACKED = "aw.Packed"
"""Value of the field ``class`` in a block."""

COUNT, JOBS = "aw_count", "aw_jobs"
"""Fields of a block: the number of its jobs; their bytes, compressed, in base64."""

STORED = "aw_stored"
"""Field of a reference: the id of the object in the payload store. It ends with the digest of the block."""

UNCOUNTED = "aw_uncounted"
"""Field of a reference in the dead set: its jobs are not among those in blocks."""

# The space is allowed in JSON, and no encoder writes it: ``scripts/parts/blocks.lua`` looks for it first.
PREFIX = b'{ "class":"aw.Packed",'

MAX_JOBS = 1_000
"""Most jobs of a block: one call of a script has them all as arguments."""

MAX_BYTES = 1_000_000
"""The bytes of jobs that a block aims at; a larger job is a block of its own."""

_QUOTE = b'"'
_MOST_REFERENCE_BYTES = 10_000
"""No reference is longer: it has some hundred bytes, and the name of its queue."""

_MAX_UNPACKED_BYTES = 256_000_000
"""A block that claims more is not unpacked: its bytes are not ours."""


class HeldMember(NamedTuple):
    """A job in a set of held jobs, with its ticket before it, and its score."""

    data: bytes
    score: float


def is_block(data: bytes) -> bool:
    """Return whether the element of a queue, or the member of a set, is a block."""
    return data.startswith(PREFIX)


def pack(queue: str, jobs: Sequence[bytes]) -> bytes:
    """Return the block of these jobs of a queue, the newest first. Each call makes another one: no two blocks are equal."""
    oldest = loads_object(jobs[-1])
    since = timestamp(oldest.get("enqueued_at")) or timestamp(oldest.get("created_at")) or 0.0
    fields: Payload = {
        "class": PACKED,
        "queue": queue,
        # Ruby's pages show it in the row of the block.
        "args": [f"{len(jobs):,} waiting jobs"],
        "jid": generate_jid(),
        # A Ruby process that takes the block by mistake keeps it: the class is unknown there.
        "retry": True,
        "created_at": wire_timestamp(since),
        "enqueued_at": wire_timestamp(since),
        COUNT: len(jobs),
        JOBS: base64.b64encode(_compress(jobs)).decode(),
    }
    return b"{ " + dumps(fields)[1:]


def pack_members(members: Sequence[HeldMember]) -> bytes:
    """Return the block of these held jobs, the oldest first: a line of JSON, and their bytes, compressed. No two blocks are equal."""
    rows = [b"%b\n%b" % (repr(one.score).encode(), one.data) for one in members]
    # A reference to it has the queue too: its jobs go there from the dead set.
    queue = loads_object(_payload(members[0])).get("queue")
    line = dumps({"class": PACKED, "jid": generate_jid(), "queue": queue, COUNT: len(members)})
    # No other program reads these sets, so the bytes need not be text, which takes a third more.
    return b"{ %b\n%b" % (line[1:], _compress(rows))


def refer(block: bytes, blob_id: str) -> bytes:
    """Return the reference to a block that is stored as this object."""
    line, is_held, _ = block.partition(b"\n")
    fields = loads_object(line)
    fields.pop(JOBS, None)
    return b"{ %b%b" % (dumps(fields | {STORED: blob_id})[1:], is_held)


def dead_reference(data: bytes, error: PayloadError, now: float, queue: str) -> bytes:
    """Return the entry of the dead set for a reference whose object is missing or damaged.

    An operator who has restored the object retries the entry like a job: its jobs return to their queue.
    """
    fields: Payload = loads_object(data.partition(b"\n")[0])
    home = queue or fields.get("queue")
    name, _, key = (home if isinstance(home, str) and home else "default").partition(SEPARATOR)
    found: Payload = {
        **fields,
        "queue": name,
        "args": [f"{count(data):,} waiting jobs"],
        "retry": True,
        "failed_at": wire_timestamp(now),
        "error_class": error_class(error),
        "error_message": f"{error}. Restore this object of the payload store, and retry this entry: its jobs run then",
        UNCOUNTED: True,
    }
    return dumps(found | {SUB_QUEUE: home} if key else found)


def stored_id(data: bytes) -> str | None:
    """Return the id of the object that a reference names; ``None`` for other bytes. It may be any text: another program wrote it."""
    if len(data) > _MOST_REFERENCE_BYTES or STORED.encode() not in data:
        return None
    fields = loads_object(data.partition(b"\n")[0])
    found = fields.get(STORED)
    # Not by its prefix: a Ruby process that has taken a reference writes it in another form.
    return found if fields.get("class") == PACKED and isinstance(found, str) else None


def _compress(jobs: Sequence[bytes]) -> bytes:
    # Of arguments that are random words zlib's default takes three times as long, for 3 % fewer bytes.
    return zlib.compress(_by_column(jobs), 4)


# Jobs of one class have as many quotation marks. What stands between the first and the second of each job comes first, and so on:
# neighbours are alike, and take an eighth less memory than one job behind the other.
def _by_column(jobs: Sequence[bytes]) -> bytes:
    rows = [job.split(_QUOTE) for job in jobs]
    tables: dict[int, list[list[bytes]]] = {}
    for row in rows:
        tables.setdefault(len(row), []).append(row)
    widths = struct.pack(f"<{len(rows)}I", *map(len, rows))
    return widths + _QUOTE.join(
        [part for table in tables.values() for column in zip(*table, strict=True) for part in column]
    )


def _by_row(data: bytes, count: int) -> list[bytes]:
    """Return the jobs of ``_by_column``. Raises ValueError if the bytes are not of so many jobs."""
    widths = struct.unpack_from(f"<{count}I", data)
    parts = data[4 * count :].split(_QUOTE)
    if sum(widths) != len(parts):
        raise ValueError(f"{len(parts):,} parts instead of {sum(widths):,}")
    tables, start = dict[int, Iterator[bytes]](), 0
    for width, height in Counter(widths).items():
        table, start = parts[start : start + width * height], start + width * height
        tables[width] = map(_QUOTE.join, [table[row::height] for row in range(height)])
    return [next(tables[width]) for width in widths]


def _payload(member: HeldMember) -> bytes:
    # A ticket is a line with a JSON list; a deferred job has none.
    return member.data.partition(b"\n")[2] if member.data.startswith(b"[") else member.data


def count(block: bytes) -> int:
    """Return the number of jobs that a block says it has; 0 for one that cannot be read."""
    found = loads_object(block.partition(b"\n")[0]).get(COUNT)
    return found if isinstance(found, int) and 0 < found <= MAX_JOBS else 0


def unpack_any(block: bytes) -> list[bytes]:
    """Return the jobs of a block of a queue, or of held jobs, the newest first. Raises as ``unpack``."""
    if b"\n" not in block:
        return unpack(block)
    return [_payload(one) for one in reversed(unpack_members(block))]


def unpack(block: bytes) -> list[bytes]:
    """Return the jobs of a block of a queue, the newest first.

    Raises:
        PayloadError: it cannot be read.
    """
    try:
        return _unpack(block, base64.b64decode(loads_object(block)[JOBS], validate=True))
    except (KeyError, TypeError, ValueError) as error:
        raise PayloadError(f"it is a block of jobs that cannot be unpacked: {error}") from error


def _unpack(block: bytes, compressed: bytes) -> list[bytes]:
    jobs = count(block)
    try:
        stream = zlib.decompressobj()
        data = stream.decompress(compressed, _MAX_UNPACKED_BYTES)
        if not jobs or not stream.eof:
            raise PayloadError("it is a block of jobs, and its end is missing")
        return _by_row(data, jobs)
    except (ValueError, zlib.error, struct.error) as error:
        raise PayloadError(f"it is a block of jobs that cannot be unpacked: {error}") from error


def unpack_members(block: bytes) -> list[HeldMember]:
    """Return the jobs of a block of held jobs, the oldest first.

    Raises:
        PayloadError: it cannot be read.
    """
    try:
        parts = [row.partition(b"\n") for row in _unpack(block, block.partition(b"\n")[2])]
        return [HeldMember(data, float(score)) for score, _, data in parts]
    except ValueError as error:
        raise PayloadError(f"it is a block of held jobs that cannot be unpacked: {error}") from error
