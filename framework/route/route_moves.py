"""Decide to which shard the jobs of a moved class, queue, namespace or shard go now.

The rules in ``config/routing.yml`` stay as they are: a move sends what they, a class or a push send to one shard to another one.
"""

import zlib
from collections.abc import Container, Iterable
from typing import Literal, NamedTuple, TypeAlias

from framework.wire.sub_queues import parent_of

MoveKind: TypeAlias = Literal["class", "queue", "namespace", "shard"]
"""What a move is about: the jobs of a class, of a queue, of a namespace, or all jobs of a shard."""

NAMESPACE_SEPARATOR = ":"


class MovableJob(NamedTuple):
    """What decides whether a move covers a job: its class, its queue, and its id."""

    worker: str
    queue: str
    namespace: str | None = None
    """The namespace of the class; ``None`` if the class is not known here, then the name of the queue says it."""
    key: str | None = None
    """What decides whether the job is of a moved part: its lock key, so that equal jobs stay together, else its id. ``None`` before
    the job has one: then a move of a part of the jobs does not cover it."""


class RouteMove(NamedTuple):
    """One move: the jobs that it covers go from the shard ``source`` to the shard ``target``."""

    id: str
    kind: MoveKind
    name: str
    source: str
    target: str
    percent: int = 100
    is_undo: bool = False
    """Whether it moves back what another one has moved, whatever the rules say about its source."""

    def covers(self, job: MovableJob) -> bool:
        return self.concerns(job) and self._takes(job.key)

    def concerns(self, job: MovableJob) -> bool:
        """Return whether the move covers the job, or would with 100 percent."""
        if self.kind == "class":
            return job.worker == self.name
        if self.kind == "queue":
            return parent_of(job.queue) == self.name
        if self.kind == "namespace":
            if job.namespace is not None:
                return job.namespace == self.name
            return job.queue == self.name or job.queue.startswith(self.name + NAMESPACE_SEPARATOR)
        return True

    def _takes(self, key: str | None) -> bool:
        """Return whether the job is of the moved part, for which every process and every repetition agrees."""
        if self.percent >= 100:
            return True
        return key is not None and zlib.crc32(key.encode(errors="replace")) % 100 < self.percent


class RouteMoves:
    """All moves in force, in the order in which they were made."""

    def __init__(self, moves: Iterable[RouteMove] = ()) -> None:
        self._moves = tuple(moves)

    def __bool__(self) -> bool:
        return bool(self._moves)

    def among(self, shards: Container[str]) -> "RouteMoves":
        """Return the moves to these shards. The settings of a process may be older than a shard."""
        return RouteMoves(move for move in self._moves if move.target in shards)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RouteMoves) and self._moves == other._moves

    def __hash__(self) -> int:
        return hash(self._moves)

    def shard_of(self, job: MovableJob, shard: str) -> str:
        """Return the shard of a job that would be on ``shard`` without moves."""
        return self.last_move(job, shard)[0]

    def reachable(self, job: MovableJob, shard: str) -> set[str]:
        """Return the shards on which such jobs may be that would be on ``shard`` without moves, whatever their keys."""
        found = {shard}
        for move in self._moves:
            if move.source in found and move.concerns(job):
                found.add(move.target)
                if move.percent >= 100:
                    found.remove(move.source)
        return found

    def former_shards(self, job: MovableJob, first: Iterable[str], shard: str) -> list[str]:
        """Return the shards from which such jobs move to ``shard``, which would be on ``first`` without moves, in their order."""
        ways: dict[str, list[str]] = {name: [] for name in first}
        ways |= {move.source: [] for move in self._moves if move.is_undo and move.concerns(job)}
        for move in self._moves:
            if move.source in ways and move.concerns(job):
                way = [*ways.get(move.target, ()), *ways[move.source], move.source]
                ways[move.target] = [name for name in dict.fromkeys(way) if name != move.target]
        return ways.get(shard, [])

    def last_move(self, job: MovableJob, shard: str) -> tuple[str, RouteMove | None]:
        """Return the shard of a job, and the first move that takes it from ``shard``; ``None`` if it stays there."""
        first: RouteMove | None = None
        for move in self._moves:
            if move.source == shard and move.covers(job):
                shard = move.target
                first = first or move
        return shard, first


class MoveEpoch(NamedTuple):
    """One move as a shard has it: ``move`` is ``None`` once it is no longer in force. The greater epoch is the later one."""

    id: str
    epoch: int
    move: RouteMove | None


class KnownMoves:
    """The moves that a process has read, from any shards: of each the latest epoch. Safe from any thread."""

    def __init__(self) -> None:
        self._found: dict[str, MoveEpoch] = {}
        self.moves = RouteMoves()
        """Those in force, the earliest epoch first."""

    def note(self, found: Iterable[MoveEpoch]) -> bool:
        """Note what a shard has; return whether the moves in force have changed."""
        # A copy: another thread may note what a second shard has. The next read finds what is overwritten here.
        known = dict(self._found)
        for one in found:
            if one.id not in known or known[one.id].epoch < one.epoch:
                known[one.id] = one
        self._found = known
        in_force = sorted((one.epoch, one.id, one.move) for one in known.values() if one.move is not None)
        moves = RouteMoves(move for _, _, move in in_force)
        changed, self.moves = moves != self.moves, moves
        return changed
