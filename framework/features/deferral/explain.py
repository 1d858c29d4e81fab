"""Explain which flag drops or defers a job: the flag policies' readers for ``jobs explain``."""

from collections.abc import Callable, Mapping

from framework.command_line import remedy_command
from framework.execute.blocker import Blocker
from framework.features.flags.flag import Flag, drop_flag, run_flag
from framework.text import format_duration


class FlagBlockers:
    """Find the flags that drop or defer jobs. ``flags`` returns the flags in force, ``now`` the shard's time."""

    def __init__(self, now: Callable[[], float], flags: Callable[[], Mapping[str, Flag]]) -> None:
        self._now = now
        self._flags = flags

    def dropping(self, worker: str, queue: str) -> list[Blocker]:
        """See ``BlockerReader``."""
        del queue
        flag = self._flags().get(drop_flag(worker))
        if flag is None or flag.percentage <= 0:
            return []
        why = f"jobs of {worker} are dropped ({flag.percentage:g} %){_origin(flag)}"
        return [Blocker("dropping", why, self._remedy(flag, worker))]

    def deferring(self, worker: str, queue: str) -> list[Blocker]:
        """See ``BlockerReader``."""
        del queue
        flag = self._flags().get(run_flag(worker))
        if flag is None or flag.percentage >= 100:
            return []
        why = f"jobs of {worker} are deferred, {flag.percentage:g} % of them may run{_origin(flag)}"
        return [Blocker("deferring", why, self._remedy(flag, worker))]

    def _remedy(self, flag: Flag, worker: str) -> str:
        ends = "" if flag.expires_at is None else f"; by itself in {format_duration(flag.expires_at - self._now())}"
        return f"{remedy_command('jobs', 'flags', 'clear', worker, loads_classes=True)}{ends}"


def _origin(flag: Flag) -> str:
    by = f", by {flag.set_by}" if flag.set_by else ""
    return f"{by}{f': {flag.reason}' if flag.reason else ''}"
