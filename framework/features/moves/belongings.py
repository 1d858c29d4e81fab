"""Read what jobs that move have on their shard besides their payloads: locks, cursors, states, answers, cancellations and counts.

It is written on the target in the step that writes the jobs, and removed from the source in the step that removes them. In between
nothing changes it: a job in flight is in no place from which it could start. At a crash it is read and sent anew with its page, and
the guard of the page decides.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import redis

from framework.types import Payload
from framework.wire import keys
from framework.wire.json import dumps, loads_object
from framework.wire.resources import lock_of
from framework.wire.status_key import tracked_job
from framework.wire.waiters import AwaitedJob, awaited_job_of


class Belongings(NamedTuple):
    """What the jobs of one page have, for the scripts that write and remove it."""

    found: bytes = b""
    """JSON for ``receive.lua``; empty if the jobs have nothing."""
    values: Sequence[bytes] = ()
    """The stored bytes that ``found`` names by their places."""
    removed: bytes = b""
    """JSON for ``page.lua``."""


NOTHING = Belongings()


def read_belongings(client: "redis.Redis", jobs: Sequence[bytes]) -> Belongings:
    """Return what these jobs have on a shard, in two or three round trips. Raises redis errors."""
    payloads = [payload for payload in map(loads_object, jobs) if isinstance(payload.get("jid"), str)]
    locks = list(_locks(client, payloads))
    values: list[bytes] = []
    hashes, strings, cancelled = _stored(client, payloads, values)
    parted = [parted for payload in payloads if (parted := _parted(payload)) is not None]
    if not (locks or hashes or strings or cancelled or parted):
        return NOTHING
    found = {
        "locks": locks,
        "hashes": hashes,
        "strings": strings,
        "cancelled": cancelled,
        "told": [one.told("revived") for one in parted],
    }
    removed = {
        "locks": [[one["key"], one["jid"]] for one in locks],
        "keys": [key for key, *_ in (*hashes, *strings)],
        "told": [one.told("removed") for one in parted],
    }
    return Belongings(dumps(found), values, dumps(removed))


def _locks(client: "redis.Redis", payloads: Sequence[Payload]) -> Iterator[dict[str, Any]]:
    """Yield the locks that the jobs own."""
    owned = [lock for payload in payloads if (lock := lock_of(payload)) is not None]
    pipeline: Any = client.pipeline(transaction=False)
    for lock in owned:
        pipeline.hgetall(lock.key)
        pipeline.pttl(lock.key)
    replies: list[Any] = pipeline.execute(raise_on_error=False) if owned else []
    for lock, fields, left_ms in zip(owned, replies[::2], replies[1::2], strict=True):
        if isinstance(fields, dict) and fields.get(b"jid") == lock.owner.encode() and left_ms > 0:
            words = [_text(word) for pair in cast("dict[bytes, bytes]", fields).items() for word in pair]
            yield {"key": lock.key, "jid": lock.owner, "ms": left_ms, "fields": words}


def _stored(
    client: "redis.Redis", payloads: Sequence[Payload], values: list[bytes]
) -> tuple[list[list[Any]], list[list[Any]], list[list[Any]]]:
    """Return the HASHes and STRINGs of the jobs, and the marks of those that are cancelled; add the bytes to ``values``."""
    names = [name for payload in payloads for name in _names(payload)]
    if not names:
        return [], [], []
    jids = [payload["jid"] for payload in payloads]
    pipeline: Any = client.pipeline(transaction=False)
    pipeline.exists(*names)
    pipeline.zmscore(keys.CANCELLED, jids)
    exist, scores = pipeline.execute(raise_on_error=False)
    # A key of another type marks nothing.
    marked = cast("list[float | None]", scores) if isinstance(scores, list) else [None] * len(jids)
    marks = [[f"{at:.6f}", jid] for jid, at in zip(jids, marked, strict=True) if at is not None]
    hashes: list[list[Any]] = []
    strings: list[list[Any]] = []
    if exist:
        for name in names:
            (pipeline.hgetall if name.startswith(_ITERATION) else pipeline.get)(name)
            pipeline.pttl(name)
        replies: list[Any] = pipeline.execute(raise_on_error=False)
        for name, value, left_ms in zip(names, replies[::2], replies[1::2], strict=True):
            if isinstance(value, bytes):
                strings.append([name, max(0, left_ms), len(values) + 1])
                values.append(value)
            elif isinstance(value, dict) and value:
                words = [word for pair in cast("dict[bytes, bytes]", value).items() for word in pair]
                hashes.append([name, max(0, left_ms), len(values) + 1, len(values) + len(words)])
                values += words
    return hashes, strings, marks


_ITERATION = keys.iteration("")


def _names(payload: Payload) -> Iterator[str]:
    """Yield the keys that a job may have: the HASH of its cursor, and the STRINGs of its state and its answer."""
    yield keys.iteration(payload["jid"])
    if tracked_job(payload) is not None:
        yield keys.status(payload["jid"])
    awaited = awaited_job_of(payload)
    if awaited is not None and awaited.keeps_answer:
        yield keys.result(payload["jid"])


def _parted(payload: Payload) -> AwaitedJob | None:
    """Return the job with the waiters that do not go with it: on the source it has left, and on the target another one waits."""
    awaited = awaited_job_of(payload)
    return None if awaited is None else awaited.parted


def _text(data: bytes) -> str:
    return data.decode(errors="replace")
