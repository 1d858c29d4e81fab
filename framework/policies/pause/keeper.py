"""Brings parked jobs back once their pause has ended, those of classes that nobody knows any more too."""

import math
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import redis
from redis.exceptions import ResponseError

from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.flags.flag import pause_flag
from framework.policies.pause.gate import KEPT_MS
from framework.policies.pause.pauses import Pauses
from framework.store.script import UNPARK, is_lasting
from framework.telemetry import logs
from framework.telemetry.repeated import Repeated
from framework.wire import keys

PAGE = 1_000
"""Jobs of one step: some milliseconds of Redis's time."""

PAGE_BYTES = 4_000_000
_TURN_S = 2.0  # for one class, then the others have theirs
_QUIET_S = 60.0


@dataclass(frozen=True, slots=True)
class Resumed:
    """What became of the parked jobs of one class."""

    moved: int
    stayed: int
    """Jobs whose queue's key is no list."""
    paused: bool
    """Whether the class is paused (again)."""


def resume(client: "redis.Redis", worker: str, seen: bytes, *, known: bool, most_s: float = math.inf) -> Resumed:
    """Move the parked jobs of a class back to their queues, in their order; raises redis errors.

    They stand where pushes do, behind what waits already and before what is pushed from now on. ``seen`` is what the caller knows
    the operators' flag to say; ``known`` whether the caller knows the class, and so its strategy. Any number of callers may do it
    at once.
    """
    places = [keys.paused_jobs(worker), keys.PAUSES, keys.QUEUES, keys.FLAGS, keys.pause_kept(worker)]
    moved, stayed = 0, 0
    deadline = time.monotonic() + most_s
    while True:
        reply: Any = UNPARK(
            client, places, [worker, pause_flag(worker), seen, "" if known else "heed", PAGE, PAGE_BYTES, stayed]
        )
        state, gone, left = cast("tuple[int, int, int]", reply)
        moved, stayed = moved + gone, stayed + left
        if state < 0 or not gone + left or time.monotonic() > deadline:
            return Resumed(moved, stayed, state < 0)


class Keeper:
    """One process's look at the paused classes of a shard."""

    def __init__(self, client: "redis.Redis", pauses: Pauses) -> None:
        self._client = client
        self._pauses = pauses
        self._told = Repeated(_QUIET_S)

    def look(self) -> None:
        """Resume what is paused no more. Raises redis errors. Costs one command when nothing is parked."""
        try:
            parked = cast("set[bytes]", self._client.smembers(keys.PAUSES))
        except ResponseError as error:
            if not is_lasting(error):
                raise
            self._tell("index", "which classes have parked jobs cannot be read; none is resumed", error=error)
            return
        for name in sorted(parked):
            self._attend(name.decode(errors="surrogateescape"))

    def _attend(self, worker: str) -> None:
        found = registry.find(worker)
        declaration: Declaration | None = found.declaration() if found is not None else None
        strategy = declaration.pause_control if declaration is not None else None
        pause = self._pauses.of(worker, strategy)
        if pause is not None:
            if not pause.expected:
                with suppress(
                    ResponseError
                ):  # refused at maxmemory: processes that do not know the class may resume it
                    self._client.set(keys.pause_kept(worker), pause.strategy, px=KEPT_MS)
            return
        if not self._pauses.strategies.settled(strategy):
            return
        known = declaration is not None
        done = resume(self._client, worker, self._pauses.seen(worker), known=known, most_s=_TURN_S)
        if done.moved:
            tell_resumed(worker, done.moved, known=known)
        if done.stayed:
            self._tell(
                f"stayed {worker}",
                "parked jobs cannot go back, as the keys of their queues are no lists; they stay parked",
                worker=worker,
                jobs=done.stayed,
            )

    def _tell(self, thing: str, message: str, **fields: Any) -> None:
        if count := self._told.due(thing, time.monotonic()):
            logs.logger().warning(message, event_name="pause.stays", count=count, **fields)


def tell_resumed(worker: str, jobs: int, *, known: bool = True) -> None:
    """Write the line of a resumption (GitLab's)."""
    logs.logger(**{"class": worker}).info(
        f"{worker}: resumed: {jobs} jobs",
        event_name="pause.resumed",
        job_status="resumed",
        resumed_job_count=jobs,
        unknown=not known,
    )
