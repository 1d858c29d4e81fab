"""Report progress on standard error, so that standard output is the table."""

import sys
import time

_began = time.monotonic()


def say(line: str) -> None:
    """Print one line with the seconds since the start."""
    print(f"[{time.monotonic() - _began:6.1f} s] {line}", file=sys.stderr, flush=True)
