"""Delete the blobs of the payload store that no job names, and no reference to a block of jobs.

A blob is deleted only if all of this holds:

1. it was stored longer than ``keep`` ago;
2. an earlier sweep found no job that names it, and noted that longer than ``keep`` ago;
3. this sweep, which read every key that holds jobs on every shard twice, in both directions, finds none either.

A job that moves during a sweep may be missed by one direction; to lose its blob it must be missed in four passes, days apart. If a
shard does not answer, nothing is deleted. At a crash: each step is repeated by the next sweep, which comes an hour after the
begin of the one that has not ended.
"""

import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

import redis

from framework.admin.search import jobs_with_field, stored_ids
from framework.admin.statistics import OnProgress
from framework.features.encryption.blob_store import BlobStore
from framework.features.encryption.offload import BLOBS, PayloadOffload
from framework.process_clock import process_clock
from framework.wire.json import loads_object, stored_number
from framework.wire.protected import OFFLOADED

UNNAMED = "unnamed"
"""The part before the slash of the names of notes: an empty file for each blob that no job names."""

LAST_SWEEP = "last-sweep"
_RUNNING = "running"
_ABANDONED_S = 3_600.0
"""Seconds after which a sweep that has not ended counts as abandoned: its process has died, or a shard did not answer."""


class SweepResult(NamedTuple):
    """Count the blobs of one sweep."""

    blobs: int = 0
    size: int = 0
    """The bytes of all blobs."""
    candidates: int = 0
    """Blobs older than ``keep``."""
    unnamed: int = 0
    """Candidates that no job names: noted now, or earlier."""
    deleted: int = 0
    deleted_size: int = 0


class StoreCount(NamedTuple):
    """Say what a store holds, as far as it was listed in time. Times are epoch seconds by the clock of the store."""

    blobs: int = 0
    size: int = 0
    candidates: int = 0
    """Blobs older than ``keep``."""
    noted: int = 0
    """Blobs that no job named at an earlier sweep."""
    noted_long: int = 0
    """Those of them that were noted longer than ``keep`` ago: the next sweep deletes them, unless a job names them."""
    oldest_at: float | None = None
    newest_at: float | None = None
    is_partial: bool = False
    """Whether the time ended before the last blob: there are more."""
    swept_at: float | None = None
    """When the last sweep began."""
    is_sweeping: bool = False


def count_store(offload: PayloadOffload, keep_s: float, within_s: float) -> StoreCount:
    """Count what a store holds, without a look at jobs. Raises OSError."""
    now, ends = process_clock.now(), time.monotonic() + within_s
    blobs = size = candidates = noted = noted_long = 0
    oldest = newest = None
    is_partial = False
    for blob in offload.store.list(BLOBS):
        if is_partial := time.monotonic() > ends:
            break
        blobs, size = blobs + 1, size + blob.size
        candidates += now - blob.modified > keep_s
        oldest = blob.modified if oldest is None else min(oldest, blob.modified)
        newest = blob.modified if newest is None else max(newest, blob.modified)
    for note in offload.store.list(UNNAMED):
        if time.monotonic() > ends:
            is_partial = True
            break
        noted, noted_long = noted + 1, noted_long + (now - note.modified > keep_s)
    last, _, state = (offload.store.get(LAST_SWEEP) or b"").decode(errors="replace").partition(" ")
    is_sweeping = state.strip() == _RUNNING and now - stored_number(last) < _ABANDONED_S
    counts = (blobs, size, candidates, noted, noted_long, oldest, newest)
    return StoreCount(*counts, is_partial, stored_number(last) or None, is_sweeping)


