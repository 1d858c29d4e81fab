"""Tell the time of this process by one clock, which a test may replace for all of its code."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import NamedTuple


class _Override(NamedTuple):
    now: Callable[[], float] | None
    to_server: Callable[[float], float] | None
    monotonic: Callable[[], float] | None


class ProcessClock:
    """The clock of the process: ``process_clock.now()`` returns epoch seconds, ``monotonic()`` seconds that no host sets back."""

    def __init__(self) -> None:
        # Attributes and no methods: a push and a run ask several times, and pay for a call in C only. Not in the module: freezegun
        # replaces `time.time` in every module, and would put it back while a test has another clock.
        self.now: Callable[[], float] = time.time
        self.monotonic: Callable[[], float] = time.monotonic
        self.to_server: Callable[[float], float] = float
        """Converts a time of this clock to that of Redis, by which keys expire. They differ only in a test that moves this clock."""
        self._host = _Override(self.now, self.to_server, self.monotonic)
        self._overrides: tuple[_Override, ...] = (self._host,)

    @contextmanager
    def override(
        self,
        now: Callable[[], float] | None = None,
        to_server: Callable[[float], float] | None = None,
        *,
        monotonic: Callable[[], float] | None = None,
    ) -> Generator[None]:
        """For tests: ask these functions within the block, in all threads. The innermost block that gives one counts."""
        entry = _Override(now, to_server or float if now else None, monotonic)
        self._overrides = (*self._overrides, entry)
        self._apply()
        try:
            yield
        finally:
            # A block may end before one that it contains.
            self._overrides = tuple(one for one in self._overrides if one is not entry)
            self._apply()

    def _apply(self) -> None:
        for name in _Override._fields:
            setattr(self, name, next(one for entry in reversed(self._overrides) if (one := getattr(entry, name))))

    @property
    def host(self) -> Callable[[], float]:
        """The clock of the host, whatever a test has set."""
        return self._host.now or time.time


process_clock = ProcessClock()
