"""Acknowledge and fetch for all worker threads, by one call at a time.

Any worker thread may make the call. While jobs are quick, the call is sent between two jobs and its reply is read between two
later ones, so that Redis and the process work at the same time and no thread switch is needed. A thread without a job waits
for the reply instead.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Protocol, TypeAlias, cast

import redis
from redis.exceptions import NoScriptError, RedisError, ResponseError

from framework.errors import PayloadError, StoredBlocksError
from framework.fetch.blocks import home_of, return_jobs, unpack
from framework.fetch.queues import Prefetch, ProcessLimits, QueueOrder, QueueRotation
from framework.fetch.state import FetchState
from framework.fetch.stored_unpacker import StoredUnpacker
from framework.fetch.unit_of_work import Move, UnitOfWork
from framework.recover.reaper import RecoveredJob
from framework.recover.suspects import MAX_UNACKNOWLEDGED
from framework.store.channel import Channel, open_channel
from framework.store.connect import COMMAND_TIMEOUT_S
from framework.store.script import FETCH, Script
from framework.text import decode_escaped
from framework.timings import STANDARD, Timings
from framework.wire import keys
from framework.wire.blocks import is_block, stored_id
from framework.wire.json import dumps_known, loads_object
from framework.wire.resources import Slot

ACK_BATCH = MAX_UNACKNOWLEDGED // 2
"""So many ended jobs are acknowledged at once while others run; as many again may end before the confirmation."""

MAX_ACKS_PER_CALL = 256
"""Most acknowledgements of one call: hundreds of async jobs may end at once."""

ACK_INTERVAL_S = 0.003
"""Fewer ended jobs are acknowledged this long after the last call."""

MAX_MOVES_PER_SCRIPT = 100
"""Most jobs that one script moves: a millisecond of Redis's time."""

MAX_ERRORS = 10
WINDOW_S = 10.0
"""``MAX_ERRORS`` errors of one type at one location within so many seconds: another try would not help."""

_MAX_LOCATIONS = 100

_Location: TypeAlias = tuple[type[BaseException], str, int]

# Continues while the machine is suspended, as Redis and the lease do.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


# A partial and no function of ours: two readings for each job.
clock: Callable[[], float] = partial(time.clock_gettime, _CLOCK)
"""Returns seconds of a steady clock that continues while the machine is suspended, where the system has one."""


class FetchEvents(Protocol):
    """Receive the events of fetching, for log lines and the launcher."""

    def fenced(self, unit: UnitOfWork) -> None:
        """An acknowledgement came too late: another process owns the job, which runs again."""

    def release_failed(self, error: str) -> None:
        """Redis refused a lock, slot or status of an acknowledged job."""

    def lease_lost(self) -> None:
        """The lease has expired; nothing is fetched until a heartbeat renews it."""

    def queue_wrong_type(self, queue: str) -> None:
        """The key of a queue is not a list; the other queues are served."""

    def fetch_failed(self, error: BaseException) -> None:
        """Redis does not answer; the fetcher tries again."""

    def pipeline_failed(self, error: Exception, count: int) -> None:
        """An error of the framework in fetching, the ``count``-th in a short time; the fetcher tries again."""

    def redis_answered(self, component: str) -> None:
        """Redis answers again after ``fetch_failed``."""

    def recovered(self, recovered: RecoveredJob) -> None:
        """A job has left the working list of this process without a run, because the reply of its fetch was lost."""


@dataclass(slots=True)
class FetchReply:
    """The reply of one call."""

    lease_held: bool
    """Whether the lease of this process is held; if not, any process may take the working list over."""
    fenced: list[UnitOfWork]
    """Ended units whose jobs another process owns."""
    wrong_type_queues: list[str]
    """Queues whose key is not a list."""
    units: list[UnitOfWork]
    source_queues: list[str]
    """The queues that the units came from."""
    wanted: int
    blocks: list[tuple[str, bytes]]
    """Queues whose next jobs are in a block, with the block."""
    release_errors: list[str]
    """Errors of locks, slots or statuses that jobs did not release or write."""
    moves: "list[_MovesCall]"
    shown: Sequence[UnitOfWork] = ()
    """Tracked jobs whose state is ``running`` now, unless they have ended."""


