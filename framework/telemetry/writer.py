"""Write log lines in one thread, so that no job waits for a file or holds the GIL around a system call.

They are JSON, or text for a person at a terminal.
"""

import errno
import fcntl
import importlib
import os
import stat
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from queue import Empty, SimpleQueue
from typing import Any

from pydantic_core import from_json

from framework.supervised_threads import SupervisedThread
from framework.text import visible, visible_json
from framework.typeguards import is_list

MAX_PENDING = 100_000
MAX_BYTES = 64 << 20
"""The lines and the bytes of memory that are kept while the output is blocked; beyond them the oldest are dropped."""

_BATCH_BYTES = 1 << 16
"""The bytes of one write, which are in memory three times meanwhile.

Memory of more than 128 KiB would come from the system and go back to it at each write: its page faults cost more than the write.
"""

_BATCH_PERIOD_S = 0.005
"""The least time between two writes, so that one write takes many lines; the first line after a pause is written at once."""
_IDLE_LIMIT_S = 2.0
_RETRY_S = 0.02
"""The time between two attempts at a full output."""
_CLOSED_ERRORS = {errno.EPIPE, errno.EBADF, errno.ECONNRESET}


# The end of a job is logged before its acknowledgement: after a kill a line may appear twice, and no job is gone without a trace.
# Lines are written in batches; when the output accepts nothing, the oldest are dropped and counted.
class LogWriter:
    """Take lines from any thread and write them in order, whole lines only.

    ``lost_line`` returns the line that replaces dropped ones and says how many they are.
    """

    def __init__(self, descriptor: int, lost_line: Callable[[int], str]) -> None:
        self._descriptor = descriptor
        self._lost_line = lost_line
        self._shared = _may_be_shared(descriptor)
        self._lines: deque[str] = deque()
        self._bytes = 0
        """The memory of the lines. It needs no lock: the interpreter switches threads at calls and jumps only, and an addition has
        none. If an addition were lost nevertheless, the bound would be off by one line until the queue is empty again.
        """
        self._wakeup: SimpleQueue[None] = SimpleQueue()
        self._waiting = False
        self._idle = threading.Condition()
        self._writing = False
        self._closed = False
        self._given_up = False
        self._batch: list[str] = []
        self._lost = 0
        self._lost_lock = threading.Lock()
        self._thread = SupervisedThread("log-writer", self._run)
        self._thread.start()

    def write(self, line: str) -> None:
        """Queue one line that ends in a newline; never blocks, never raises."""
        lines, size = self._lines, line.__sizeof__()
        lines.append(line)
        self._bytes += size
        # The writer sets ``_waiting`` before it checks for lines, and this thread reads it after adding one, so at least one
        # of the two sees the other and no line waits forever.
        if self._waiting:
            self._waiting = False
            self._wakeup.put(None)
        elif self._bytes > MAX_BYTES or len(lines) > MAX_PENDING:
            self._drop_oldest()

    def flush(self, timeout_s: float = 2.0) -> bool:
        """Wait until all queued lines are written; return false after the timeout."""
        self._wakeup.put(None)
        with self._idle:
            return self._idle.wait_for(lambda: not self._lines and not self._writing, timeout_s)

    def close(self, timeout_s: float = 2.0) -> None:
        """Write the queued lines and end the thread; lines that cannot be written within ``timeout_s`` are lost."""
        self._closed = True
        self._wakeup.put(None)
        self._thread.join(timeout_s)
        if self._lines and not self._thread.is_alive():
            # The thread has died: the reason is in these lines.
            with suppress(Exception):
                self._write_pending()
        # From now on the descriptor's number may belong to another file.
        self._given_up = True

    def _drop_oldest(self) -> None:
        with self._lost_lock:
            while self._bytes > MAX_BYTES or len(self._lines) > MAX_PENDING:
                try:
                    size = self._lines.popleft().__sizeof__()
                # The writer was faster.
                except IndexError:
                    return
                self._bytes -= size
                self._lost += 1

    def _run(self) -> None:
        while True:
            self._waiting = True
            if not self._lines and not self._closed:
                self._wakeup.get()
            self._waiting = False
            try:
                self._write_pending()
            except Exception:  # noqa: BLE001 - a job may have used up the memory: the log goes on when there is some again
                self._drop_batch()
            if self._closed:
                return
            try:
                self._wakeup.get(timeout=_BATCH_PERIOD_S)
            except Empty:
                continue

    def _write_pending(self) -> None:
        while self._lines:
            self._writing = True
            self._write_lost_count()
            self._take_batch()
            text = "".join(self._batch)
            # Once for all lines: nearly all are clean.
            if not _is_clean(text):
                text = "".join([line if _is_clean(line) else visible_json(line) for line in self._batch])
            rest = self._write_whole(text.encode())
            self._batch = []
            if rest:
                with self._lost_lock:
                    self._lost += rest.count(b"\n")
            self._writing = False
        self._bytes = 0
        # A thread that died may have left it taken.
        if self._idle.acquire(timeout=_IDLE_LIMIT_S):
            self._idle.notify_all()
            self._idle.release()

    def _take_batch(self) -> None:
        take, taken = self._lines.popleft, 0
        try:
            while taken < _BATCH_BYTES:
                line = take()
                self._batch.append(line)
                taken += line.__sizeof__()
        # The queue is empty.
        except IndexError:
            pass
        self._bytes -= taken

    def _drop_batch(self) -> None:
        with self._lost_lock:
            self._lost += len(self._batch)
        self._batch = []
        self._writing = False

    def _write_lost_count(self) -> None:
        count = self._lost
        if count and not self._write_whole(self._lost_line(count).encode()):
            with self._lost_lock:
                self._lost -= count

    def _write_whole(self, data: bytes) -> bytes:
        """Write ``data`` in one piece among the writes of other processes; return the bytes that no reader accepts."""
        if not self._shared:
            return self._write(data)
        # All processes of a supervisor may share one pipe, and a full pipe interleaves writes of more than 4 KiB.
        with suppress(OSError):
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
        try:
            return self._write(data)
        finally:
            with suppress(OSError):
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN)

    def _write(self, data: bytes) -> bytes:
        view = memoryview(data)
        while view and not self._given_up:
            try:
                view = view[os.write(self._descriptor, view) :]
            except OSError as error:
                # Without a reader the jobs go on.
                if error.errno in _CLOSED_ERRORS:
                    break
                # A full non-blocking pipe or a full disk: the rest of the line follows when there is room.
                threading.Event().wait(_RETRY_S)
        return bytes(view)


