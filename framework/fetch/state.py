"""Hold the state of the fetching of one process: its jobs in flight, the calls under way, and what stops new calls.

The fetcher owns the state. Its parts change it only by the methods of this module, and every other module only reads it.
Threads ask the fetcher, which knows no thread.
"""

import contextlib
import socket
import time
from collections import deque
from collections.abc import Iterable, Sequence
from threading import Lock, get_ident
from typing import NamedTuple

from framework.fetch.unit_of_work import UnitOfWork
from framework.recover.suspects import MAX_UNACKNOWLEDGED

SHOWN_AFTER_S = 0.005
"""The state ``running`` of a tracked job is written when the job has run for so long, or with an earlier call: most end before."""

MAX_GROUP = 32
"""The most jobs that are taken along when one is admitted: enough that a round trip costs a job little."""


class InFlight:
    """The jobs that a capsule of this process has fetched and not finished: the memory image of its working list.

    The running jobs are numbered from ``first_index``; capsules have different numbers. A unit is buffered, then running, then
    done. It stays in flight until Redis has confirmed its removal from the working list. Every step is one operation on a deque
    or dict, atomic under the interpreter's lock, so no other lock is needed. Iteration runs over a copy, and the copy is one
    such operation too (decision 150). ``start`` and ``end`` are safe from any thread.
    """

    def __init__(self, concurrency: int, first_index: int = 0) -> None:
        self.concurrency = concurrency
        self.buffer: deque[UnitOfWork] = deque()
        self.done: deque[UnitOfWork] = deque()
        """Ended units without confirmation, oldest first; the acknowledgements of the first ``sent`` are under way."""
        self.sent = 0
        self.last_started_at = 0.0
        self._returned: set[bytes] | None = None
        self._returned_lock = Lock()
        # A semaphore too: a thread that pops an index may run a job.
        self._free_indexes = deque(range(first_index, first_index + concurrency))
        # By `id`, since two units may have the same bytes.
        self._running: dict[int, UnitOfWork] = {}
        self._by_id: dict[int, UnitOfWork] = {}
        self.left: dict[int, UnitOfWork] = {}
        """Units whose jobs have ended, and which are acknowledged when their events are durable. They have no place."""
        self._unshown: dict[int, UnitOfWork] = {}
        """Tracked units that run and whose state in Redis is not yet ``running``, oldest first."""
        self._being_admitted: list[UnitOfWork] = []
        """Units that a thread has taken along to ask for their admission: neither buffered nor running for one round trip."""
        # Held by the thread that has taken them.
        self._admitting = Lock()

    @property
    def free_capacity(self) -> int:
        return len(self._free_indexes)

    @property
    def acknowledgements_full(self) -> bool:
        """Whether no job may start because ``MAX_UNACKNOWLEDGED`` acknowledgements are unconfirmed."""
        return len(self.done) >= MAX_UNACKNOWLEDGED

    @property
    def unsent(self) -> int:
        return len(self.done) - self.sent

    @property
    def startable(self) -> bool:
        """Whether a buffered job may start now."""
        is_open = len(self.done) + len(self.left) < MAX_UNACKNOWLEDGED and not self._admitting.locked()
        return is_open and bool(self.buffer and self._free_indexes)

    def add(self, units: Sequence[UnitOfWork]) -> None:
        # By id first: another thread may start and end a unit as soon as it is in the buffer.
        self._by_id.update(zip(map(id, units), units, strict=True))
        self.buffer.extend(units)

    def start(self, now: float) -> UnitOfWork | None:
        """Start the oldest buffered unit and return it; ``None`` without a unit, or without free capacity.

        ``None`` too while older units are being admitted: at a death only the oldest count as started (``recover/suspects.py``).
        """
        if len(self.done) + len(self.left) >= MAX_UNACKNOWLEDGED:
            return None
        try:
            index = self._free_indexes.pop()
        except IndexError:
            return None
        # Asked after the pop of the index, which `take_next` counts, and after the pop of the unit, which it would have taken.
        unit: UnitOfWork | None = None
        if not self._admitting.locked():
            try:
                unit = self.buffer.popleft()
            except IndexError:
                unit = None
        if unit is not None and self._admitting.locked():
            self.buffer.appendleft(unit)
            unit = None
        if unit is None:
            self._free_indexes.append(index)
            return None
        unit.run_index = index
        unit.thread = get_ident()
        unit.started_at = time.time()
        self.last_started_at = now
        self._running[id(unit)] = unit
        return unit

    @property
    def waiting(self) -> int:
        return len(self.buffer) + len(self._being_admitted)

    def take_next(self, ahead: int) -> list[UnitOfWork]:
        """Take the buffered units that start next, oldest first: as many as there is free capacity, or ``ahead`` if that is more.

        They stay in flight, and no unit starts until ``put_back_taken``, which must follow. Of two threads the second gets none.
        Each of them counts as started if the process dies (``recover/suspects.py``): what the script does for it is known then.
        """
        if not self._admitting.acquire(blocking=False):
            return []
        # Before `done`: a unit that ends in between counts twice.
        free = len(self._free_indexes)
        most = min(MAX_GROUP, max(free, ahead), free + MAX_UNACKNOWLEDGED - len(self.done) - len(self.left))
        self._being_admitted = taken = list[UnitOfWork]()
        try:
            while len(taken) < most:
                taken.append(self.buffer.popleft())
        except IndexError:
            # The buffer is empty.
            pass
        if not taken:
            self._admitting.release()
        return taken

    def put_back_taken(self, units: Sequence[UnitOfWork]) -> None:
        """Make units of ``take_next`` the oldest in the buffer again."""
        if units:
            # Buffer first: a reader of all units that have not started must not miss one.
            self.put_back_next(units)
            self._being_admitted = []
            self._admitting.release()

    def put_back_next(self, units: Sequence[UnitOfWork]) -> None:
        """Make the units the oldest in the buffer again."""
        self.buffer.extendleft(reversed(units))

    def put_back(self, unit: UnitOfWork) -> None:
        """Undo ``start``: the unit becomes the oldest in the buffer again."""
        del self._running[id(unit)]
        self.buffer.appendleft(unit)
        self._free_indexes.append(unit.run_index)

    def end(self, unit: UnitOfWork, *, settled: bool) -> None:
        """End a unit and free its place. ``settled``: the job has left the working list; else it is to be acknowledged."""
        del self._running[id(unit)]
        if unit.running_status is not None:
            self._unshown.pop(id(unit), None)
        if settled:
            del self._by_id[id(unit)]
        else:
            self.done.append(unit)
        self._free_indexes.append(unit.run_index)

    def leave(self, unit: UnitOfWork) -> bool:
        """Free the place of a unit whose job has ended, before ``end_left``. Return whether mostly such units let no job start."""
        self.left[id(unit)] = unit
        del self._running[id(unit)]
        self._unshown.pop(id(unit), None)
        self._free_indexes.append(unit.run_index)
        is_full = MAX_UNACKNOWLEDGED - len(self.done) <= len(self.left) >= MAX_UNACKNOWLEDGED // 2
        if is_full:
            # The thread that has started job after job stops here: the leader must not wait for it to go on.
            self.last_started_at = 0.0
        return is_full

    def show(self, unit: UnitOfWork, status: tuple[str, str]) -> None:
        """Let a later call write that the job of a tracked unit runs, unless it ends before; ``status``: its key and seconds."""
        unit.note_running(status)
        self._unshown[id(unit)] = unit

    @property
    def shows(self) -> bool:
        """Whether a tracked job runs whose state in Redis is not yet ``running``."""
        return bool(self._unshown)

    @property
    def overdue(self) -> bool:
        """Whether such a job has run for so long that its state is to be written without another reason for a call."""
        if not self._unshown:
            return False
        oldest = next(iter(list(self._unshown.values())), None)
        # A clock that was set back must not hide the job.
        return oldest is not None and not 0 <= time.time() - oldest.started_at < SHOWN_AFTER_S

    def take_unshown(self) -> list[UnitOfWork]:
        """Return the oldest tracked units whose state is to be ``running``; ``confirm_shown`` follows if that was written."""
        return list(self._unshown.values())[:MAX_GROUP] if self._unshown else []

    def confirm_shown(self, units: Iterable[UnitOfWork]) -> None:
        for unit in units:
            self._unshown.pop(id(unit), None)

    def leave_unmoved(self, unit: UnitOfWork) -> None:
        """Keep a confirmed unit whose job Redis has refused to move, until ``end_unmoved``; it counts as not confirmed."""
        unit.forget_move()
        self._by_id[id(unit)] = self.left[id(unit)] = unit

    def end_unmoved(self, unit: UnitOfWork) -> None:
        """End a unit of ``leave_unmoved``: its job has left the working list."""
        self._by_id.pop(id(unit), None)
        self.left.pop(id(unit), None)

    def end_left(self, unit: UnitOfWork) -> None:
        """Acknowledge a unit that has left its place."""
        self.done.append(unit)
        del self.left[id(unit)]

    def take_done(self, limit: int) -> list[UnitOfWork]:
        """Return at most ``limit`` ended units to acknowledge; ``confirm`` or ``mark_unsent`` must follow."""
        taken = list(self.done)[:limit]
        self.sent = len(taken)
        return taken

    def confirm(self) -> list[UnitOfWork]:
        """Remove the units whose acknowledgements and moves were sent, after the reply has arrived; return them."""
        confirmed: list[UnitOfWork] = []
        while self.sent:
            unit = self.done.popleft()
            self.sent -= 1
            self._by_id.pop(id(unit), None)
            confirmed.append(unit)
        return confirmed

    def mark_unsent(self) -> None:
        """Send the same acknowledgements again: their reply was lost (LREM finds nothing the second time)."""
        self.sent = 0

    @property
    def has_released_lock(self) -> bool:
        """Whether a buffered unit has given up its lock, so that it starts even if the process stops."""
        return any(unit.released_lock is not None for unit in list(self.buffer))

    @property
    def oldest_returnable(self) -> UnitOfWork | None:
        """The oldest buffered unit that can return to its queue; ``None`` if there is none."""
        return next((unit for unit in list(self.buffer) if not unit.has_moved), None)

    def take_buffer(self) -> list[UnitOfWork]:
        """Empty the buffer and return its units, oldest first; they stay in flight until ``remove``."""
        taken: list[UnitOfWork] = []
        try:
            while True:
                taken.append(self.buffer.popleft())
        except IndexError:
            # The buffer is empty, or another thread has started the last unit.
            return taken
        except BaseException:
            self.buffer.extendleft(reversed(taken))
            raise

    def remove(self, units: Sequence[UnitOfWork]) -> None:
        """Remove units that were returned to their queues: they have left the working list."""
        try:
            # Noted before they leave memory: the reconciler must never find them in neither.
            self.note_returned(unit.data for unit in units)
        finally:
            # Also after an error: a unit that stays here would count against the process limit of its queue for ever.
            for unit in units:
                self._by_id.pop(id(unit), None)

    def note_returned(self, payloads: Iterable[bytes]) -> None:
        """Note payloads that were returned to their queues, or are about to be."""
        with self._returned_lock:
            if self._returned is not None:
                self._returned.update(payloads)

    def swap_returned(self, noted: set[bytes] | None) -> set[bytes]:
        """Return the payloads returned since the last call; from now on note them in ``noted`` (``None``: nowhere)."""
        with self._returned_lock:
            before, self._returned = self._returned, noted
        return before or set()

    def running(self) -> list[UnitOfWork]:
        return list(self._running.values())

    def buffered(self) -> list[UnitOfWork]:
        # In this order: a unit that goes back to the buffer meanwhile is found at least once.
        being_admitted = list(self._being_admitted)
        buffered = list(self.buffer)
        return [*buffered, *(unit for unit in being_admitted if unit not in buffered)]

    def unfinished(self) -> list[UnitOfWork]:
        """The units whose jobs run or have not started, in any order; none is missed if it changes its state meanwhile."""
        units = list(self._by_id.values())
        ended = set(map(id, list(self.done)))
        return [unit for unit in units if id(unit) not in ended]

    def payloads(self) -> set[bytes]:
        """The bytes of every unit in flight, those with an acknowledgement under way included."""
        return {unit.data for unit in list(self._by_id.values())}


