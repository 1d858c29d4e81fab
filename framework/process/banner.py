"""Print a banner when a worker process starts in a terminal. A log never has the banner."""

import os
import platform

from framework.shard.shard import Shard
from framework.telemetry.logs import ServerLog
from framework.text import format_count, visible
from framework.version import VERSION


def banner_text(shard: Shard, slots: int, timeout_s: float) -> str:
    """Return the text that describes the process and the way to stop it."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    lines = [
        "",
        f"  application-worker {VERSION}",
        f"  {python}, process {os.getpid()}, {format_count(slots, 'job')} at a time",
        f"  shard {shard.name}: {shard.endpoint.shown}",
        "",
        f"  Ctrl-C stops: running jobs get {timeout_s:g} s to end, the others go back to their queues.",
        "  A second Ctrl-C stops at once: running jobs go back, too, and run again from their beginning.",
        "  Ctrl-Z fetches no more jobs.",
        "",
    ]
    return "".join(f"{visible(line)}\n" for line in lines)


def print_banner(log: ServerLog, shard: Shard, slots: int, timeout_s: float) -> None:
    """Print the banner if ``log`` writes text to a terminal."""
    log.show(banner_text(shard, slots, timeout_s))
