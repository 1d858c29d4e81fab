"""Ctrl-C and TERM as a flag that the demo looks at between its steps."""

import signal
import threading
from types import FrameType


class StopSignal:
    """Whether somebody asked the demo to end. A flag, not an exception: an exception could strike in the middle of
    starting a process, and leave that one behind.
    """

    def __init__(self) -> None:
        self._asked = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # ignored means: started with nohup
            signal.signal(signal.SIGHUP, self._ask)

    @property
    def asked(self) -> bool:
        """Whether to end now."""
        return self._asked.is_set()

    def wait(self, seconds: float) -> bool:
        """Sleep, but wake when asked to end; say whether that was so."""
        return self._asked.wait(seconds)

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self._asked.set()
