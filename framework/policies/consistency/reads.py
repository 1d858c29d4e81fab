"""What a piece of work reads from, per database: kept in its context, so each job has its own and takes it along into threads."""

from collections.abc import Mapping
from contextvars import ContextVar, Token

from framework.policies.consistency.servers import Server


class Reads:
    """The replicas chosen for a piece of work. One object for all copies of its context, so that a write counts in all."""

    __slots__ = ("_outer", "_replicas")

    def __init__(self, replicas: Mapping[str, Server], outer: "Reads | None") -> None:
        self._replicas = dict(replicas)
        self._outer = outer

    def replica_of(self, database: str) -> Server | None:
        """Return the replica that reads go to, None for the primary."""
        return self._replicas.get(database)

    def use_primary(self, database: str) -> None:
        """From now on every query goes to the primary: something was written there, or the replica is lost."""
        self._replicas.pop(database, None)
        if self._outer is not None:
            self._outer.use_primary(database)


_reads: ContextVar[Reads | None] = ContextVar("aw_reads", default=None)


def replica_of(database: str) -> Server | None:
    """Return the replica chosen here and now, None for the primary: outside of a job that has one, it always is."""
    found = _reads.get()
    return None if found is None else found.replica_of(database)


def use_primary(database: str) -> None:
    """See ``Reads.use_primary``; nothing happens where no replica was chosen."""
    found = _reads.get()
    if found is not None:
        found.use_primary(database)


def enter(replicas: Mapping[str, Server]) -> "Token[Reads | None]":
    """From now on reads in this context go to these replicas, and of all other databases to the primary."""
    return _reads.set(Reads(replicas, _reads.get()))


def leave(token: "Token[Reads | None]") -> None:
    """Reads go where they went before ``enter``."""
    _reads.reset(token)
