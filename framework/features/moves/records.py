"""Read and write the record of a move. Every shard has a copy; that of the greatest epoch counts."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeAlias, cast, get_args

import redis

from framework.features.moves import keys
from framework.route.route_moves import MoveEpoch, MoveKind, RouteMove
from framework.shard.shard import Shard
from framework.store.script import write_when_full
from framework.wire.json import dumps, loads_object

MoveState: TypeAlias = Literal["moving", "moved", "undoing", "undone"]
"""``moving``: jobs that wait are being moved. ``moved``: none is left; jobs that still arrive are forwarded. ``undoing``: they are
being moved back. ``undone``: no job is moved any more.
"""


@dataclass(frozen=True, slots=True)
class MoveRecord:
    """One move. An undone move has its shards in reverse: what it moves goes back."""

    id: str
    kind: MoveKind
    name: str
    source: str
    target: str
    percent: int
    epoch: int
    state: MoveState
    total: int = 0
    """How many jobs waited when the move, or its reversal, began."""
    before: int = 0
    """How many jobs the new source had sent away by this move before its reversal began."""
    began: float = 0.0
    """Epoch seconds."""

    @property
    def what(self) -> str:
        """What moves, for people."""
        part = "" if self.percent >= 100 else f" ({self.percent} %)"
        return f"{self.kind} {self.name}{part}"

    @property
    def in_force(self) -> bool:
        return self.state != "undone"

    @property
    def is_undo(self) -> bool:
        return self.state in ("undoing", "undone")

    @property
    def route_move(self) -> RouteMove:
        return RouteMove(self.id, self.kind, self.name, self.source, self.target, self.percent, self.is_undo)

    @property
    def move_epoch(self) -> MoveEpoch:
        return MoveEpoch(self.id, self.epoch, self.route_move if self.in_force else None)

    def reversed_at(self, epoch: int) -> "MoveRecord":
        """Return the record of the move back."""
        return replace(self, source=self.target, target=self.source, epoch=epoch, state="undoing")


def read_moves(shard: Shard) -> Iterator[MoveEpoch]:
    """Yield the moves that a shard knows. Raises ShardUnavailableError."""
    return (one.move_epoch for one in _decoded(shard.read("HVALS", keys.MOVES)))


def read_records(client: "redis.Redis") -> dict[str, MoveRecord]:
    """Return the moves that a shard knows, by their ids. Raises redis errors."""
    values: Any = client.hvals(keys.MOVES)
    return {one.id: one for one in _decoded(values)}


def latest(found: Iterable[Mapping[str, MoveRecord]]) -> dict[str, MoveRecord]:
    """Return of each move the record of the greatest epoch."""
    newest: dict[str, MoveRecord] = {}
    for records in found:
        for one in records.values():
            if one.id not in newest or newest[one.id].epoch < one.epoch:
                newest[one.id] = one
    return newest


def write_record(client: "redis.Redis", record: MoveRecord) -> None:
    """Write a record, also where Redis is full. Raises redis errors."""
    write_when_full(client, ("HSET", keys.MOVES, record.id, dumps(asdict(record))))


def _decoded(values: Iterable[Any]) -> Iterator[MoveRecord]:
    """Yield the records; what another program has written there is none."""
    for value in values:
        found = loads_object(value) if isinstance(value, bytes) else {}
        try:
            record = MoveRecord(**found)
        except TypeError:
            continue
        if _is_valid(record):
            yield record


def _is_valid(record: MoveRecord) -> bool:
    texts: tuple[Any, ...] = (record.id, record.name, record.source, record.target)
    numbers: tuple[Any, ...] = (record.percent, record.epoch, record.total, record.before)
    return (
        all(isinstance(one, str) for one in texts)
        and all(isinstance(one, int) for one in numbers)
        and isinstance(cast("Any", record.began), int | float)
        and record.kind in get_args(MoveKind)
        and record.state in get_args(MoveState)
    )
