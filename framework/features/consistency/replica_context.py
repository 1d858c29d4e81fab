"""Keep the replicas that a job reads from, per database, in its context: threads that it starts inherit them."""

from collections.abc import Mapping
from contextvars import ContextVar, Token

from framework.features.consistency.databases import DatabaseServer


class ReplicaContext:
    """The replicas chosen for a job. All copies of its context share one object, so a write in one thread counts in all."""

    __slots__ = ("parent", "replicas")

    def __init__(self, replicas: Mapping[str, DatabaseServer], parent: "ReplicaContext | None") -> None:
        self.replicas = dict(replicas)
        self.parent = parent


_current: ContextVar[ReplicaContext | None] = ContextVar("aw_reads", default=None)


def replica_of(database: str) -> DatabaseServer | None:
    """Return the replica chosen for this context, ``None`` for the primary. Outside of a job it is always the primary."""
    found = _current.get()
    return None if found is None else found.replicas.get(database)


def discard(database: str) -> None:
    """Drop the replica of this context: from now on every query goes to the primary."""
    found = _current.get()
    if found is not None:
        found.replicas.pop(database, None)


def mark_written(database: str) -> None:
    """Record a write: from now on every query goes to the primary, in this context and in the enclosing ones."""
    found = _current.get()
    while found is not None:
        found.replicas.pop(database, None)
        found = found.parent


def use(replicas: Mapping[str, DatabaseServer]) -> "Token[ReplicaContext | None]":
    """Send the reads of this context to these replicas, and those of all other databases to the primary."""
    return _current.set(ReplicaContext(replicas, _current.get()))


def restore(token: "Token[ReplicaContext | None]") -> None:
    """Undo ``use``."""
    _current.reset(token)
