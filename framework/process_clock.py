"""Tell the time of this process by one clock, which a test may replace for all of its code."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager


class ProcessClock:
    """The clock of the process: ``process_clock.now()`` returns epoch seconds."""

    def __init__(self) -> None:
        # An attribute and no method: a push and a run ask several times, and pay for a call in C only. Not in the module: freezegun
        # replaces `time.time` in every module, and would put it back while a test has another clock.
        self.now: Callable[[], float] = time.time
        self.to_server: Callable[[float], float] = float
        """Converts a time of this clock to that of Redis, by which keys expire. They differ only in a test that moves this clock."""
        self._overrides: tuple[tuple[Callable[[], float], Callable[[float], float]], ...] = ((self.now, float),)

    @contextmanager
    def override(self, now: Callable[[], float], to_server: Callable[[float], float] = float) -> Generator[None]:
        """For tests: ask ``now`` for the time within the block, in all threads. The innermost block counts."""
        entry = (now, to_server)
        self._overrides = (*self._overrides, entry)
        self.now, self.to_server = entry
        try:
            yield
        finally:
            # A block may end before one that it contains.
            self._overrides = tuple(one for one in self._overrides if one is not entry)
            self.now, self.to_server = self._overrides[-1]

    @property
    def host(self) -> Callable[[], float]:
        """The clock of the host, whatever a test has set."""
        return self._overrides[0][0]


process_clock = ProcessClock()
