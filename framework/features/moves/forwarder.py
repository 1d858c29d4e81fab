"""Forward what still arrives at the old shard of a move, and carry on a move without a mover."""

import time
from collections.abc import Iterable
from typing import NamedTuple

from redis.exceptions import RedisError

from framework.errors import FrameworkError
from framework.features.moves.mover import MoveProgress
from framework.features.moves.moves import ShardMoves
from framework.features.moves.records import MoveRecord
from framework.process.worker_parts import ProcessContext
from framework.shard.shards import Shards, open_shards
from framework.telemetry import logs
from framework.telemetry.logs import LogRateLimit

_LEAST_REST_S = 5.0
_REST_FACTOR = 20.0
"""The rest after a pass in which nothing moved, in times of the pass: a long queue is not read all the time."""

_LOG_INTERVAL_S = 60.0


class _Rest(NamedTuple):
    """Until when (monotonic seconds) a move rests, of which this was the last record."""

    record: MoveRecord
    until: float


class MoveForwarder:
    """Carry out the moves of one shard while the process leads. For one thread."""

    def __init__(self, process: ProcessContext) -> None:
        self._process = process
        self._shards: Shards | None = None
        self._rests: dict[str, _Rest] = {}
        self._log_limit = LogRateLimit(_LOG_INTERVAL_S)

    def carry_on(self, records: Iterable[MoveRecord]) -> None:
        """Carry on each move that is in force and due. Raises nothing of the other shard."""
        own = self._process.shard.name
        for record in records:
            if record.in_force and own in (record.source, record.target) and self._is_due(record):
                self._carry_on(record)

    def end(self) -> None:
        """Close the connections to the shards."""
        if self._shards is not None:
            self._shards.close()

    def _is_due(self, record: MoveRecord) -> bool:
        rest = self._rests.get(record.id)
        return rest is None or rest.record != record or rest.until <= time.monotonic()

    def _carry_on(self, record: MoveRecord) -> None:
        if self._shards is None:
            self._shards = open_shards(self._process.settings, role="moves")
        began = time.monotonic()
        try:
            moved = self._pass(record, self._shards)
        except (RedisError, OSError, FrameworkError) as error:
            moved = 0
            self._log_limit.warning(
                record.id,
                f"the jobs of the move {record.id} ({record.what}) do not go from {record.source} to {record.target}; it is tried "
                "again. Look at the error, and at `shards status`",
                "moves.blocked",
                error=error,
            )
        ended = time.monotonic()
        if not moved:
            self._rests[record.id] = _Rest(record, ended + max(_LEAST_REST_S, _REST_FACTOR * (ended - began)))

    def _pass(self, record: MoveRecord, shards: Shards) -> int:
        if record.source not in shards or record.target not in shards:
            return 0
        moves = ShardMoves({name: shards[name] for name in (record.source, record.target)})
        moves.read()
        if not moves.is_current(record) or moves.find(record.id) != record:
            return 0
        moved = moves.run(record, MoveProgress())
        if moved:
            logs.logger().info(
                "jobs have moved to another shard",
                event_name="moves.forwarded",
                move=record.id,
                jobs=moved,
                source=record.source,
                target=record.target,
            )
        elif record.state in ("moving", "undoing") and moves.is_settled(record):
            ShardMoves.end(moves, record)
        return moved