class PayloadSweeper:
    """Sweep the store of an application. ``clients`` has all its shards: a shard that is left out loses its blobs."""

    def __init__(
        self,
        offload: PayloadOffload,
        keep_s: float,
        clients: "Mapping[str, redis.Redis]",
    ) -> None:
        self._store: BlobStore = offload.store
        self._keep_s = keep_s
        self._clients = clients
        self._claimed_at = 0.0

    def claim(self, period_s: float) -> bool:
        """Note that a sweep begins now, unless one began less than ``period_s`` ago; return whether it may begin. Raises OSError.

        A sweep without ``end_claim`` is repeated after an hour. If it still runs then, both delete the same blobs, and no others.
        """
        now = process_clock.now()
        if (last := self._store.get(LAST_SWEEP)) is not None:
            at, _, state = last.decode(errors="replace").partition(" ")
            wait_s = min(period_s, _ABANDONED_S) if state.strip() == _RUNNING else period_s
            if now - stored_number(at) < wait_s:
                return False
        self._claimed_at = now
        self._store.put(LAST_SWEEP, f"{now:.3f} {_RUNNING}\n".encode())
        return True

    def end_claim(self) -> None:
        """Note that the claimed sweep has ended. Raises OSError."""
        self._store.put(LAST_SWEEP, f"{self._claimed_at:.3f}\n".encode())

    def sweep(self, on_progress: OnProgress = lambda _key, _jobs: None, *, dry_run: bool = False) -> SweepResult:
        """Note and delete blobs. With ``dry_run`` only count what a sweep would do now.

        Raises:
            OSError: the store failed.
            RedisError: a shard does not answer. Nothing was deleted.
        """
        now = process_clock.now()
        result, candidates = self._candidates(now)
        notes = {_last(note.name): note for note in self._store.list(UNNAMED)}
        if not candidates:
            self._forget([note.name for note in notes.values()], dry_run=dry_run)
            return result
        named = self._named_blobs(on_progress)
        unnamed = {name: size for name, size in candidates.items() if _last(name) not in named}
        kept = {_last(name) for name in unnamed}
        self._forget([note.name for blob, note in notes.items() if blob not in kept], dry_run=dry_run)
        deleted = deleted_size = 0
        for name, size in unnamed.items():
            note = notes.get(_last(name))
            if note is None:
                if not dry_run:
                    self._store.put(f"{UNNAMED}/{_last(name)}", b"")
            elif now - note.modified > self._keep_s:
                deleted, deleted_size = deleted + 1, deleted_size + size
                if not dry_run:
                    # The blob first: a note without a blob is forgotten by the next sweep.
                    self._store.delete(name)
                    self._store.delete(note.name)
        return result._replace(unnamed=len(unnamed), deleted=deleted, deleted_size=deleted_size)

    def _candidates(self, now: float) -> tuple[SweepResult, dict[str, int]]:
        """Return the counts of all blobs, and the names and sizes of the old ones."""
        blobs = total = 0
        old: dict[str, int] = {}
        for blob in self._store.list(BLOBS):
            blobs, total = blobs + 1, total + blob.size
            if now - blob.modified > self._keep_s:
                old[blob.name] = blob.size
        return SweepResult(blobs, total, len(old)), old

    def _named_blobs(self, on_progress: OnProgress) -> set[str]:
        """Return the ids of the blobs that jobs of all shards name. Raises redis errors."""
        found: set[str] = set()
        for backwards in (False, True):
            for client in self._clients.values():
                # Blocks first: what leaves one meanwhile is found as a job behind it.
                found.update(stored_ids(client, on_progress, backwards=backwards))
                for data in jobs_with_field(client, OFFLOADED, on_progress, backwards=backwards):
                    # Whatever else is wrong with a payload, it keeps its blob.
                    found.update(_texts(loads_object(data).get("args")))
        return found

    def _forget(self, notes: list[str], *, dry_run: bool) -> None:
        for name in notes:
            if not dry_run:
                self._store.delete(name)


def _texts(args: Any) -> Iterator[str]:
    return (str(one) for one in cast("list[object]", args)) if isinstance(args, list) else iter(())


def _last(name: str) -> str:
    return name.rpartition("/")[2]
