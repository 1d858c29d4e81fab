"""Begin, carry on, end and reverse moves between shards: the records on all shards, and the movers that follow them."""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from redis.exceptions import RedisError

from framework.errors import MoveRefusedError, TargetRefusedError
from framework.features.moves import keys
from framework.features.moves.mover import (
    Deliverer,
    MoveProgress,
    Mover,
    places_left,
    put_back,
    restore,
)
from framework.features.moves.records import MoveRecord, MoveState, latest, read_records, write_record
from framework.route.route_moves import KnownMoves, MoveKind, RouteMove, RouteMoves
from framework.shard.shard import MOVES_AGE_S, Shard
from framework.store.connect import server_time

SETTLED_S = MOVES_AGE_S + 1.5
"""How long after its publication every process that runs follows a move."""

_ENDS: Mapping[MoveState, MoveState] = {"moving": "moved", "undoing": "undone"}


class MoveCounts(NamedTuple):
    """How many jobs a move has moved, and how many are left on its source."""

    moved: int
    left: int


class ShardMoves:
    """The moves between these shards, as they were read. For one thread."""

    def __init__(self, shards: Mapping[str, Shard]) -> None:
        self._shards = shards
        self._records: dict[str, MoveRecord] = {}

    def read(self) -> None:
        """Read the records of all shards. Raises redis errors."""
        self._records = latest([self._records, *(read_records(shard.client) for shard in self._shards.values())])

    @property
    def records(self) -> list[MoveRecord]:
        """All records, the earliest first."""
        return sorted(self._records.values(), key=lambda one: (one.epoch, one.id))

    def find(self, move: str) -> MoveRecord | None:
        return self._records.get(move)

    @property
    def route_moves(self) -> RouteMoves:
        """The moves in force."""
        known = KnownMoves()
        known.note(one.move_epoch for one in self._records.values())
        return known.moves

    def same_as(self, move: RouteMove) -> MoveRecord | None:
        """Return the record in force of the same jobs between the same shards, whatever their part."""
        return next(
            (
                one
                for one in self.records
                if one.in_force
                and not one.is_undo
                and one.route_move._replace(id=move.id, percent=move.percent) == move
            ),
            None,
        )

    def new(self, kind: MoveKind, name: str, source: str, target: str, percent: int) -> MoveRecord:
        """Return a record that is not published yet: that of the same move, if there is one, else another.

        Raises:
            MoveRefusedError: a move in force takes such jobs away from the target.
        """
        wanted = RouteMove(uuid.uuid4().hex[:8], kind, name, source, target, percent)
        known = self.same_as(wanted)
        if known is not None:
            if known.percent == percent:
                return known
            return replace(known, percent=percent, epoch=self._next_epoch(), state="moving")
        for one in self.records:
            if one.in_force and one.source == target and _may_overlap(one.route_move, wanted):
                way_out = "wait for its end" if one.is_undo else f"end it with `shards undo {one.id}`"
                raise MoveRefusedError(
                    f"the move {one.id} takes jobs of {one.what} away from {target} ({one.state}), so they would not stay there: "
                    f"{way_out}, then run the command again."
                )
        return MoveRecord(wanted.id, kind, name, source, target, percent, self._next_epoch(), "moving")

    def with_record(self, record: MoveRecord) -> RouteMoves:
        """Return the moves in force as they would be with this record."""
        known = KnownMoves()
        known.note(one.move_epoch for one in [*self._records.values(), record])
        return known.moves

    def publish(
        self, record: MoveRecord, tell: Callable[[str, BaseException], None] = lambda _name, _error: None
    ) -> None:
        """Write a record on all shards: on its source last, where producers look for it.

        ``tell`` is called for another shard that does not answer. Raises the redis errors of the two shards of the move.
        """
        others = [name for name in self._shards if name not in (record.source, record.target)]
        for name in [*others, record.target, record.source]:
            try:
                write_record(self._shards[name].client, record)
            except (RedisError, OSError) as error:
                if name not in others:
                    raise
                tell(name, error)
        self._records[record.id] = record

    def begun(self, record: MoveRecord, total: int) -> MoveRecord:
        """Return the record of a move, or of its reversal, that begins now and has ``total`` jobs to move. Raises redis errors."""
        source = self._shards[record.source].client
        return replace(record, total=total, before=self._count(record), began=server_time(source))

    def reversed(self, record: MoveRecord) -> MoveRecord:
        """Return the record of the move back of a move, which is not published yet."""
        return record.reversed_at(self._next_epoch())

    def run(self, record: MoveRecord, progress: MoveProgress, rate: float | None = None) -> int:
        """Move what waits, once through all places of the source; return how many jobs have moved. Raises as ``Mover.run``."""
        source, target = self._shards[record.source], self._shards[record.target]
        if record.is_undo:
            self._take_back(record, progress)
        return Mover(record, self.route_moves, source, target, progress, rate).run()

    def end(self, record: MoveRecord) -> MoveRecord:
        """Publish that no job of a move is left on its source, and return its record. Raises redis errors."""
        ended = replace(record, state=_ENDS.get(record.state, record.state), epoch=self._next_epoch())
        self.publish(ended)
        return ended

    def is_settled(self, record: MoveRecord) -> bool:
        """Return whether every process that runs follows the move. Raises redis errors."""
        return server_time(self._shards[record.source].client) - record.began >= SETTLED_S

    def is_current(self, record: MoveRecord) -> bool:
        """Return whether the source has no later record of the move. Raises redis errors."""
        found = read_records(self._shards[record.source].client).get(record.id)
        return found is None or found.epoch <= record.epoch

    def counts(self, record: MoveRecord) -> MoveCounts:
        """Return the progress of a move. Raises redis errors."""
        leaving = sum(places_left(self._shards[record.source].client, record.id).values())
        moved = self._count(record)
        waiting = record.total - (moved - record.before) if record.state in _ENDS else 0
        return MoveCounts(moved, max(leaving, waiting))

    def _take_back(self, record: MoveRecord, progress: MoveProgress) -> None:
        """Put back what was leaving the former source when its move was reversed. A page in flight goes on, and comes back."""
        source, target = self._shards[record.source], self._shards[record.target]
        put_back(target.client, record)
        onward = Deliverer(record, target, source, MoveProgress(quota=progress.quota))
        for place, leaving in places_left(target.client, record.id).items():
            if leaving:
                restore(target.client, record.id, place)
                try:
                    onward.deliver(place)
                except TargetRefusedError:
                    restore(target.client, record.id, place)

    def _count(self, record: MoveRecord) -> int:
        found: Any = self._shards[record.source].client.hget(keys.MOVED_COUNTS, record.id)
        return int(found) if found is not None and found.isdigit() else 0

    def _next_epoch(self) -> int:
        return 1 + max((one.epoch for one in self._records.values()), default=0)


