"""Read what jobs that move have on their shard besides their payloads: locks, cursors, states, answers, cancellations and counts.

It is written on the target in the step that writes the jobs, and removed from the source in the step that removes them. In between
nothing changes it: a job in flight is in no place from which it could start. Its lock is marked with the guard of its page
(decision 285). At a crash it is read and sent again with its page, and the guard of the page decides.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import redis
from redis.exceptions import ResponseError

from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.declare.policy_options import Deduplicate
from framework.features.deduplication.push import Deduplicator
from framework.features.moves.store import MARK_LOCKS
from framework.features.results.keys import result_facts
from framework.store.script import is_lasting
from framework.types import Payload
from framework.wire import keys
from framework.wire.json import dumps, loads_object
from framework.wire.resources import FENCE_MS, lock_of, wal_positions_of
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
    merging: "Mapping[int, Payload]" = MappingProxyType({})
    """The jobs for which another one may stand on the target, by their places in the page, from 1."""


NOTHING = Belongings()


def read_belongings(client: "redis.Redis", guard: str, jobs: Sequence[bytes]) -> Belongings:
    """Return what the jobs of the page with this guard have on a shard, in two or three round trips. Raises redis errors."""
    numbered = enumerate(map(loads_object, jobs), 1)
    by_place = {at: payload for at, payload in numbered if isinstance(payload.get("jid"), str)}
    payloads = list(by_place.values())
    values: list[bytes] = []
    owned = list(_locks(client, guard, by_place))
    hashes, strings, cancelled = _stored(client, payloads, values)
    # A job that was cancelled, or has begun to iterate, ends as itself.
    own = {*(jid for _, jid in cancelled), *(name.removeprefix(_ITERATION) for name, *_ in hashes)}
    merging = {at: by_place[at] for at, lock in owned if lock["jid"] not in own and _is_merged(by_place[at])}
    locks = [{**lock, "merge": _merge(at, merging[at])} if at in merging else lock for at, lock in owned]
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
        "fence_ms": FENCE_MS,
        "locks": [[one["key"], one["jid"]] for one in locks],
        "keys": [key for key, *_ in (*hashes, *strings)],
        "told": [one.told("removed") for one in parted],
    }
    return Belongings(dumps(found), values, dumps(removed), merging)


def tell_merged(had: Belongings, places: Sequence[int], owners: Sequence[str]) -> None:
    """Log the jobs for which others stand on the target, as duplicates that a push drops."""
    for at, owner in zip(places, owners, strict=True):
        payload = had.merging[at]
        declaration = cast("Declaration", _declaration_of(payload))
        _LOCKS.log_duplicate(payload, declaration, cast("Deduplicate", declaration.deduplicate), owner)


_LOCKS = Deduplicator()


def _is_merged(payload: Payload) -> bool:
    """Return whether another job that has the lock on the target may stand for a job, as for one that is pushed there."""
    declaration = _declaration_of(payload)
    if declaration is None or awaited_job_of(payload) is not None:
        return False
    policy = declaration.deduplicate if declaration.deduplicates else None
    return policy is not None and declaration.idempotent and not policy.has_window


def _merge(at: int, payload: Payload) -> dict[str, Any]:
    declaration = cast("Declaration", _declaration_of(payload))
    terms = _LOCKS.lock_terms(declaration, cast("Deduplicate", declaration.deduplicate))
    tracked = tracked_job(payload)
    merge = {"at": at, "counter": terms.counter, "positions": wal_positions_of(payload)}
    return merge if tracked is None else {**merge, "mark": [str(word) for word in tracked.command("discarded")]}


def _declaration_of(payload: Payload) -> Declaration | None:
    worker: Any = registry.find(payload["class"])
    return None if worker is None else worker.declaration()


def _locks(client: "redis.Redis", guard: str, jobs: Mapping[int, Payload]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the locks that the jobs own, with the places of the jobs, and mark them as on their way."""
    owned = [(at, lock) for at, payload in jobs.items() if (lock := lock_of(payload)) is not None]
    if not owned:
        return
    names = [lock.key for _, lock in owned]
    try:
        replies = cast("list[list[Any]]", MARK_LOCKS(client, names, [guard, *(lock.owner for _, lock in owned)]))
    except ResponseError as error:
        if not is_lasting(error):
            raise
        return
    for (at, lock), (left_ms, *words) in zip(owned, (reply or [0] for reply in replies), strict=True):
        if left_ms > 0:
            pairs = cast("Iterable[tuple[bytes, bytes]]", zip(words[::2], words[1::2], strict=True))
            fields = [_text(word) for pair in pairs if pair[0] != b"moved" for word in pair]
            yield at, {"key": lock.key, "jid": lock.owner, "ms": left_ms, "fields": fields}


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
    """Yield the keys that a job may have: the HASH of its cursor, the STRINGs of its state, its answer, and the facts of its call."""
    yield keys.iteration(payload["jid"])
    if tracked_job(payload) is not None:
        yield keys.status(payload["jid"])
    awaited = awaited_job_of(payload)
    if awaited is not None and awaited.keeps_answer:
        yield keys.result(payload["jid"])
        yield result_facts(payload["jid"])


def _parted(payload: Payload) -> AwaitedJob | None:
    """Return the job with the waiters that do not go with it: on the source it has left, and on the target another one waits."""
    awaited = awaited_job_of(payload)
    return None if awaited is None else awaited.parted


def _text(data: bytes) -> str:
    return data.decode(errors="replace")