# Decision 38: worker threads fetch their own jobs, and at most 32 finished jobs are unconfirmed.
class FetchPipeline:
    """Acknowledge and fetch for all threads.

    Every failure leaves the same state: no call under way, each ended unit to be acknowledged again, the lock free, and calls
    stopped until ``probe``. The probe also finds the jobs of a reply that was lost or only partly read. So after an error of
    the framework the pipeline tries again, as after an error of Redis. A repeated error of the framework ends the process
    (``ErrorRateLimit``), and the reaper of another process recovers its jobs.
    """

    def __init__(
        self,
        client: "redis.Redis",
        identity: str,
        order: QueueOrder,
        state: FetchState,
        events: FetchEvents,
        process_limits: ProcessLimits,
        timings: Timings,
        fair_queues: AbstractSet[str] = frozenset(),
    ) -> None:
        self._call = FetchCall(
            client,
            identity,
            read_timeout_s=COMMAND_TIMEOUT_S,
            lease_ms=timings.lease_ms,
            fair_queues=fair_queues,
            slot_s=timings.slot_ttl_s,
        )
        self._client = client
        self._state = state
        self._in_flight = state.in_flight
        self._events = events
        self._process_limits = process_limits
        self._lock = threading.Lock()
        self._stored = StoredUnpacker(client, state)
        self._fair_queues = fair_queues
        self._rotation = QueueRotation(order)
        self.prefetch = Prefetch()
        self._error_rate = ErrorRateLimit(events)
        self._sent_at = 0.0
        self.acknowledging_since = 0.0
        """When a thread last began to acknowledge and wait. A watchdog reads it: a thread that tries again does not hang."""

    @property
    def queues(self) -> list[str]:
        """The queues that are served now, most important first, without those at their process limit."""
        return self._process_limits.queues_with_room([name for name, _ in self._rotation.served])

    @property
    def unfinished(self) -> bool:
        """Whether a reply is to be read, or an acknowledgement to be sent or confirmed."""
        return self._call.pending or bool(self._in_flight.done)

    @property
    def round_trip_due(self) -> bool:
        """Whether a thread without a job should make a round trip."""
        return self.unfinished or self._wanted() > 0 or self._in_flight.overdue

    def waited(self, seconds: float) -> None:
        """Leave out this time from the rate at which jobs end: no job could start. From any thread."""
        self.prefetch.waited(seconds)

    @property
    def ahead(self) -> int:
        """How many jobs end within ``AHEAD_S``, at the rate of the last ones."""
        return self.prefetch.ahead

    def _may_call(self) -> bool:
        return not self._state.failures and not self._state.suspended and self.round_trip_due

    @property
    def round_trip_unclaimed(self) -> bool:
        """Whether a round trip is due and no thread makes it."""
        return self.round_trip_due and not self._lock.locked()

    def flush_if_due(self, now: float) -> None:
        """Between two jobs: read the reply and send acknowledgements, if it is time. Does not wait for another thread."""
        in_flight, state = self._in_flight, self._state
        # As ``InFlight.unsent``, without its call: each job asks.
        unsent = len(in_flight.done) - in_flight.sent
        # With an empty buffer this thread makes the round trip next and waits for it: nothing to send ahead.
        if unsent <= 0 or not in_flight.buffer or state.failures or state.suspended:
            return
        if unsent >= ACK_BATCH or now - self._sent_at >= ACK_INTERVAL_S:
            self._flush_now(now, ACK_BATCH)

    def flush_before_wait(self) -> None:
        """Before the calling thread waits for Redis: send acknowledgements, so that no other thread must come for them.

        A few may wait, unless a job may wait for the slot of one that has ended.
        """
        unsent, state = self._in_flight.unsent, self._state
        if unsent > 0 and (unsent >= ACK_BATCH // 2 or state.slot_freed) and not state.failures and not state.suspended:
            self._flush_now(clock(), MAX_ACKS_PER_CALL)

    def _flush_now(self, now: float, max_acks: int) -> None:
        if self._lock.acquire(blocking=False):
            try:
                self._read_reply()
                if self._in_flight.done:
                    self._send(now, max_acks)
            except BaseException as error:  # noqa: BLE001 - see `_fail`
                self._fail(error)
            finally:
                self._lock.release()

    def fetch_and_wait(self) -> bool:
        """Make one round trip and wait for it, if it is due and no other thread makes it; return whether it was made."""
        # The call under way does not release the slot of a job that has ended since, for which other jobs may wait.
        if not self._may_call() or not self._lock.acquire(blocking=self._state.slot_freed):
            return False
        try:
            # The thread that made the call before may have failed, or may have found the lease lost.
            if not self._may_call():
                return False
            self._read_reply()
            # The reply may have brought jobs. They start first: another round trip would delay them.
            if not self._in_flight.startable:
                self._send(clock(), MAX_ACKS_PER_CALL)
                self._read_reply()
            elif self._state.slot_freed:
                # The thread that leads reads the reply.
                self._send(clock(), MAX_ACKS_PER_CALL)
        except BaseException as error:  # noqa: BLE001 - see `_fail`
            self._fail(error)
        finally:
            self._lock.release()
        return True

    def drain_reply(self) -> None:
        """Read the reply under way, if any: its jobs are younger than the buffered ones. Raises redis errors."""
        with self._lock:
            try:
                self._read_reply()
            except BaseException:
                self._reset_call()
                raise

    def flush(self) -> None:
        """Wait until every ended unit is acknowledged and confirmed. Raises redis errors."""
        while self.unfinished:
            with self._lock:
                try:
                    self._acknowledge_and_wait()
                except (RedisError, OSError):
                    raise
                except Exception as error:  # noqa: BLE001 - a framework error: tried again until its rate is too high
                    self._error_rate.record(error)

    def probe(self, on_redis_back: Callable[[], None]) -> None:
        """After a failure: ask whether Redis answers and the lease is held, and resume calls. Raises redis errors.

        If calls had failed, ``on_redis_back`` runs before the next call: no reply to an earlier call can arrive any more.
        """
        with self._lock:
            self._state.note_lease(held=self._acknowledge_and_wait())
            if self._state.failures:
                on_redis_back()
                self._events.redis_answered("fetcher")
            self._state.recover()

    def pause(self, queues: Collection[str]) -> bool:
        """Skip exactly these queues from now on; return whether that is a change."""
        with self._lock:
            changed = self._rotation.pause(queues)
            if changed:
                self._state.expect_jobs()
        return changed

    def fail(self, error: BaseException) -> None:
        """Record a failure: no more calls until ``probe`` succeeds. Raises an error that cannot be tried again."""
        with self._lock:
            self._fail(error)

    def suspend(self) -> None:
        """Start no job until ``probe`` finds the lease held: it is, or may be, lost."""
        if self._state.suspend():
            self._events.lease_lost()

    def _wanted(self) -> int:
        if self._state.queues_empty or self._state.closed:
            return 0
        return self.prefetch.wanted(self._in_flight.free_capacity, self._in_flight.waiting)

    def _acknowledge_and_wait(self) -> bool:
        """Acknowledge without fetching, and wait for the reply; return whether the lease is held. Raises redis errors."""
        self.acknowledging_since = clock()
        try:
            self._read_reply()
            self._send(clock(), MAX_ACKS_PER_CALL, fetch=False)
            return self._read_reply()
        except BaseException:
            self._reset_call()
            raise

    def _send(self, now: float, max_acks: int, *, fetch: bool = True) -> None:
        # Before the ended jobs are taken, for a slot that is freed meanwhile. And before the send: the reconciler may see in Redis
        # what the call did, and must know that its reply is under way.
        self._state.fetch_begins()
        wanted = self._wanted() if fetch else 0
        # Before the ended jobs: one that ends in between is not in the working list when its state would be written.
        shown = self._in_flight.take_unshown()
        ended = self._in_flight.take_done(max_acks)
        self.prefetch.ended(len(ended), now)
        self._sent_at = now
        queues = self._process_limits.quotas(self._rotation.next(wanted, now)) if wanted else []
        self._call.send(ended, queues, wanted, now, shown)

    def _read_reply(self) -> bool:
        """Read the reply under way, if any; return whether the lease was held."""
        if not self._call.pending:
            return True
        lease_held = self._apply_reply(self._call.read())
        self._state.fetch_ended()
        return lease_held

    def _apply_reply(self, reply: FetchReply) -> bool:
        # Units first: an error in a log line or a statistic must not lose a unit.
        self._in_flight.confirm()
        self._in_flight.confirm_shown(reply.shown)
        # A blocking call takes a block like a job.
        taken = [unit for unit in reply.units if is_block(unit.data)]
        if reply.units and reply.lease_held:
            self._in_flight.add([unit for unit in reply.units if unit not in taken] if taken else reply.units)
        self._process_limits.fetch_ended()
        for call in reply.moves:
            self._apply_moves(call, reply)
        for unit in reply.fenced:
            self._events.fenced(unit)
        for error in reply.release_errors:
            self._events.release_failed(error)
        for queue in reply.wrong_type_queues:
            self._events.queue_wrong_type(queue)
        if not reply.lease_held:
            self.suspend()
            return False
        if reply.units:
            self.prefetch.arrived([len(unit.data) for unit in reply.units])
        here = self._blocks_in_redis(reply.blocks)
        if reply.wanted:
            self._rotation.record_found(reply.source_queues, enough=len(reply.units) >= reply.wanted)
            # Jobs that have waited at a limit were in no queue.
            found = here or any(unit.granted is None for unit in reply.units)
            empty = not found and len(reply.units) < reply.wanted and self._rotation.all_checked
            self._state.note_queues(empty=empty, unready={*reply.wrong_type_queues, *self._stored.waiting})
        # Last: the jobs of the reply are in flight, and run meanwhile.
        self._unpack(here, taken)
        return True

    def _blocks_in_redis(self, found: Sequence[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
        """Return the blocks that this thread unpacks. Another one unpacks those of the payload store: until then their queues have
        no jobs for this process."""
        here = list[tuple[str, bytes]]()
        for queue, block in found:
            # The fetch was of a queue, and the block may be in one of its sub-queues.
            name = home_of(loads_object(block), queue) if queue in self._fair_queues else queue
            if stored_id(block) is None:
                here.append((name, block))
            else:
                self._stored.request(name, block)
        return here

    def _unpack(self, next_blocks: Sequence[tuple[str, bytes]], taken: Sequence[UnitOfWork]) -> None:
        """Unpack blocks that are next in their queues, and those that this process has taken like jobs."""
        for queue, block in next_blocks:
            unpack(self._client, queue, block)
        for unit in taken:
            # If this fails, or the payload store cannot be read, the reconciler finds the block in the working list.
            with suppress(StoredBlocksError):
                try:
                    is_read = return_jobs(self._client, self._call.working, unit.queue, unit.data) is not None
                except PayloadError:
                    is_read = False
                if not is_read:
                    # Its run says so.
                    self._in_flight.add([unit])
        if taken:
            self._state.expect_jobs()

    def _apply_moves(self, call: "_MovesCall", reply: FetchReply) -> None:
        """Tell the moves of one call what Redis has done. A unit whose job was not moved stays in flight."""
        words, units = call.words, call.units
        if isinstance(words, Exception):
            for unit, move, _ in units:
                self._in_flight.leave_unmoved(unit)
                move.refused(words)
            return
        not_moved = set[int]()
        for position, word in zip(words[::2], words[1::2], strict=True):
            if not position:
                units[0][1].noted(word)
            elif position < 0:
                reply.release_errors.append(decode_escaped(word))
            else:
                unit, move, was_sent = units[int(position) - 1]
                if word:
                    not_moved.add(int(position) - 1)
                    self._in_flight.leave_unmoved(unit)
                    move.stays()
                elif not was_sent:
                    not_moved.add(int(position) - 1)
                    reply.fenced.append(unit)
        for index, (_, move, _) in enumerate(units):
            if index not in not_moved:
                move.moved()

    def _fail(self, error: BaseException) -> None:
        """Reset the call and stop all calls. Raises the error if a second try cannot help (``SystemExit``, say)."""
        try:
            self._reset_call()
        except Exception as worse:  # noqa: BLE001 - every step of the reset has done its part before it could fail
            error = worse
        self._state.note_failure()
        if isinstance(error, RedisError | OSError):
            self._events.fetch_failed(error)
        elif isinstance(error, Exception):
            self._error_rate.record(error)
        else:
            raise error

    def close(self) -> None:
        self._stored.close()
        self._call.close()

    def _reset_call(self) -> None:
        # The call may have run. A second LREM of the same bytes is harmless: it finds nothing.
        self._in_flight.mark_unsent()
        try:
            self._call.close()
        finally:
            # Also after an error: no reply can arrive any more, and room that stays requested would be lost for ever.
            self._process_limits.fetch_ended()
            self._state.fetch_ended()


class ErrorRateLimit:
    """Limit the rate of the framework's own errors in fetching: each is reported with its count, and a repeated one is raised.

    Errors are counted by type and location. For one thread at a time.
    """

    def __init__(self, events: FetchEvents) -> None:
        self._events = events
        self._seen: dict[_Location, deque[float]] = {}

    def record(self, error: Exception) -> None:
        """Report an error; raise it if it is the ``MAX_ERRORS``-th within ``WINDOW_S``, which ends its thread and the process."""
        location = (type(error), *_raised_at(error.__traceback__))
        # A process that runs for months must not collect locations without end.
        if location not in self._seen and len(self._seen) >= _MAX_LOCATIONS:
            self._seen.clear()
        times = self._seen.setdefault(location, deque(maxlen=MAX_ERRORS))
        now = time.monotonic()
        times.append(now)
        self._events.pipeline_failed(error, sum(now - at <= WINDOW_S for at in times))
        if len(times) == MAX_ERRORS and now - times[0] <= WINDOW_S:
            raise error


def _raised_at(trace: TracebackType | None) -> tuple[str, int]:
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return (trace.tb_frame.f_code.co_filename, trace.tb_lineno) if trace is not None else ("", 0)


@dataclass(slots=True)
class _FetchRequest:
    queues: list[str]
    wanted: int
    arguments: tuple[Any, ...]
    sent_at: float
    acknowledged: list[UnitOfWork]
    moves: "list[_MovesCall]"
    shown: Sequence[UnitOfWork]


@dataclass(slots=True)
class _MovesCall:
    """The call of one script that moves several ended jobs."""

    script: Script
    arguments: list[Any]
    units: list[tuple[UnitOfWork, Move, bool]]
    """Each unit, its move, and whether it was sent before."""
    words: list[Any] | Exception = field(default_factory=list[Any])
    """What the script has replied (``Move``), or the error by which Redis has refused it."""

    def add(self, unit: UnitOfWork, move: Move) -> None:
        self.arguments += (unit.data, *move.arguments)
        self.units.append((unit, move, move.note_sent()))

    def read_words(self, channel: Channel, words: Any) -> None:
        """Keep the reply; a server that does not know the script gets its source. Raises errors of the connection."""
        self.words = words
        if isinstance(words, NoScriptError):
            try:
                self.words = channel.call(*self.script.by_source(*self.arguments))
            except ResponseError as error:
                self.words = error


class FetchCall:
    """A connection with at most one call under way. For one thread at a time; raises redis errors."""

    def __init__(
        self,
        client: "redis.Redis",
        identity: str,
        *,
        read_timeout_s: float,
        lease_ms: int,
        fair_queues: AbstractSet[str] = frozenset(),
        slot_s: int = STANDARD.slot_ttl_s,
    ) -> None:
        self._fair_queues = fair_queues
        self._slot_s = str(slot_s)
        self._channel = open_channel(client, read_timeout_s=read_timeout_s)
        self._lease = keys.lease(identity)
        self.working = keys.working(identity)
        self._lease_ms = lease_ms
        self._request: _FetchRequest | None = None

    @property
    def pending(self) -> bool:
        """Whether a call has been sent and its reply has not been read."""
        return self._request is not None

    def send(
        self,
        ended: list[UnitOfWork],
        queues: list[tuple[str, int]],
        wanted: int,
        now: float,
        shown: Sequence[UnitOfWork] = (),
    ) -> None:
        """Move or acknowledge ``ended``, and request ``wanted`` jobs from ``queues`` (name, quota).

        ``now`` becomes their ``fetched_at``. The state of the tracked jobs ``shown``, which run, becomes ``running``.
        """
        moves = list(_moves_of(ended))
        if moves:
            ended = [unit for unit in ended if unit.move is None]
        names = [name for name, _ in queues]
        arguments: tuple[Any, ...] = (
            # The number of keys: the lease, the working list and the queues.
            2 + len(names),
            self._lease,
            self.working,
            *map(keys.queue, names),
            self._lease_ms,
            wanted,
            len(ended),
            *[unit.data for unit in ended],
            *([quota for _, quota in queues] if not self._fair_queues else map(self._quota, queues)),
        )
        arguments += _released(ended, shown, self._slot_s)
        self._channel.send(*(one.script.by_digest(*one.arguments) for one in moves), FETCH.by_digest(*arguments))
        self._request = _FetchRequest(names, wanted, arguments, now, ended, moves, shown)

    def _quota(self, queue: tuple[str, int]) -> str | int:
        """Return the argument for a queue and its quota: ``fetch.lua`` looks for sub-queues where it is marked."""
        name, quota = queue
        return f"~{quota}" if name in self._fair_queues else quota

    def read(self) -> FetchReply:
        """Wait for the reply and return it; after an error the call may or may not have run."""
        request = self._request
        assert request is not None, "nothing was sent"  # noqa: S101
        try:
            reply = self._read(request)
        finally:
            # Only now: `pending` must stay true until the reply has been read.
            self._request = None
        return _parse_reply(request, reply)

    def close(self) -> None:
        """Close the connection; the next call opens a new one."""
        self._request = None
        self._channel.close()

    def _read(self, request: "_FetchRequest") -> list[Any]:
        *moved, reply = self._channel.replies(len(request.moves) + 1)
        if isinstance(reply, NoScriptError):
            reply = self._channel.call(*FETCH.by_source(*request.arguments))
        elif isinstance(reply, RedisError):
            raise reply
        for call, words in zip(request.moves, moved, strict=True):
            call.read_words(self._channel, words)
        return cast("list[Any]", reply)


def _moves_of(ended: list[UnitOfWork]) -> Iterator[_MovesCall]:
    """Yield the calls that move those of ``ended`` that have a move: one for each script with its keys."""
    calls: dict[tuple[Any, ...], _MovesCall] = {}
    for unit in ended:
        move = unit.move
        if move is None:
            continue
        kind = (move.script, move.names, move.shared)
        call = calls.get(kind)
        if call is None or len(call.units) == MAX_MOVES_PER_SCRIPT:
            call = calls[kind] = _MovesCall(move.script, [len(move.names), *move.names, *move.shared], [])
            yield call
        call.add(unit, move)


def _released(ended: list[UnitOfWork], shown: Sequence[UnitOfWork], slot_s: str) -> tuple[Any, ...]:
    """Return the arguments for what acknowledged jobs hold, and for tracked jobs that run; none if there is nothing, as mostly.

    Jobs that get the slots of a limit from this call keep each for ``slot_s`` seconds, unless it is renewed. Jobs of one limit,
    or with a lock, or that get one state, share a part. What else a job holds is JSON, one text for all.
    """
    others: list[tuple[int, dict[str, Any]]] = []
    parts: dict[tuple[str, str, str], tuple[list[int], list[str]]] = {}
    for position, unit in enumerate(ended, 1):
        released = unit.released_on_ack
        if released is None:
            continue
        slots, status, lock, fields = released
        if fields is not None:
            others.append((position, fields))
            continue
        for base, member in slots:
            _add(parts, ("slot", base, slot_s), position, member)
        if lock is not None:
            _add(parts, ("lock", "", ""), position, lock.key, lock.owner)
        if status is not None:
            key, state, seconds = status
            _add(parts, ("state", state, seconds), position, key)
    if not others and not parts and not shown:
        return ()
    arguments: list[Any] = [dumps_known(others) if others else ""]
    for names, (positions, values) in parts.items():
        arguments += (*names, len(values), " ".join(map(str, positions)), *values)
    for unit in shown:
        key, seconds = unit.running_status or ("", "")
        arguments += ("running", "running", seconds, 2, "", unit.data, key)
    return tuple(arguments)


def _add(
    parts: dict[tuple[str, str, str], tuple[list[int], list[str]]],
    names: tuple[str, str, str],
    position: int,
    *values: str,
) -> None:
    found = parts.get(names)
    if found is None:
        found = parts[names] = ([], [])
    found[0].append(position)
    found[1].extend(values)


def _parse_reply(request: _FetchRequest, reply: list[Any]) -> FetchReply:
    units: list[UnitOfWork] = []
    source_queues: list[str] = []
    blocks: list[tuple[str, bytes]] = []
    release_errors: list[str] = []
    # Behind three fixed values the reply has pairs: the position of a queue, from 1, and its jobs; the same below 0, and a block; or
    # 0 and an error. A list has the position of a queue, and of each of its jobs the limit at which it has waited and its slot.
    for position in range(3, len(reply), 2):
        place: Any = reply[position]
        if isinstance(place, list):
            number, *slots = cast("list[Any]", place)
            queue = request.queues[int(number) - 1]
            source_queues.append(queue)
            units += [
                UnitOfWork.with_slot(
                    queue, data, request.sent_at, Slot(slots[2 * at].decode(), slots[2 * at + 1].decode())
                )
                for at, data in enumerate(reply[position + 1])
            ]
            continue
        if reply[position] <= 0:
            if reply[position]:
                blocks.append((request.queues[-int(reply[position]) - 1], reply[position + 1]))
            else:
                release_errors.append(decode_escaped(reply[position + 1]))
            continue
        queue = request.queues[int(reply[position]) - 1]
        source_queues.append(queue)
        units += [UnitOfWork(queue, data, request.sent_at) for data in reply[position + 1]]
    wrong_type = [request.queues[int(position) - 1] for position in reply[2]]
    fenced = [request.acknowledged[int(position) - 1] for position in reply[1]]
    return FetchReply(
        bool(reply[0]),
        fenced,
        wrong_type,
        units,
        source_queues,
        request.wanted,
        blocks,
        release_errors,
        request.moves,
        request.shown,
    )
