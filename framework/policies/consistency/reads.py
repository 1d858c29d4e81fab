"""What a piece of work reads from, per database: kept in its context, so each job has its own and takes it along into threads."""

from collections.abc import Mapping
from contextvars import ContextVar, Token

from framework.policies.consistency.servers import Server


class Reads:
    """The replicas chosen for a piece of work. One object for all copies of its context, so that a write counts in all."""

    __slots__ = ("outer", "replicas")

    def __init__(self, replicas: Mapping[str, Server], outer: "Reads | None") -> None:
        self.replicas = dict(replicas)
        self.outer = outer


_reads: ContextVar[Reads | None] = ContextVar("aw_reads", default=None)


def replica_of(database: str) -> Server | None:
    """Return the replica chosen here and now, None for the primary: outside of a job that has one, it always is."""
    found = _reads.get()
    return None if found is None else found.replicas.get(database)


def lost(database: str) -> None:
    """The replica chosen here is of no use: from now on every query goes to the primary."""
    found = _reads.get()
    if found is not None:
        found.replicas.pop(database, None)


def wrote(database: str) -> None:
    """Something was written to the primary: from now on every query goes there, here and in whatever is around it."""
    found = _reads.get()
    while found is not None:
        found.replicas.pop(database, None)
        found = found.outer


def enter(replicas: Mapping[str, Server]) -> "Token[Reads | None]":
    """From now on reads in this context go to these replicas, and of all other databases to the primary."""
    return _reads.set(Reads(replicas, _reads.get()))


def leave(token: "Token[Reads | None]") -> None:
    """Reads go where they went before ``enter``."""
    _reads.reset(token)
