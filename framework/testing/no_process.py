"""Replace what a worker process owns: its log on stdout, and its event loop."""

from typing import Any, cast

from framework.execute.event_loop import EventLoop
from framework.telemetry.logs import ServerLog

LOOP = EventLoop()
"""Runs the async jobs of all tests of this process; its thread starts with the first."""


class _SilentLog:
    def __init__(self) -> None:
        self.writer = self
        self.static: dict[str, Any] = {}

    def write(self, line: str) -> None:
        del line


def silent_log() -> ServerLog:
    """Return a server log that drops every line. A job's own lines go to the logger ``framework`` of the standard library."""
    return cast("ServerLog", _SilentLog())
