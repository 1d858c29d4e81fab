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
from framework.policies.pause.admission import MARKER_TTL_MS
from framework.policies.pause.state import PauseState
from framework.store.script import RELEASE_PAUSED, is_lasting
from framework.telemetry import logs
from framework.telemetry.rate_limit import LogRateLimit
from framework.wire import keys

PAGE = 1_000
"""Jobs of one step: some milliseconds of Redis's time."""

PAGE_BYTES = 4_000_000
_MAX_PER_CLASS_S = 2.0  # for one class, then the others have theirs
_LOG_INTERVAL_S = 60.0


@dataclass(frozen=True, slots=True)
class ResumeResult:
    """What became of the parked jobs of one class."""

    moved: int
    blocked: int
    """Jobs whose queue's key is no list."""
    paused: bool
    """Whether the class is paused (again)."""


def resume(
    client: "redis.Redis", worker: str, seen_flag: bytes, *, class_known: bool, max_s: float = math.inf
) -> ResumeResult:
    """Move the parked jobs of a class back to their queues, in their order; raises redis errors.

    They stand where pushes do, behind what waits already and before what is pushed from now on. ``seen`` is what the caller knows
    the operators' flag to say; ``known`` whether the caller knows the class, and so its strategy. Any number of callers may do it
    at once.
    """
    places = [keys.paused_jobs(worker), keys.PAUSED_CLASSES, keys.QUEUES, keys.FLAGS, keys.pause_strategy(worker)]
    moved, stayed = 0, 0
    deadline = time.monotonic() + max_s
    while True:
        reply: Any = RELEASE_PAUSED(
            client,
            places,
            [worker, pause_flag(worker), seen_flag, "" if class_known else "heed", PAGE, PAGE_BYTES, stayed],
        )
        state, gone, left = cast("tuple[int, int, int]", reply)
        moved, stayed = moved + gone, stayed + left
        if state < 0 or not gone + left or time.monotonic() > deadline:
            return ResumeResult(moved, stayed, state < 0)


# Decision 135: processes do not resume unknown classes while a pause marker exists.
class PauseResumer:
    """One process's look at the paused classes of a shard."""

    def __init__(self, client: "redis.Redis", state: PauseState) -> None:
        self._client = client
        self._state = state
        self._log_limit = LogRateLimit(_LOG_INTERVAL_S)

    def resume_ended(self) -> None:
        """Resume what is paused no more. Raises redis errors. Costs one command when nothing is parked."""
        try:
            parked = cast("set[bytes]", self._client.smembers(keys.PAUSED_CLASSES))
        except ResponseError as error:
            if not is_lasting(error):
                raise
            self._log_limit.warning(
                "index",
                "the set of classes with held jobs cannot be read, so no class is resumed. Look at the error, then at the key",
                "pause.blocked",
                key=keys.PAUSED_CLASSES,
                error=error,
            )
            return
        for name in sorted(parked):
            self._resume_class(name.decode(errors="surrogateescape"))

    def _resume_class(self, worker: str) -> None:
        found = registry.find(worker)
        declaration: Declaration | None = found.declaration() if found is not None else None
        strategy = declaration.pause_control if declaration is not None else None
        pause = self._state.pause_of(worker, strategy)
        if pause is not None:
            if not pause.expected_flag:
                with suppress(
                    ResponseError
                ):  # refused at maxmemory: processes that do not know the class may resume it
                    self._client.set(keys.pause_strategy(worker), pause.strategy, px=MARKER_TTL_MS)
            return
        if not self._state.strategies.is_pause_over(strategy):
            return
        known = declaration is not None
        done = resume(self._client, worker, self._state.flag_value(worker), class_known=known, max_s=_MAX_PER_CLASS_S)
        if done.moved:
            log_resumed(worker, done.moved, class_known=known)
        if done.blocked:
            self._log_limit.warning(
                f"blocked {worker}",
                "held jobs cannot return to their queues because the keys of these queues are not lists; the jobs stay held",
                "pause.blocked",
                worker=worker,
                jobs=done.blocked,
            )


def log_resumed(worker: str, jobs: int, *, class_known: bool = True) -> None:
    """Write the line of a resumption (GitLab's)."""
    logs.logger(**{"class": worker}).info(
        f"{worker}: resumed: {jobs} jobs",
        event_name="pause.resumed",
        job_status="resumed",
        resumed_job_count=jobs,
        unknown=not class_known,
    )
