"""Read the waiters for the end of a job. The script that ends the job tells it, by the functions that features name (``Hold``)."""

from functools import cache
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

from framework.feature import features
from framework.types import Jid, Payload

JobEnd: TypeAlias = Literal["done", "failed", "dead", "removed", "skipped", "revived", "deleted", ""]
"""The word by which the waiters of a job learn of its move: it ended, failed and will run again, waits again after its death, or was
deleted after it.

Empty for a move that is no end: no waiter learns of it.
"""

V = TypeVar("V")


@runtime_checkable
class Waiter(Protocol[V]):
    """What a feature does for the jobs that it waits for. ``V`` is what the payload says about it."""

    def read(self, payload: Payload) -> V | None:
        """Return what the payload says; ``None`` for a field of another form, or of another program."""
        ...

    def wants_answer(self, value: V) -> bool:
        """Return whether the waiter gets the answer of the job: its result, or the reason for a missing one."""
        ...

    def named(self, value: V, answer: str) -> str:
        """Return the answer with what its signature must cover besides the id of the job."""
        ...

    def told(self, value: V, jid: Jid, end: JobEnd, answer: str) -> list[str] | None:
        """Return the arguments of its Lua function; ``None`` if this move does not concern it."""
        ...


class AwaitedJob(NamedTuple):
    """A job for whose end something waits."""

    jid: Jid
    waiters: tuple[tuple[str, Waiter[Any], Any], ...]
    """Of each waiter its name in what the job holds, and what the payload says to it."""
    answer: str = ""
    """The answer of the job (``wire/answers.py``); empty if the script writes it, from the word of the end."""

    @property
    def keeps_answer(self) -> bool:
        """Whether a waiter gets the answer of the job."""
        return any(waiter.wants_answer(value) for _, waiter, value in self.waiters)

    @property
    def stays(self) -> bool:
        """Whether the job stays on its shard, because one of its waiters is there."""
        return bool(self._names & _names_of(stays=True))

    @property
    def may_move(self) -> bool:
        """Whether the job may move to another shard with its waiters: those that are bound to this shard are found on any."""
        return not (self._names & _names_of(stays=True)) - _names_of(follows=True)

    @property
    def parted(self) -> "AwaitedJob | None":
        """The job with those waiters that learn of it when it leaves its shard; ``None`` without any."""
        told = self._names - _names_of(stays=True)
        return self._replace(waiters=tuple(one for one in self.waiters if one[0] in told)) if told else None

    @property
    def _names(self) -> frozenset[str]:
        return frozenset(name for name, _, _ in self.waiters)

    def told(self, end: JobEnd) -> dict[str, list[str]]:
        """Return the messages to the waiters by their names, a part of the holds of the job (``parts/release.lua``)."""
        found: dict[str, list[str]] = {}
        for name, waiter, value in self.waiters:
            words = waiter.told(value, self.jid, end, self.answer)
            if words is not None:
                found[name] = words
        return found

    def named_answer(self) -> str:
        """Return the answer as it is signed."""
        answer = self.answer
        for _, waiter, value in self.waiters:
            answer = waiter.named(value, answer)
        return answer


@cache
def _names_of(*, stays: bool = False, follows: bool = False) -> frozenset[str]:
    """Return the names of the waiters that have one of these marks."""
    holds = (hold for one in features() for hold in one.holds)
    return frozenset(hold.name for hold in holds if (stays and hold.stays) or (follows and hold.follows))


@cache
def held_fields() -> frozenset[str]:
    """Return the payload fields of jobs for whose end something waits."""
    return frozenset(hold.field for one in features() for hold in one.holds)


@cache
def _holds() -> tuple[tuple[str, str, Waiter[Any], int, bool], ...]:
    holds = (hold for one in features() for hold in one.holds)
    return tuple((hold.field, hold.name, hold.waiter.load(), hold.keeps_state_s, hold.stays) for hold in holds)


def awaited_job_of(payload: Payload | None) -> AwaitedJob | None:
    """Return the job if something waits for its end; ``None`` for any other, or without an id."""
    # Almost no payload has one of the fields: the check is cheaper than the loop.
    if payload is None or payload.keys().isdisjoint(held_fields()):
        return None
    jid = payload.get("jid")
    if not isinstance(jid, str) or not jid:
        return None
    found: list[tuple[str, Waiter[Any], Any]] = []
    for field, name, waiter, *_ in _holds():
        if field in payload and (value := waiter.read(payload)) is not None:
            found.append((name, waiter, value))
    return AwaitedJob(jid, tuple(found)) if found else None


def leave_waiters(payload: Payload) -> None:
    """Remove from the payload of a job that leaves for another shard the fields of the waiters that do not keep it."""
    for field, *_, stays in _holds():
        if not stays:
            payload.pop(field, None)


def kept_state_s(payload: Payload) -> int:
    """Return for how many seconds the state of a job lives at least because something waits for its end; 0 for any time."""
    if payload.keys().isdisjoint(held_fields()):
        return 0
    return max((seconds for field, _, _, seconds, _ in _holds() if field in payload), default=0)