def check_distinct(shards: Sequence[Shard]) -> None:
    """Refuse two names of one Redis: a job would be written there, and then removed. Raises redis errors.

    Raises:
        MoveRefusedError: two of the shards are the same database of one server.
    """
    seen: dict[tuple[Any, ...], str] = {}
    for shard in shards:
        server: Any = shard.client.info("server")
        database: Any = shard.client.connection_pool.connection_kwargs.get("db", 0)
        other = seen.setdefault((server["run_id"], database, shard.endpoint.prefix), shard.name)
        if other != shard.name:
            raise MoveRefusedError(
                f"{other} and {shard.name} are two names of one Redis ({shard.endpoint.shown}): correct the url of one of them in "
                "config/redis.yml."
            )


def _may_overlap(one: RouteMove, other: RouteMove) -> bool:
    """Return whether a job may be covered by both moves: moves of one kind tell by their names."""
    return one.kind != other.kind or one.name == other.name or one.kind == "shard"


def passes(
    moves: ShardMoves, record: MoveRecord, progress: MoveProgress, rate: float | None, wait_s: float
) -> Iterator[int]:
    """Run a move until no job is left and every process follows it; yield after each pass how many jobs have moved.

    Raises as ``ShardMoves.run``.
    """
    while not progress.quota.stopped and moves.is_current(record):
        moved = moves.run(record, progress, rate)
        yield moved
        if not moved:
            if moves.is_settled(record):
                return
            time.sleep(wait_s)
