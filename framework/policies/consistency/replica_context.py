"""What a piece of work reads from, per database: kept in its context, so each job has its own and takes it along into threads."""

from collections.abc import Mapping
from contextvars import ContextVar, Token

from framework.policies.consistency.servers import DatabaseServer


class ReplicaContext:
    """The replicas chosen for a piece of work. One object for all copies of its context, so that a write counts in all."""

    __slots__ = ("parent", "replicas")

    def __init__(self, replicas: Mapping[str, DatabaseServer], parent: "ReplicaContext | None") -> None:
        self.replicas = dict(replicas)
        self.parent = parent


_current: ContextVar[ReplicaContext | None] = ContextVar("aw_reads", default=None)


def replica_of(database: str) -> DatabaseServer | None:
    """Return the replica chosen here and now, None for the primary: outside of a job that has one, it always is."""
    found = _current.get()
    return None if found is None else found.replicas.get(database)


def discard(database: str) -> None:
    """The replica chosen here is of no use: from now on every query goes to the primary."""
    found = _current.get()
    if found is not None:
        found.replicas.pop(database, None)


def mark_written(database: str) -> None:
    """Something was written to the primary: from now on every query goes there, here and in whatever is around it."""
    found = _current.get()
    while found is not None:
        found.replicas.pop(database, None)
        found = found.parent


def use(replicas: Mapping[str, DatabaseServer]) -> "Token[ReplicaContext | None]":
    """From now on reads in this context go to these replicas, and of all other databases to the primary."""
    return _current.set(ReplicaContext(replicas, _current.get()))


def restore(token: "Token[ReplicaContext | None]") -> None:
    """Reads go where they went before ``use``."""
    _current.reset(token)