class ReplySnapshot(NamedTuple):
    """A moment, as the numbers of calls that were under way at it."""

    fetches: int
    polls: int


class FetchState:
    """The state of fetching. Only these methods change it; each has one caller at a time, unless it says otherwise.

    The counts say which replies have not been read. Redis moves a job to the working list before the process reads the reply. A
    reply stays unread while the process is stopped (SIGSTOP) or its reader is busy; until then a job in the working list that
    memory does not know is no lost job.
    """

    def __init__(self, concurrency: int, first_index: int = 0) -> None:
        self.in_flight = InFlight(concurrency, first_index)
        self.wake_up = WakeUp()
        """Makes the leader take a step."""
        self.closed = False
        """Whether no more jobs are fetched (quiet, stop)."""
        self.stopped = False
        """Whether no thread gets another job."""
        self.suspended = False
        """Whether the lease was lost when last seen: then any process may take the working list over, and no job may start."""
        self.failures = 0
        """The number of consecutive failed calls. Above 0 no call is made but the leader's probe."""
        self.queues_empty = False
        """Whether the last fetch from every queue found nothing: then only a blocking call or a sweep finds new jobs."""
        self.slot_freed = False
        """Whether a job with a slot has ended since the last call: a job may wait for its slot."""
        self.unready_queues: frozenset[str] = frozenset()
        """Queues from which nothing can be fetched, as the last fetch found: no blocking call waits there, and sweeps look again."""
        self.fetches_sent = 0
        """Fetches sent; at most one is under way."""
        self.fetches_read = 0
        """Fetches whose reply was read or given up: their jobs are in flight."""
        self.polls_started = 0
        """Polls of the blocking calls that have started."""
        self.polls_ended = 0
        """The last poll that has ended: the jobs that had arrived at its start are in flight."""
        self.poll_requested = False
        """Whether a thread waits for the next poll."""

    @property
    def ready(self) -> bool:
        return not self.suspended and self.in_flight.startable

    # --- the end of fetching; from any thread

    def close(self) -> None:
        self.closed = True
        self.wake_up.wake()

    def stop(self) -> None:
        """Fetch no more jobs, and give no thread another one."""
        self.stopped = True
        self.close()

    def stop_in_forked_child(self) -> None:
        """Give no thread another job. Wake no thread: the sockets belong to the parent too."""
        self.stopped = True

    # --- failures and the lease

    def note_failure(self) -> None:
        """Stop all calls until ``recover``. For the holder of the pipeline's lock."""
        self.failures += 1
        self.wake_up.wake()

    def suspend(self) -> bool:
        """Let no job start until ``note_lease`` finds the lease held; return whether that is a change. From any thread."""
        was_suspended, self.suspended = self.suspended, True
        self.wake_up.wake()
        return not was_suspended

    def note_lease(self, *, held: bool) -> None:
        """Let jobs start if the lease is held. For the holder of the pipeline's lock."""
        self.suspended = not held

    def recover(self) -> None:
        """Allow calls again, after one was answered. For the holder of the pipeline's lock."""
        self.failures = 0
        self.queues_empty = False

    # --- the queues

    def expect_jobs(self) -> None:
        """Let the next call fetch: a queue may have a job again. From any thread."""
        self.queues_empty = False

    def note_slot_freed(self) -> None:
        """Let a thread call soon: a job may wait for the slot of a job that has ended. From any thread."""
        self.slot_freed = True
        self.queues_empty = False

    def note_queues(self, *, empty: bool, unready: Iterable[str]) -> None:
        """Note what a fetch has found; ``unready`` as ``unready_queues``. For the holder of the pipeline's lock."""
        # A job may wait for a slot that was freed meanwhile, and comes with the call that releases it, if that fetches.
        self.queues_empty = empty and not self.slot_freed
        self.unready_queues = frozenset(unready)

    # --- the calls under way

    def fetch_begins(self) -> None:
        """Count a fetch, before its ended jobs are taken. For the holder of the pipeline's lock."""
        self.slot_freed = False
        self.fetches_sent += 1

    def fetch_ended(self) -> None:
        """Note that no reply is under way any more, after its jobs are in flight. For the holder of the pipeline's lock."""
        self.fetches_read = self.fetches_sent

    def poll_begins(self) -> None:
        """Count a poll of the blocking calls, before it starts. For the leader."""
        # Cleared before the poll is counted: a request that arrives in between stays set, and costs at most one more poll.
        self.poll_requested = False
        self.polls_started += 1

    def poll_ended(self) -> None:
        """Note the end of a poll, after its jobs are in flight. For the leader."""
        self.polls_ended = self.polls_started

    def snapshot_replies(self) -> ReplySnapshot:
        """Return the present moment, and make the leader read soon what is under way. From any thread."""
        taken = ReplySnapshot(self.fetches_sent, self.polls_started + 1)
        self.poll_requested = True
        self.wake_up.wake()
        return taken

    def all_read_since(self, snapshot: ReplySnapshot) -> bool:
        """Return whether every call that was under way at that moment has been read or given up."""
        return self.fetches_read >= snapshot.fetches and self.polls_ended >= snapshot.polls


class WakeUp:
    """A socket pair that ends a wait in ``select``. ``wake`` is safe from any thread; one thread waits and drains."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def fileno(self) -> int:
        """Return the descriptor that is readable after ``wake``."""
        return self._reader.fileno()

    def wake(self) -> None:
        """End the current or next wait at once."""
        # The socket is full of wake-ups.
        with contextlib.suppress(BlockingIOError):
            self._writer.send(b"\0")

    def drain(self) -> None:
        """Forget the wake-ups so far."""
        try:
            while self._reader.recv(4096):
                pass
        except BlockingIOError:
            pass

    def close(self) -> None:
        self._reader.close()
        self._writer.close()
