"""Write changes of events from one thread of the process, in batches (group commit).

At a crash: a change whose ticket is done is in the database, or in the spool of its shard (setting ``tasks.database_down:
continue``). A job is pushed, and its end acknowledged, only after that. So no event is lost with its job: a process that is killed
earlier leaves the job in its working list, from where it runs again.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias
from weakref import WeakSet

from sqlalchemy.exc import SQLAlchemyError

from framework.errors import TaskDatabaseError, TaskTablesError
from framework.execute.recording import Durable
from framework.features.tasks.apply import write_changes
from framework.features.tasks.change import EventChange
from framework.features.tasks.database import WRITE_S, TaskDatabase, limited
from framework.shard.shards import Shards
from framework.supervised_threads import SupervisedThread
from framework.telemetry import logs
from framework.telemetry.logs import LogRateLimit
from framework.timings import backoff_s
from framework.wire import keys
from framework.wire.protected import UNSIGNED_STATE, StatePlace, StateSignatures

WhenDown: TypeAlias = Literal["continue", "wait"]

MAX_BATCH = 500
_GROUP_S = 0.002
"""Seconds in which changes are collected while a thread waits for one of them."""
_ENDS_S = 0.01
"""Seconds in which ends of jobs are collected while no thread waits for one of them."""
_LINGER_ROUNDS = 5
"""Changes are collected for so many times ``_ENDS_S`` if neither a thread nor the end of a job waits for one."""
_SOON, _WAITED_FOR, _AT_ONCE = 1, 2, 3
_MAX_QUEUED = 10_000
_MAX_BACKOFF_S = 2.0
_RETRY_S, _LONGEST_RETRY_S = 2.0, 30.0
"""The time after which a database that failed is asked again while the spool takes its changes."""
_PAUSE_FACTOR = 5.0
"""The pause after a try at a database that hangs, by the duration of the try: changes wait during the try."""
_LOG_PERIOD_S = 30.0
_LIMIT_S = 120.0
"""The longest try of one batch: each of its statements, and each command of the spool, has a deadline of seconds."""


SPOOL_PLACE = StatePlace("task event", keys.TASK_EVENTS)


class ShardSpool:
    """Keep changes of events in the Redis of their shards while the database is down: a sorted set of JSON by time.

    A script that makes a recorded job writes its push there, in the same step (``parts/recorded.lua``). At a crash: a change is
    removed after the commit of the transaction that wrote it. Two processes may write the same change; its second write changes
    nothing.
    """

    def __init__(self, shards: Shards, signatures: StateSignatures = UNSIGNED_STATE) -> None:
        self._shards = shards
        self._signatures = signatures

    def keep(self, changes: Sequence[EventChange]) -> None:
        """Write the changes to the Redis of their shards. Raises redis errors, and UnknownShardError."""
        by_shard: dict[str, dict[bytes, float]] = {}
        for one in changes:
            by_shard.setdefault(one.shard or "main", {})[self._signatures.seal(SPOOL_PLACE, one.encode())] = one.at
        for name, members in by_shard.items():
            client: Any = self._shards[name].client
            client.zadd(keys.TASK_EVENTS, members)


class Ticket(Durable):
    """Tell when a change is durable. ``error`` is set if it was given up."""

    __slots__ = ("_done", "change", "error", "gives_up")

    def __init__(self, change: EventChange, *, gives_up: bool) -> None:
        self.change = change
        self.gives_up = gives_up
        """Whether a failed write is reported at once instead of being repeated."""
        self.error: BaseException | None = None
        self._done = threading.Event()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the change is durable or given up; return whether it is."""
        return self._done.wait(timeout_s)

    def finish(self, error: BaseException | None = None) -> None:
        self.error = error
        self._done.set()


class CallTicket(Ticket):
    """Calls a function when a change is durable. No thread waits for it, so it needs no lock of its own."""

    __slots__ = ("_call",)

    def __init__(self, change: EventChange, call: Callable[[], None]) -> None:
        self.change = change
        self.gives_up = False
        self.error = None
        self._call = call

    def finish(self, error: BaseException | None = None) -> None:
        self.error = error
        self._call()


