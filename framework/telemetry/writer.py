"""One thread writes log lines, so that no job waits for a file or holds the interpreter's lock around a system call."""

import os
import threading
from collections import deque

MAX_PENDING = 100_000
"""Lines kept while the output is blocked; older ones are dropped then."""

_BATCH = 512


class LogWriter:
    """Takes lines from any thread and writes them in order, one write per batch, whole lines only."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lines: deque[bytes] = deque(maxlen=MAX_PENDING)
        self._wake = threading.Semaphore(0)
        self._asleep = False
        self._idle = threading.Condition()
        self._writing = False
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()

    def write(self, line: bytes) -> None:
        """Queue one line that ends in a newline; never blocks, never raises."""
        self._lines.append(line)
        if self._asleep:
            self._asleep = False
            self._wake.release()

    def flush(self, timeout_s: float = 2.0) -> bool:
        """Wait until everything queued so far has been written; false when the output did not take it in time."""
        self._wake.release()
        with self._idle:
            return self._idle.wait_for(lambda: not self._lines and not self._writing, timeout_s)

    def close(self) -> None:
        """Write what is queued and end the thread."""
        self.flush()
        self._closed = True
        self._wake.release()
        self._thread.join(2.0)

    def _run(self) -> None:
        while not self._closed:
            self._asleep = True
            if not self._lines:
                # The time-out covers the one race left: a line queued between the look and the sleep.
                self._wake.acquire(timeout=0.2)
            self._asleep = False
            self._write_pending()

    def _write_pending(self) -> None:
        while self._lines:
            self._writing = True
            batch = [self._lines.popleft() for _ in range(min(len(self._lines), _BATCH))]
            _write_all(self._descriptor, b"".join(batch))
            self._writing = False
        with self._idle:
            self._idle.notify_all()


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            threading.Event().wait(0.01)  # a non-blocking pipe that is full
        except OSError:
            return  # the reader is gone; jobs go on
