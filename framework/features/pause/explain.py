"""Explain which pause blocks a job: the pause policy's reader for ``jobs explain`` and ``jobs paused``."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import redis

from framework.command_line import remedy_command
from framework.execute.blocker import Blocker
from framework.features.flags.flag import Flag, pause_flag
from framework.text import decode_escaped, format_duration
from framework.wire import keys


class PauseSource(NamedTuple):
    """The cause of a pause: an operator (``manual``) or a strategy; ``by`` is empty if the class is not paused."""

    manual: bool
    by: str
    reason: str
    until: float | None


def pause_source(flag: Flag | None, strategy: bytes | None) -> PauseSource:
    """Return the cause of a pause by a class's pause flag, if it is on, and by the strategy that Redis names for it."""
    if flag is not None and flag.percentage > 0:
        return PauseSource(True, flag.set_by or "an operator", flag.reason, flag.expires_at)
    return PauseSource(False, "" if strategy is None else decode_escaped(strategy), "", None)


class PauseBlockers:
    """Find the pause of a class. ``flags`` returns the flags in force, ``now`` the shard's time. Raises redis errors."""

    def __init__(
        self, client: "redis.Redis", now: Callable[[], float], flags: Callable[[], Mapping[str, Flag]]
    ) -> None:
        self._client = client
        self._now = now
        self._flags = flags

    def __call__(self, worker: str, queue: str) -> list[Blocker]:
        """See ``BlockerReader``."""
        del queue
        pause = pause_source(self._flags().get(pause_flag(worker)), self._strategy(worker))
        if not pause.by:
            return []
        why = f"{worker} is paused by {pause.by}{f': {pause.reason}' if pause.reason else ''}"
        ends = "" if pause.until is None else f"; by itself in {format_duration(pause.until - self._now())}"
        remedy = (
            f"{remedy_command('jobs', 'resume', worker, loads_classes=True)}{ends}"
            if pause.manual
            else f"the end of the pause by the strategy {pause.by}"
        )
        return [Blocker("paused", why, remedy)]

    def of_held_job(self, worker: str) -> list[Blocker]:
        """Return the blockers of a job of the class that a pause held; the pause may have ended."""
        why = f"it was held while {worker} was paused, and the pause has ended"
        return self(worker, "") or [Blocker("resuming", why, "any process, in seconds")]

    def _strategy(self, worker: str) -> bytes | None:
        """Return the strategy that pauses the class; a strategy without held jobs may have ended."""
        pipeline: Any = self._client.pipeline(transaction=False)
        pipeline.exists(keys.paused_jobs(worker))
        pipeline.get(keys.pause_strategy(worker))
        held, strategy = pipeline.execute(raise_on_error=False)
        return strategy if held and isinstance(strategy, bytes) else None