def _is_clean(text: str) -> bool:
    """Return whether no character needs an escape. Cheap: a flag of the string, and a search at the speed of memory."""
    return text.isascii() and "\x7f" not in text


def _may_be_shared(descriptor: int) -> bool:
    """Return whether this is a pipe or socket that supports locks between processes; files need none."""
    try:
        mode = os.fstat(descriptor).st_mode
        if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
            return False
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.lockf(descriptor, fcntl.LOCK_UN)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return True


# The lines of a terminal are the same: each is parsed and shown as one line of text, without the fields that are of use only to a
# log collector.

_LEVELS = {"WARN": "warning", "FATAL": "critical"}
_HEAD = ("severity", "time", "message")
_SAME_EVERYWHERE = frozenset(("pid", "worker_id", "shard", "tid", "correlation_id"))
_OF_JOBS = frozenset(
    (
        *(
            "job_status",
            "class",
            "jid",
            "retry",
            "version",
            "worker_name",
            "queue_namespace",
            "feature_category",
            "urgency",
        ),
        *("created_at", "enqueued_at", "scheduled_at", "completed_at", "queue_duration_s", "scheduling_latency_s"),
        *("duration_s", "cpu_s", "target_duration_s", "target_scheduling_latency_s", "job_size_bytes"),
        *("error_class", "load_balancing_strategy", "meta.caller_id", "meta.root_caller_id", "meta.feature_category"),
    )
)
"""The fields of a job's lines that their message says already, or that are of use only in a collection of lines."""
_START_ONLY = frozenset(("queue", "args", "tags"))
_BACKTRACE = "exception.backtrace"


class ConsoleWriter(LogWriter):
    """A writer that shows each line as text; with ``colors`` for a terminal."""

    def __init__(self, descriptor: int, lost_line: Callable[[int], str], *, colors: bool) -> None:
        renderer = importlib.import_module("structlog.dev").ConsoleRenderer
        self._render: Callable[[Any, str, dict[str, Any]], str] = renderer(colors=colors, sort_keys=False)
        super().__init__(descriptor, lambda count: self.text_of(lost_line(count)))

    def write(self, line: str) -> None:
        """Queue one line, given as JSON; never blocks, never raises."""
        try:
            text = self.text_of(line)
        except Exception:  # noqa: BLE001 - a line that cannot be shown as text is better shown as JSON than lost
            text = line
        super().write(text)

    def text_of(self, line: str) -> str:
        """Return a line of JSON as text."""
        fields: dict[str, Any] = from_json(line)
        shown = {name: value for name, value in fields.items() if is_shown(name, fields)}
        backtrace = shown.pop(_BACKTRACE, None)
        severity: str = fields["severity"]
        level = _LEVELS.get(severity, severity.lower())
        event: dict[str, Any] = {
            "timestamp": _clock_time(fields.get("time", "")),
            "level": level,
            "event": visible(str(fields.get("message", ""))),
            **{visible(name): _escaped(value) for name, value in shown.items()},
        }
        text = self._render(None, level, event)
        if is_list(backtrace):
            text += "".join(f"\n    {visible(str(frame))}" for frame in backtrace)
        return f"{text}\n"


def uses_colors(descriptor: int, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether text at this descriptor may have colors: a terminal that shows them, and no ``NO_COLOR``."""
    return os.isatty(descriptor) and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"


def is_shown(name: str, fields: Mapping[str, Any]) -> bool:
    """Return whether a person wants to see this field of a line."""
    if name in _HEAD or name in _SAME_EVERYWHERE:
        return False
    status = fields.get("job_status")
    if status is None:
        return True
    # A line of the job itself (``self.logger``) has no ``X JID-Y`` in its message.
    if name in ("class", "jid") and f"JID-{fields.get('jid')}" not in fields.get("message", ""):
        return True
    return name not in _OF_JOBS and (status == "start" or name not in _START_ONLY)


def _escaped(value: Any) -> Any:
    return visible(value) if isinstance(value, str) else value


def _clock_time(text: str) -> str:
    try:
        return datetime.fromisoformat(text).astimezone().strftime("%H:%M:%S.%f")[:-3]
    except ValueError:
        return visible(text)
