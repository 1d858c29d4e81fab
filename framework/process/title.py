"""Set the title that ``ps`` shows, in Sidekiq's form: ``application-worker 0.1.0 main default [3 of 10 busy] stopping``."""

from collections.abc import Sequence

from framework.version import VERSION

try:
    from setproctitle import setproctitle
# The extra `cli` is not installed: ps shows the command line.
except ImportError:
    setproctitle = None  # type: ignore[assignment]

_MAX_NAMES_LENGTH = 60
"""The characters for names, which leave room for the state at the end of the line."""


class Title:
    """The title of this process: what it is, for which names (queues or groups), and the unit that it counts."""

    def __init__(self, what: str, names: Sequence[str], unit: str) -> None:
        self._head = f"application-worker {VERSION} {what} {shortened(names)}"
        self._unit = unit
        self._current = ""

    def show(self, count: int, of: int, state: str = "") -> None:
        """Show the count, the total, and the state unless it is empty."""
        title = f"{self._head} [{count} of {of} {self._unit}] {state}".rstrip()
        if title != self._current and setproctitle is not None:
            setproctitle(title)
            self._current = title


def shortened(names: Sequence[str]) -> str:
    """Return as many names as fit, at least the first, and the number of the others."""
    shown = names[0][:_MAX_NAMES_LENGTH] if names else ""
    count = 1
    while count < len(names) and len(shown) + len(names[count]) < _MAX_NAMES_LENGTH:
        shown = f"{shown},{names[count]}"
        count += 1
    return f"{shown} and {len(names) - count} more" if len(names) > count else shown


class NoTitle(Title):
    """The title of an embedded worker: none, as the process belongs to the application."""

    def __init__(self) -> None:
        super().__init__("", [], "")

    def show(self, count: int, of: int, state: str = "") -> None:
        """Show nothing."""
