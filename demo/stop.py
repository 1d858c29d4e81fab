"""Turn Ctrl-C and TERM into a flag that the demo checks between its steps."""

import signal
import threading
from types import FrameType


class StopSignal:
    """A flag: the user asked the demo to end. An exception could come during the start of a process and leave the process
    running.
    """

    def __init__(self) -> None:
        self._asked = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # ignored means: started with nohup
            signal.signal(signal.SIGHUP, self._ask)

    @property
    def asked(self) -> bool:
        """Return whether to end now."""
        return self._asked.is_set()

    def wait(self, seconds: float) -> bool:
        """Sleep until the timeout or the request to end; return whether the end was requested."""
        return self._asked.wait(seconds)

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self._asked.set()