class EventWriter:
    """The writer of one process. Its thread starts with the first change; a forked child starts its own."""

    def __init__(self, database: TaskDatabase, spool: ShardSpool, when_down: WhenDown) -> None:
        self.database = database
        self._spool = spool
        self._when_down = when_down
        self._log = logs.logger()
        self._rate = LogRateLimit(_LOG_PERIOD_S)
        self._down_since: float | None = None
        self._next_try = 0.0
        self._changed = threading.Condition()
        self._queue: deque[EventChange | Ticket] = deque()
        self._taken: list[EventChange | Ticket] = []
        """The entries that the thread has taken and not written yet."""
        self._thread: SupervisedThread | None = None
        self._urgency = 0
        """The highest of the queued changes: ``_SOON`` if a job is acknowledged with one, ``_WAITED_FOR`` if a thread waits for one,
        ``_AT_ONCE`` if no job can start before one is written."""
        self._busy = self._closing = self._idle = False
        self._blocked = 0
        """The threads that wait for the writer, without those that hold a ticket."""
        _writers.add(self)

    def submit(self, change: EventChange) -> None:
        """Write a change soon. It waits for room if far too many changes wait; raises nothing."""
        with self._changed:
            if len(self._queue) >= _MAX_QUEUED and threading.current_thread() is not self._thread:
                self._block(lambda: len(self._queue) < _MAX_QUEUED, 1.0)
            self._add([change], [])

    def submit_durable(self, changes: Sequence[EventChange], *, gives_up: bool) -> list[Ticket]:
        """Write changes at once; return a ticket for each."""
        tickets = [Ticket(change, gives_up=gives_up) for change in changes]
        with self._changed:
            self._add([], tickets)
        return tickets

    def submit_end(self, change: EventChange, on_durable: Callable[[], None], *, at_once: bool = False) -> Ticket:
        """Write a change within some milliseconds or at once, and call ``on_durable`` then, in the thread of the writer."""
        ticket = CallTicket(change, on_durable)
        with self._changed:
            if self._thread is None:
                self._start_thread()
            self._queue.append(ticket)
            urgency = _AT_ONCE if at_once else _SOON
            # Also if this is the only change: the urgency may be that of changes which were given up.
            if self._urgency < urgency or len(self._queue) == 1:
                self._urgency = max(self._urgency, urgency)
                # A writer that collects changes looks for ends by itself: see `_take`.
                if self._idle and (at_once or len(self._queue) == 1):
                    self._changed.notify_all()
        return ticket

    def write(self, changes: Sequence[EventChange]) -> None:
        """Write changes, and return when they are durable.

        Raises:
            TaskDatabaseError: the database does not answer, and the setting ``tasks.database_down`` is ``wait``.
            TaskTablesError: the database lacks the tables.
        """
        for ticket in self.submit_durable(changes, gives_up=True):
            ticket.wait()
            if ticket.error is not None:
                raise ticket.error

    def close(self) -> None:
        """End the thread after its last batch. May be called twice."""
        with self._changed:
            thread, self._closing = self._thread, True
            self._changed.notify_all()
        if thread is not None:
            thread.join(_MAX_BACKOFF_S)

    def flush(self, timeout_s: float) -> bool:
        """Write all changes that wait; return whether that was possible in time."""
        deadline = time.monotonic() + timeout_s
        # A thread that died may have left it taken, and the process must end.
        if not self._changed.acquire(timeout=timeout_s):
            return False
        try:
            self._urgency = max(self._urgency, _WAITED_FOR)
            self._changed.notify_all()
            return self._block(lambda: not self._queue and not self._busy, max(0.0, deadline - time.monotonic()))
        finally:
            self._changed.release()

    def _block(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait for the writer."""
        self._blocked += 1
        try:
            return self._changed.wait_for(condition, timeout=timeout_s)
        finally:
            self._blocked -= 1

    def _add(self, changes: Sequence[EventChange], tickets: Sequence[Ticket]) -> None:
        # First: without the thread nothing is queued, and the caller gets the error.
        self._start_thread()
        self._queue.extend(changes)
        self._queue.extend(tickets)
        if tickets:
            self._urgency = max(self._urgency, _WAITED_FOR)
        if self._idle and (tickets or len(self._queue) in (1, MAX_BATCH)):
            self._changed.notify_all()

    def _start_thread(self) -> None:
        """Start the thread, unless it runs. Raises ThreadStartError."""
        if self._thread is None:
            thread = SupervisedThread("task-events", self._run, limit_s=_LIMIT_S)
            thread.start()
            self._thread = thread

    def _run(self) -> None:
        try:
            self._write_all()
        except BaseException as error:
            self._abandon(error)
            raise

    def _abandon(self, error: BaseException) -> None:
        """Let the pushes that wait fail, as the thread dies. The other changes wait for the next thread.

        A worker process ends before: the ends among them are not acknowledged, so that their jobs run again.
        """
        left = self._give_up(self._taken, TaskDatabaseError(self.database.name, error))
        with self._changed:
            self._queue.extendleft(reversed(left))
            self._taken = []
            self._thread, self._busy, self._idle = None, False, False
            self._changed.notify_all()

    def _write_all(self) -> None:
        thread: Any = threading.current_thread()
        failures = 0
        while (entries := self._take()) is not None:
            while entries:
                thread.steps += 1
                error = self._try(entries)
                thread.steps += 1
                if error is None:
                    failures = 0
                    break
                failures += 1
                entries = self._give_up(entries, error)
                self._taken = entries
                if entries:
                    time.sleep(backoff_s(failures, 0.05, _MAX_BACKOFF_S))
            with self._changed:
                self._taken, self._busy = [], False
                if self._blocked:
                    self._changed.notify_all()

    def _take(self) -> "list[EventChange | Ticket] | None":
        """Return the next batch, ``None`` when the writer is closed and all are written."""
        with self._changed:
            self._wait(lambda: bool(self._queue) or self._closing)
            if not self._queue:
                return None
            # In short waits: to be notified of the first end would cost two thread switches more for each batch.
            for _ in range(_LINGER_ROUNDS):
                self._wait(lambda: self._urgency >= _WAITED_FOR or len(self._queue) >= MAX_BATCH, _ENDS_S)
                if self._urgency or len(self._queue) >= MAX_BATCH:
                    break
            is_waited_for = self._urgency == _WAITED_FOR
        # Threads that the last batch has released end their next jobs about now: one transaction serves all of them.
        if is_waited_for and len(self._queue) < MAX_BATCH:
            time.sleep(_GROUP_S)
        with self._changed:
            entries = self._taken = [self._queue.popleft() for _ in range(min(MAX_BATCH, len(self._queue)))]
            self._urgency = max(map(_urgency_of, self._queue), default=0)
            self._busy = True
            if self._blocked:
                self._changed.notify_all()
            return entries

    def _wait(self, condition: Callable[[], bool], timeout_s: float | None = None) -> None:
        """Wait as the writer. Only then is it notified: a notification for each job would cost more than the job."""
        self._idle = True
        self._changed.wait_for(condition, timeout=timeout_s)
        self._idle = False

    def _try(self, entries: "Sequence[EventChange | Ticket]") -> Exception | None:
        """Write one batch to the database, else to the spool; return the error if neither took it."""
        changes = [one.change if isinstance(one, Ticket) else one for one in entries]
        began = time.monotonic()
        # A connection that does not answer costs seconds: while the spool serves, it is not asked for each batch.
        if self._down_since is not None and self._when_down == "continue" and began < self._next_try:
            return self._keep(entries, changes)
        try:
            if self._down_since is not None:
                self.database.ping()
            with limited(WRITE_S):
                write_changes(self.database, changes)
        except (SQLAlchemyError, OSError, TaskTablesError) as error:
            self._log_down(error)
            now = time.monotonic()
            self._next_try = now + min(max(_RETRY_S, _PAUSE_FACTOR * (now - began)), _LONGEST_RETRY_S)
            if self._when_down == "wait":
                return error if isinstance(error, TaskTablesError) else TaskDatabaseError(self.database.name, error)
            return self._keep(entries, changes)
        self._log_recovered()
        _finish(entries)
        return None

    def _keep(self, entries: "Sequence[EventChange | Ticket]", changes: Sequence[EventChange]) -> Exception | None:
        try:
            self._spool.keep(changes)
        except Exception as error:  # noqa: BLE001 - redis errors, unavailable shards: the batch is tried again
            self._log_down(error)
            return TaskDatabaseError(self.database.name, error)
        _finish(entries)
        return None

    def _give_up(self, entries: "Sequence[EventChange | Ticket]", error: Exception) -> "list[EventChange | Ticket]":
        """End the tickets that do not wait, those in the queue too; return the other entries of the batch."""
        with self._changed:
            queued = list(self._queue)
            self._queue = deque(one for one in queued if not _gives_up(one))
        for one in (*entries, *queued):
            if isinstance(one, Ticket) and one.gives_up:
                one.finish(error)
        return [one for one in entries if not _gives_up(one)]

    def _log_down(self, error: BaseException) -> None:
        if self._down_since is None:
            self._down_since = time.monotonic()
        effect = "jobs go on, their events are kept in Redis" if self._when_down == "continue" else "tracked jobs wait"
        self._rate.error(
            "database",
            f"the database of tasks does not take events; {effect} (setting tasks.database_down). Check the database",
            "tasks.database_failed",
            database=self.database.name,
            error=error,
        )

    def _log_recovered(self) -> None:
        if self._down_since is not None:
            self._log.info(
                "the database of tasks answers again",
                event_name="tasks.database_recovered",
                away_s=round(time.monotonic() - self._down_since, 3),
            )
            self._down_since = None

    def after_fork_in_child(self) -> None:
        """Begin without a thread in a forked child."""
        # The thread, the connections and the waiting changes belong to the parent.
        self._changed = threading.Condition()
        self._queue = deque()
        self._taken = []
        self._thread = None
        self._urgency = 0
        self._busy = self._idle = False
        self._blocked = 0
        self.database.dispose(close=False)


# Weak: a hook of a fork cannot be unregistered.
_writers: WeakSet[EventWriter] = WeakSet()


def _after_fork_in_child() -> None:
    for writer in list(_writers):
        writer.after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)


def _urgency_of(entry: "EventChange | Ticket") -> int:
    if isinstance(entry, CallTicket):
        return _SOON
    return _WAITED_FOR if isinstance(entry, Ticket) else 0


def _gives_up(entry: "EventChange | Ticket") -> bool:
    return isinstance(entry, Ticket) and entry.gives_up


def _finish(entries: "Sequence[EventChange | Ticket]") -> None:
    for one in entries:
        if isinstance(one, Ticket):
            one.finish()
