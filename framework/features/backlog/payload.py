"""Let the step that ends a counted job count it no more."""

from typing import TYPE_CHECKING, NamedTuple

from framework.wire.accepted import ACCEPTED

# The record of the backlog needs the names only.
if TYPE_CHECKING:
    from framework.types import Jid, Payload
    from framework.wire.waiters import JobEnd, Waiter


class Counted(NamedTuple):
    """A counted job: its class, and the bytes that are counted for it."""

    worker: str
    bytes: int


class AcceptedWaiter:
    """The counts of accepted jobs. The Lua function is in ``scripts/parts/accepted.lua``."""

    def read(self, payload: "Payload") -> Counted | None:
        size, worker = payload.get(ACCEPTED), payload.get("class")
        return Counted(worker, size) if type(size) is int and size >= 0 and isinstance(worker, str) else None

    def wants_answer(self, value: Counted) -> bool:
        del value
        return False

    def named(self, value: Counted, answer: str) -> str:
        del value
        return answer

    def told(self, value: Counted, jid: "Jid", end: "JobEnd", answer: str) -> list[str] | None:
        """Return the arguments of the function; ``None`` for a job that counts as before: it will run again, or had died before."""
        del jid, answer
        if end in ("failed", "deleted"):
            return None
        return [value.worker, str(value.bytes), "1" if end == "revived" else "-1"]


WAITER: "Waiter[Counted]" = AcceptedWaiter()
