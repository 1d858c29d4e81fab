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
        self._host = self.now
        self._overrides: tuple[tuple[Callable[[], float]], ...] = ()

    @contextmanager
    def override(self, now: Callable[[], float]) -> Generator[None]:
        """For tests: ask ``now`` for the time within the block, in all threads. The innermost block counts."""
        # A tuple of its own, so that a block which ends early removes itself and no other.
        entry = (now,)
        self._overrides = (*self._overrides, entry)
        self.now = now
        try:
            yield
        finally:
            self._overrides = tuple(one for one in self._overrides if one is not entry)
            self.now = self._overrides[-1][0] if self._overrides else self._host


process_clock = ProcessClock()
