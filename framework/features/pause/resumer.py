"""Return held jobs to their queues after a pause has ended, also for classes that no process knows any more."""

import math
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import redis
from redis.exceptions import ResponseError

from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.features.flags.flag import pause_flag
from framework.features.pause.admission import MARKER_TTL_MS
from framework.features.pause.state import PauseState
from framework.store.absent_keys import AbsentKeys
from framework.store.script import RELEASE_PAUSED, is_lasting
from framework.telemetry import logs
from framework.telemetry.logs import LogRateLimit
from framework.text import decode_escaped, decode_name, format_count
from framework.wire import keys

PAGE = 1_000
"""Jobs per step: a few milliseconds of Redis's time."""

PAGE_BYTES = 4_000_000
# Time for one class; then the next class has its turn.
_MAX_PER_CLASS_S = 2.0
_LOG_INTERVAL_S = 60.0


@dataclass(frozen=True, slots=True)
class ResumeResult:
    """The result of resuming one class."""

    moved: int
    blocked: int
    """Jobs that could not return because the key of their queue is not a list."""
    paused: bool
    """True if the class is paused again."""


def resume(
    client: "redis.Redis", worker: str, seen_flag: bytes, *, class_known: bool, max_s: float = math.inf
) -> ResumeResult:
    """Move the held jobs of a class back to their queues, in their order. Raises redis errors.

    They are placed where a push places them: behind the waiting jobs. ``seen_flag`` is the operators' flag as the
    caller read it last. ``class_known`` says whether the caller knows the class, and so its pause strategy. Several
    callers may resume the same class at the same time.
    """
    script_keys = [keys.paused_jobs(worker), keys.PAUSED_CLASSES, keys.QUEUES, keys.FLAGS, keys.pause_strategy(worker)]
    moved, blocked = 0, 0
    deadline = time.monotonic() + max_s
    while True:
        reply: Any = RELEASE_PAUSED(
            client,
            script_keys,
            [worker, pause_flag(worker), seen_flag, "" if class_known else "heed", PAGE, PAGE_BYTES, blocked],
        )
        state, moved_now, blocked_now = cast("tuple[int, int, int]", reply)
        moved, blocked = moved + moved_now, blocked + blocked_now
        if state < 0 or not moved_now + blocked_now or time.monotonic() > deadline:
            return ResumeResult(moved, blocked, state < 0)


# Processes do not resume unknown classes while a pause marker exists: another application may have paused them.
class PauseResumer:
    """Resume the classes of a shard whose pause has ended."""

    def __init__(self, client: "redis.Redis", state: PauseState, absent: AbsentKeys | None = None) -> None:
        self._client = client
        self._state = state
        self._absent = absent or AbsentKeys()
        self._log_limit = LogRateLimit(_LOG_INTERVAL_S)

    def resume_ended(self) -> None:
        """Resume each class that is no longer paused. Raises redis errors. Sends nothing while no jobs are held."""
        if not self._absent.may_exist(keys.PAUSED_CLASSES):
            return
        try:
            held = cast("set[bytes]", self._client.smembers(keys.PAUSED_CLASSES))
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
        self._absent.note(keys.PAUSED_CLASSES, found=bool(held))
        for raw in sorted(held):
            name = decode_name(raw)
            if name is not None:
                self._resume_class(name)
                continue
            self._log_limit.warning(
                f"name {raw!r}",
                "a member of the set of classes with held jobs is no name of a class. Remove it with SREM",
                "pause.blocked",
                key=keys.PAUSED_CLASSES,
                worker=decode_escaped(raw),
            )

    def _resume_class(self, worker: str) -> None:
        found = registry.find(worker)
        declaration: Declaration | None = found.declaration() if found is not None else None
        strategy = declaration.facts["pause_control"] if declaration is not None else None
        pause = self._state.pause_of(worker, strategy)
        if pause is not None:
            if not pause.expected_flag:
                # Refused at maxmemory: processes that do not know the class may resume it.
                with suppress(ResponseError):
                    self._client.set(keys.pause_strategy(worker), pause.strategy, px=MARKER_TTL_MS)
            return
        if not self._state.strategies.is_pause_over(strategy):
            return
        class_known = declaration is not None
        result = resume(
            self._client, worker, self._state.flag_value(worker), class_known=class_known, max_s=_MAX_PER_CLASS_S
        )
        if result.moved:
            log_resumed(worker, result.moved, class_known=class_known)
        if result.blocked:
            self._log_limit.warning(
                f"blocked {worker}",
                "held jobs cannot return to their queues, because the keys of these queues are not lists. The jobs stay held: check "
                "the keys with TYPE, then delete them",
                "pause.blocked",
                worker=worker,
                jobs=result.blocked,
            )


def log_resumed(worker: str, jobs: int, *, class_known: bool = True) -> None:
    """Log that jobs of a class were resumed, with GitLab's fields."""
    logs.logger(**{"class": worker}).info(
        f"{format_count(jobs, 'held job')} of {worker} {'is back in its queue' if jobs == 1 else 'are back in their queues'}",
        event_name="pause.resumed",
        job_status="resumed",
        resumed_job_count=jobs,
        unknown=not class_known,
    )
