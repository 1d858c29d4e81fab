"""Count the batches of one faked shard, and enqueue their callbacks: the counterpart of ``scripts/parts/batch.lua``."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from framework.testing.memory_workflows import MemoryWorkflows
from framework.types import Jid
from framework.wire.batch_fields import (
    CANCELLED,
    NO_PARENT,
    PARENT_CANCELLED,
    SUCCEEDED,
    UNKNOWN,
    WRITTEN,
    BatchAction,
    BatchMembers,
    BatchReply,
    BatchWrite,
)
from framework.wire.json import loads
from framework.wire.payload_edit import append_fields
from framework.wire.waiters import JobEnd

_SETTLED = ("complete", "success", "finished")


class Places(Protocol):
    """Where callbacks go."""

    cancelled: set[Jid]

    def add(self, place: Any, data: bytes, queue: str = "", due: float | None = None) -> object:
        """Put a job into a place."""
        ...


@dataclass(slots=True)
class _MemoryBatch:
    fields: dict[str, Any]
    failed: set[str] = field(default_factory=set[str])
    dead: set[str] = field(default_factory=set[str])
    children: set[str] = field(default_factory=set[str])
    results: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])

    def number(self, name: str) -> int:
        return int(self.fields.get(name, 0))

    def add(self, name: str, number: int) -> None:
        self.fields[name] = self.number(name) + number


class MemoryBatches:
    """The batches of one shard. The caller holds ``JobMemory.step``."""

    def __init__(self, places: Places, clock: Callable[[], float]) -> None:
        self._places = places
        self._clock = clock
        self._batches: dict[str, _MemoryBatch] = {}
        self.workflows = MemoryWorkflows(self, clock)
        self.enqueued: list[Jid] = []
        """The ids of callbacks that were enqueued; the mode ``inline`` takes and runs them."""

    def clear(self) -> None:
        """Forget all batches."""
        self._batches.clear()
        self.workflows.clear()
        self.enqueued.clear()

    def fields(self, bid: str) -> tuple[dict[str, Any], int, int] | None:
        """Return the fields of a batch, and how many of its jobs failed and died; ``None`` for no batch."""
        found = self._batches.get(bid)
        return None if found is None else (found.fields, len(found.failed), len(found.dead))

    def bids(self) -> list[str]:
        """Return the ids of all batches."""
        return list(self._batches)

    def members(self, bid: str, kind: BatchMembers) -> list[str]:
        """Return a set of a batch."""
        return sorted(getattr(self._batches[bid], kind))

    def write(self, write: BatchWrite, add_jobs: Callable[[], list[list[Any]]]) -> BatchReply:
        """Create the batch if the write says so, count what ``add_jobs`` writes, and settle."""
        found = self._batches.get(write.bid)
        part_refused = self.workflows.refusal(write.part)
        if part_refused is not None:
            return BatchReply(part_refused, ())
        refused = self._refusal(found) if found is not None or write.create is None else None
        if refused is None and write.create is not None and write.create.parent:
            refused = self._refusal(self._batches.get(write.create.parent))
            if refused is not None:
                refused = PARENT_CANCELLED if refused == CANCELLED else NO_PARENT
        if refused is not None:
            return BatchReply(refused, ())
        if found is None:
            found = self._create(write)
            invalidated_at = self.workflows.invalidated_at(write.part)
            if invalidated_at is not None:
                found.fields["invalidated_at"] = float(invalidated_at)
        owners = add_jobs()
        added = len(write.payloads()) - len(owners)
        for name, number in (("total", added), ("pending", added), ("open", write.opens - write.closes)):
            found.add(name, number)
        self.workflows.written(write.part)
        self._settle(write.bid)
        return BatchReply(WRITTEN, owners)

    def keep_result(self, bid: str, jid: Jid, result: bytes) -> None:
        """Keep the place and the answer of a job that has succeeded. A fake has no limit of bytes."""
        found = self._batches.get(bid)
        if found is not None:
            found.results[jid.encode()] = result

    def results(self, bid: str) -> dict[bytes, bytes]:
        """Return the places and answers by the ids of the jobs."""
        found = self._batches.get(bid)
        return {} if found is None else dict(found.results)

    def count(self, bid: str, jid: Jid, end: JobEnd) -> None:
        """Count a move of a job of a batch."""
        found = self._batches.get(bid)
        if found is None:
            return
        match end:
            case "failed" | "revived":
                if jid in found.dead or end == "failed":
                    found.failed.add(jid)
                found.dead.discard(jid)
            case "dead":
                found.failed.discard(jid)
                found.dead.add(jid)
                self._note_death(found)
            case "removed":
                if jid in found.dead:
                    return
                found.failed.discard(jid)
                found.add("removed", 1)
            case _:
                found.failed.discard(jid)
                found.dead.discard(jid)
                found.add("pending", -1)
                found.add("total", -(end == "skipped"))
        self._settle(bid)

    def change(self, bid: str, action: BatchAction, event: str, callback: bytes) -> int:
        """See ``batch_change.lua``."""
        found = self._batches.get(bid)
        if found is None:
            return 0
        if action == "callback":
            if f"{event}_at" in found.fields:
                return -1
            found.fields[f"on_{event}"] = [*found.fields.get(f"on_{event}", []), loads(callback)]
            return 1
        if action == "delete":
            self._delete(bid, found)
            return 1
        found.fields.setdefault("invalidated_at", self._clock())
        if action == "cancel":
            for one in dict.fromkeys((*self.workflows.batch_cancelled(bid), bid)):
                self._cancel(one)
        return 1

    def _cancel(self, bid: str) -> None:
        found = self._batches.get(bid)
        if found is None or "success_at" in found.fields:
            return
        for name in ("invalidated_at", "cancelled_at"):
            found.fields.setdefault(name, self._clock())
        found.fields.pop("open", None)
        if "finished_at" not in found.fields:
            self._places.cancelled.add(bid)
        self._settle(bid)

    def _create(self, write: BatchWrite) -> _MemoryBatch:
        create = write.create
        assert create is not None, "the write creates the batch"  # noqa: S101
        fields: dict[str, Any] = {name: value for name, value in create.fields().items() if not name.startswith("on_")}
        fields |= {f"on_{event}": [one.encode() for one in callbacks] for event, callbacks in create.callbacks.items()}
        made = self._batches[write.bid] = _MemoryBatch({**fields, "created_at": self._clock(), "pending": 0})
        if create.parent:
            self._batches[create.parent].children.add(write.bid)
            self._batches[create.parent].add("children", 1)
        return made

    def _refusal(self, found: _MemoryBatch | None) -> int | None:
        if found is None:
            return UNKNOWN
        if "success_at" in found.fields:
            return SUCCEEDED
        return CANCELLED if "cancelled_at" in found.fields else None

    def _parent_of(self, found: _MemoryBatch) -> _MemoryBatch | None:
        return self._batches.get(found.fields.get("parent", ""))

    def _settle(self, bid: str) -> None:
        found = self._batches.get(bid)
        while found is not None and found.number("open") <= 0:
            children = found.number("children")
            unfinished = found.number("pending") - found.number("removed") - len(found.dead)
            reached = {
                "complete": unfinished - len(found.failed) <= 0,
                "success": found.number("pending") <= 0 and "cancelled_at" not in found.fields,
                "finished": unfinished <= 0,
            }
            for event in _SETTLED:
                ended = found.number(f"{event}_children") >= children
                if reached[event] and ended and f"{event}_at" not in found.fields:
                    self._fire(found, event)
                    if event == "finished":
                        self._places.cancelled.discard(bid)
            bid = str(found.fields.get("parent", ""))
            found = self._parent_of(found)

    def _note_death(self, found: _MemoryBatch | None) -> None:
        while found is not None and "death_at" not in found.fields:
            self._fire(found, "death")
            found = self._parent_of(found)

    def _fire(self, found: _MemoryBatch, event: str) -> None:
        now = found.fields[f"{event}_at"] = self._clock()
        callbacks = found.fields.get(f"on_{event}", [])
        for queue, payload in callbacks:
            times = {"created_at": now} if not queue else {"created_at": now, "enqueued_at": now}
            data = append_fields(payload.encode(), times)
            self._places.add("queue" if queue else "schedule", data, queue)
            self.enqueued.append(loads(data)["jid"])
        parent = self._parent_of(found)
        if parent is not None:
            parent.add("total", len(callbacks))
            parent.add("pending", len(callbacks))
            if event != "death":
                parent.add(f"{event}_children", 1)

    def _delete(self, bid: str, found: _MemoryBatch) -> None:
        del self._batches[bid]
        parent = self._parent_of(found)
        if parent is None:
            return
        parent.children.discard(bid)
        parent.add("children", -1)
        for event in _SETTLED:
            parent.add(f"{event}_children", -(f"{event}_at" in found.fields))
        self._settle(str(found.fields["parent"]))
