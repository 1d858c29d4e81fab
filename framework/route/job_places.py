"""Choose the shard of each job of a class whose jobs are on several shards: it names several, or a part of its jobs moves."""

from framework.declare.spread import Spread
from framework.route.route_moves import MovableJob, RouteMoves


class JobPlaces:
    """Choose shards by the keys of jobs. A key is the lock key of a job, so that equal jobs meet on one shard, else its id."""

    def __init__(self, moves: RouteMoves, job: MovableJob, shard: str, several: Spread | None) -> None:
        """``shard`` is that of the route of the class, of whose jobs ``job`` is one."""
        self._moves = moves
        self._job = job
        self._first = shard
        self._several = several
        names = (shard,) if several is None else several.shards
        self.shards: tuple[str, ...] = tuple(
            dict.fromkeys(one for name in names for one in sorted(moves.reachable(job, name)))
        )

    def shard_of(self, key: str) -> str:
        shard = self._first if self._several is None else self._several.shard_of(key)
        return self._moves.shard_of(self._job._replace(key=key), shard)
