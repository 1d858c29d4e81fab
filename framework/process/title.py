"""What ``ps`` shows of a process: Sidekiq's form, ``application-worker 0.1.0 main default [3 of 10 busy] stopping``."""

from collections.abc import Sequence

from framework.version import VERSION

try:
    from setproctitle import setproctitle
except ImportError:  # the extra `cli` is not installed: ps goes on showing the command line
    setproctitle = None  # type: ignore[assignment]

_MAX_NAMES_LENGTH = 60
"""Characters of names; what is left of the line says the state, which is looked for."""


class Title:
    """The title of this process, which does ``what`` for ``names`` (queues, groups) and counts ``most`` of something."""

    def __init__(self, what: str, names: Sequence[str], unit: str) -> None:
        self._head = f"application-worker {VERSION} {what} {shortened(names)}"
        self._unit = unit
        self._current = ""

    def show(self, count: int, of: int, state: str = "") -> None:
        """``ps`` says from now on how many of how many there are, and the state, if it is not just running."""
        title = f"{self._head} [{count} of {of} {self._unit}] {state}".rstrip()
        if title != self._current and setproctitle is not None:
            setproctitle(title)
            self._current = title


def shortened(names: Sequence[str]) -> str:
    """As many of the names as there is room for, at least the first, and how many more there are."""
    shown = names[0][:_MAX_NAMES_LENGTH] if names else ""
    count = 1
    while count < len(names) and len(shown) + len(names[count]) < _MAX_NAMES_LENGTH:
        shown = f"{shown},{names[count]}"
        count += 1
    return f"{shown} and {len(names) - count} more" if len(names) > count else shown
