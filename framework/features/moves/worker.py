"""Follow the moves of a shard in a worker process, and let its leader carry them on."""

from typing import Any

from redis.exceptions import ResponseError

from framework.feature import Late
from framework.features.moves import keys
from framework.features.moves.records import read_records
from framework.process.worker_parts import OwnTask, ProcessContext, WorkerPart
from framework.route.route_moves import KnownMoves
from framework.store.script import is_lasting
from framework.telemetry.logs import LogRateLimit

_PERIOD_S = 2.0
"""How often the moves of the shard are looked at while there are any."""

_LOG_INTERVAL_S = 60.0

_FORWARDER: Late[Any] = Late("framework.features.moves.forwarder:MoveForwarder")
"""Most processes never forward a job, so they do not load it."""


def worker_part(process: ProcessContext) -> WorkerPart:
    """Return the part of moves in a worker process."""
    process.absent.watch(keys.MOVES)
    follower, forwarder = MoveFollower(process), Forwarding(process)
    return WorkerPart(refresh=follower.refresh, tasks=(OwnTask("moves", forwarder.step, release=forwarder.end),))


class MoveFollower:
    """Let the process route by the moves that its shard knows."""

    def __init__(self, process: ProcessContext) -> None:
        self._process = process
        self._known = KnownMoves()
        self._log_limit = LogRateLimit(_LOG_INTERVAL_S)

    def refresh(self) -> None:
        """Read the moves. Raises redis errors. Sends nothing while the shard has none."""
        absent = self._process.absent
        if not absent.may_exist(keys.MOVES):
            return
        try:
            found = read_records(self._process.upkeep)
        except ResponseError as error:
            if not is_lasting(error):
                raise
            self._log_limit.warning(
                keys.MOVES,
                f"the moves between shards cannot be read, so the process does not follow them. Check {keys.MOVES} with TYPE, "
                "and the rights of the user",
                "moves.blocked",
                error=error,
            )
            return
        absent.note(keys.MOVES, found=bool(found))
        if self._known.note(one.move_epoch for one in found.values()):
            self._process.router.use_moves(self._known.moves)


class Forwarding:
    """Carry on the moves of one shard while the process leads. For one thread."""

    def __init__(self, process: ProcessContext) -> None:
        self._process = process
        self._forwarder: Any = None
        self._has_moves = False
        """Whether the shard had a move once: before that no process has to lead for them."""

    def step(self) -> float:
        """Carry on each move; return the seconds until the next step. Raises the redis errors of the own shard."""
        process = self._process
        if process.quiet or not process.absent.may_exist(keys.MOVES):
            return _PERIOD_S
        # Whoever asks takes part in the lease from then on, which costs commands.
        if self._has_moves and not process.leads():
            return _PERIOD_S
        try:
            records = read_records(process.upkeep)
        except ResponseError as error:
            # The refresh reports it.
            if not is_lasting(error):
                raise
            return _PERIOD_S
        leads, self._has_moves = self._has_moves, self._has_moves or bool(records)
        if records and (leads or process.leads()):
            self._forwarder = self._forwarder or _FORWARDER.load()(process)
            self._forwarder.carry_on(records.values())
        return _PERIOD_S

    def end(self) -> None:
        """Close the connections to the shards."""
        if self._forwarder is not None:
            self._forwarder.end()
