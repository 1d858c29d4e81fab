"""Describe jobs that wait in the schedule set for further pushes: a debounced job is replaced, an accumulating one is extended.

``push_window.lua`` writes them.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from framework.types import Jid
from framework.wire.json import dumps, dumps_known, loads
from framework.wire.resources import LockDetails, UniqueJobs, milliseconds

WindowMode: TypeAlias = Literal["debounce", "accumulate"]

WAITING_PAYLOAD = "member"
"""Field of a lock: the payload of the job that waits in the schedule set. A push finds the job there by it."""

_ARGS = b'"args":'


class WindowTerms(NamedTuple):
    """Hold what the window jobs of one class share."""

    worker: str
    ttl_s: float
    mode: WindowMode
    max_window_s: float
    """A debounced job is due at the latest this long after the first push of its window; 0: no maximum."""
    max_items: int
    """The most items that an accumulating job may have."""
    max_bytes: int
    """The most bytes that the payload of an accumulating job may have."""
    counter: str

    def encode(self, details: LockDetails) -> tuple[str | int | bytes, ...]:
        """Return the arguments of ``push_window.lua`` that all of its jobs share, with the details of all jobs."""
        bounds = (f"{self.max_window_s:.6f}", self.max_items, self.max_bytes)
        return (self.worker, milliseconds(self.ttl_s), self.mode, *bounds, self.counter, details.encode())


class WindowJobs(UniqueJobs):
    """Hold the jobs of one step of ``push_window.lua``, all of one class."""

    __slots__ = ()

    @property
    def mode(self) -> WindowMode:
        """The effect of a push on the job that waits."""
        return "accumulate" if self.terms[2] == "accumulate" else "debounce"

    def arguments(self, start: int, count: int) -> tuple[Any, ...]:
        """Return the arguments of the script for ``count`` of the jobs from ``start`` on: terms, names, payloads, details."""
        part = slice(start, start + count)
        payloads, jids = self.payloads[part], self.jids[part]
        places = [items_place(one) for one in payloads] if self.mode == "accumulate" else []
        names = dumps_known([*self.lock_keys[part], *jids, *places])
        return (*self.terms, names, *payloads, *self.details[part])

    def carriers(self, found: Sequence[Jid]) -> list[Jid]:
        """Return for each job the id of the job that carries its arguments, from the answers of the script."""
        if self.mode == "debounce":
            return list(self.jids)
        return [other or jid for other, jid in zip(found, self.jids, strict=True)]

    def ended(self, found: Sequence[Jid]) -> list[tuple[Jid, Jid, bytes]]:
        """Return (id of a job that does not run, id of the job that runs in its place, payload of this push), one per answer."""
        pairs = zip(found, self.jids, self.payloads, strict=True)
        if self.mode == "debounce":
            return [(other, jid, data) for other, jid, data in pairs if other]
        return [(jid, other, data) for other, jid, data in pairs if other]


def items_place(payload: bytes) -> str:
    """Return where the items of the last argument, a list, stand in a payload: ``start,end,count``; empty if it has no such list.

    Compressed arguments have none.
    """
    args: Any = loads(payload, None).get("args")
    arguments = cast("list[Any]", args) if isinstance(args, list) else []
    last: Any = arguments[-1] if arguments else None
    if not isinstance(last, list):
        return ""
    items = cast("list[Any]", last)
    count, length = len(items), len(dumps(items))
    text = dumps(arguments)
    at = payload.find(_ARGS + text)
    # Without the text in this place the payload reads otherwise: another field may hold the same bytes.
    end = at + len(_ARGS) + len(text)
    if at < 0 or loads(payload[: at + len(_ARGS)] + b"null" + payload[end:], None).get("args", 0) is not None:
        return ""
    # Behind the items stand the brackets of the list and of the arguments.
    items_end = end - 2
    return f"{items_end - (length - 2)},{items_end},{count}"
