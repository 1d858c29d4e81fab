"""Count the batches of one shard in memory, by the rules of ``scripts/parts/batch.lua`` written once more."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from framework.features.batches.push import (
    CANCELLED,
    NO_PARENT,
    PARENT_CANCELLED,
    SUCCEEDED,
    UNKNOWN,
    WRITTEN,
    BatchReply,
    BatchWrite,
)
from framework.features.batches.store import BatchAction
from framework.types import Jid
from framework.wire.waiters import JobEnd

_SETTLED = ("complete", "success", "finished")
_NOW = 1.0


@dataclass(slots=True)
class _Batch:
    fields: dict[str, Any]
    failed: set[str] = field(default_factory=set[str])
    dead: set[str] = field(default_factory=set[str])
    children: set[str] = field(default_factory=set[str])

    def number(self, name: str) -> int:
        return int(self.fields.get(name, 0))

    def add(self, name: str, number: int) -> None:
        self.fields[name] = self.number(name) + number


class BatchModel:
    """The batches of one shard."""

    def __init__(self) -> None:
        self._batches: dict[str, _Batch] = {}
        self.enqueued: list[Jid] = []
        """The ids of callbacks that were enqueued."""

    def fields(self, bid: str) -> tuple[dict[str, Any], int, int] | None:
        """Return the fields of a batch, and how many of its jobs failed and died; ``None`` for no batch."""
        found = self._batches.get(bid)
        return None if found is None else (found.fields, len(found.failed), len(found.dead))

    def write(self, write: BatchWrite, add_jobs: Callable[[], list[list[Any]]]) -> BatchReply:
        """Create the batch if the write says so, count what ``add_jobs`` writes, and settle."""
        found = self._batches.get(write.bid)
        refused = self._refusal(found) if found is not None or write.create is None else None
        if refused is None and write.create is not None and write.create.parent:
            refused = self._refusal(self._batches.get(write.create.parent))
            if refused is not None:
                refused = PARENT_CANCELLED if refused == CANCELLED else NO_PARENT
        if refused is not None:
            return BatchReply(refused, ())
        if found is None:
            found = self._create(write)
        owners = add_jobs()
        added = len(write.payloads()) - len(owners)
        for name, number in (("total", added), ("pending", added), ("open", write.opens - write.closes)):
            found.add(name, number)
        self._settle(write.bid)
        return BatchReply(WRITTEN, owners)

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
        """See ``batches/change.lua``."""
        found = self._batches.get(bid)
        if found is None:
            return 0
        if action == "callback":
            if f"{event}_at" in found.fields:
                return -1
            found.fields[f"on_{event}"] = [*found.fields.get(f"on_{event}", []), json.loads(callback)]
            return 1
        if action == "delete":
            self._delete(bid, found)
            return 1
        found.fields.setdefault("invalidated_at", _NOW)
        if action == "cancel":
            self._cancel(bid)
        return 1

    def _cancel(self, bid: str) -> None:
        found = self._batches.get(bid)
        if found is None or "success_at" in found.fields:
            return
        for name in ("invalidated_at", "cancelled_at"):
            found.fields.setdefault(name, _NOW)
        found.fields.pop("open", None)
        self._settle(bid)

    def _create(self, write: BatchWrite) -> _Batch:
        create = write.create
        assert create is not None, "the write creates the batch"
        fields: dict[str, Any] = {name: value for name, value in create.fields().items() if not name.startswith("on_")}
        fields |= {f"on_{event}": [one.encode() for one in callbacks] for event, callbacks in create.callbacks.items()}
        made = self._batches[write.bid] = _Batch({**fields, "created_at": _NOW, "pending": 0})
        if create.parent:
            self._batches[create.parent].children.add(write.bid)
            self._batches[create.parent].add("children", 1)
        return made

    def _refusal(self, found: _Batch | None) -> int | None:
        if found is None:
            return UNKNOWN
        if "success_at" in found.fields:
            return SUCCEEDED
        return CANCELLED if "cancelled_at" in found.fields else None

    def _parent_of(self, found: _Batch) -> _Batch | None:
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
            bid = str(found.fields.get("parent", ""))
            found = self._parent_of(found)

    def _note_death(self, found: _Batch | None) -> None:
        while found is not None and "death_at" not in found.fields:
            self._fire(found, "death")
            found = self._parent_of(found)

    def _fire(self, found: _Batch, event: str) -> None:
        found.fields[f"{event}_at"] = _NOW
        callbacks = found.fields.get(f"on_{event}", [])
        self.enqueued += [json.loads(payload)["jid"] for _, payload in callbacks]
        parent = self._parent_of(found)
        if parent is not None:
            parent.add("total", len(callbacks))
            parent.add("pending", len(callbacks))
            if event != "death":
                parent.add(f"{event}_children", 1)

    def _delete(self, bid: str, found: _Batch) -> None:
        del self._batches[bid]
        parent = self._parent_of(found)
        if parent is None:
            return
        parent.children.discard(bid)
        parent.add("children", -1)
        for event in _SETTLED:
            parent.add(f"{event}_children", -(f"{event}_at" in found.fields))
        self._settle(str(found.fields["parent"]))
