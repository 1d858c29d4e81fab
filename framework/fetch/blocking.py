"""Wait for jobs by one BLMOVE per queue, straight into the working list, so that waiting costs Redis nothing.

Each blocking call has a connection of its own. If the process dies during a call, Redis may move one more job to the
working list of the process before Redis sees the death; so the reaper sweeps the list of a dead process until none of its
blocking calls can be alive. If only the
connection dies (a network that drops packets), Redis serves that call first, because it has waited the longest; so the call
is cancelled by its client id as soon as Redis can be reached.
"""

import contextlib
import select
import selectors
import time
from dataclasses import dataclass
from typing import Any

import redis
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from framework.fetch.state import WakeUp
from framework.fetch.unit_of_work import UnitOfWork
from framework.store.channel import Channel, open_channel
from framework.timings import Timings
from framework.wire import keys

UNBLOCK_REPLY_S = 1.0
"""How long a cancelled call may take to answer: a few round trips. Later its connection counts as dead."""

MAX_BLOCKED_QUEUES = 16
"""Blocking connections per process; a periodic sweep serves further queues."""


@dataclass(slots=True)
class _BlockedCall:
    """One connection. It stays registered with the selector: a registration per job would cost more than the wait."""

    channel: Channel
    client_id: int
    descriptor: int
    queue: str = ""
    """The queue of the call; empty while the connection is idle."""
    armed_at: float = 0.0


class BlockingMoves:
    """Blocking calls, polled by one thread; ``wake_up`` ends its wait."""

    def __init__(self, client: "redis.Redis", working_list: str, wake_up: WakeUp, timings: Timings) -> None:
        self._client = client
        self._working_list = working_list
        self._block_timeout_s = timings.block_timeout_s
        self._overdue_after_s = timings.blocking_call_s
        self._selector = selectors.DefaultSelector()
        self._armed: dict[str, _BlockedCall] = {}
        self._idle: list[_BlockedCall] = []
        self._wake_up = wake_up
        self._selector.register(wake_up, selectors.EVENT_READ, None)
        self._unanswered: list[tuple[int, float]] = []
        """Calls closed without an answer: client id, and until when (monotonic) Redis may still serve them."""
        self.connection_lost_at: float | None = None
        """When a call was last closed without an answer (monotonic seconds): until it times out in Redis, a job may
        still arrive in the working list."""

    @property
    def queues(self) -> set[str]:
        return set(self._armed)

    def arm(self, queue: str) -> None:
        """Send a blocking call for ``queue``. Raises a redis error if no connection can be made."""
        call = self._idle.pop() if self._idle else self._open()
        try:
            call.channel.send(
                # The oldest job of a queue is at its right end, and that of a working list too.
                ("BLMOVE", keys.queue(queue), self._working_list, "RIGHT", "LEFT", f"{self._block_timeout_s:g}")
            )
        except BaseException:
            self._close(call)
            raise
        call.armed_at = time.monotonic()
        call.queue = queue
        self._armed[queue] = call

    def wait(self, timeout_s: float) -> list[tuple[str, bytes, float]]:
        """Wait for a job, a wake-up or the timeout; return (queue, payload, seconds waited) of the jobs that arrived.

        They are in the working list. Raises the redis error of a broken call, after its connection was closed.
        """
        arrived: list[tuple[str, bytes, float]] = []
        failure: RedisError | None = None
        for key, _ in self._selector.select(min(timeout_s, self._overdue_in_s())):
            if key.data is None:
                self._wake_up.drain()
                continue
            call: _BlockedCall = key.data
            if not call.queue:
                self._idle.remove(call)
                # Redis has closed an idle connection.
                self._close(call)
                continue
            queue, waited = call.queue, time.monotonic() - call.armed_at
            try:
                data = self._read_reply(call)
            except RedisError as error:
                failure = error
                continue
            if data is not None:
                arrived.append((queue, data, waited))
        if arrived:
            # The queue of a failed call gets another call, which raises the error.
            return arrived
        if failure is not None:
            raise failure
        self._check_overdue()
        return []

    def cancel_all(self, *, no_wait: bool = False) -> list[UnitOfWork]:
        """Cancel every blocking call, those closed without an answer too; return the jobs that arrived meanwhile.

        CLIENT UNBLOCK makes Redis answer each call, so no job is under way afterwards. A call without an answer after
        ``UNBLOCK_REPLY_S`` is on a dead connection, which is closed. Where an ACL forbids CLIENT UNBLOCK, the calls end within
        ``Timings.block_timeout_s``, or are closed at once if ``no_wait``. All calls share one deadline, so that a server that
        hangs costs one wait.
        """
        arrived: list[UnitOfWork] = []
        timeout_s = UNBLOCK_REPLY_S
        try:
            self._unblock()
        except ResponseError:
            # The rights of the Redis user do not include CLIENT UNBLOCK.
            timeout_s = 0.0 if no_wait else self._overdue_after_s
        except (RedisError, OSError):
            self.drop_connections()
        deadline = time.monotonic() + timeout_s
        for queue, call in list(self._armed.items()):
            if not _has_answered(call, deadline - time.monotonic()):
                self._drop_call(queue)
                continue
            try:
                data = self._read_reply(call)
            except RedisError:
                # The connection broke: a job it may have moved is in the working list, where the reconciler finds it.
                continue
            if data is not None:
                arrived.append(UnitOfWork(queue, data))
        return arrived

    def drop_connections(self) -> None:
        for queue in list(self._armed):
            self._drop_call(queue)
        for call in self._idle:
            self._close(call)
        self._idle.clear()

    def close(self) -> None:
        self.drop_connections()
        self._selector.close()

    def _open(self) -> _BlockedCall:
        channel = open_channel(self._client, read_timeout_s=self._overdue_after_s)
        try:
            # Before any blocking call: CLIENT UNBLOCK needs the id, and a blocked connection cannot be asked.
            client_id = int(channel.call("CLIENT", "ID"))
            call = _BlockedCall(channel, client_id, channel.fileno())
            self._selector.register(call.descriptor, selectors.EVENT_READ, call)
        except BaseException:
            channel.close()
            raise
        return call

    def _read_reply(self, call: _BlockedCall) -> bytes | None:
        # First: whatever the read raises, no call waits at this queue any more, and another one may be armed.
        self._armed.pop(call.queue)
        call.queue = ""
        try:
            reply = call.channel.read()
        except ResponseError:
            # Redis refused the call: no job was moved.
            self._close(call)
            raise
        except BaseException:
            self._close_unanswered(call)
            raise
        self._idle.append(call)
        return reply if isinstance(reply, bytes) else None

    def _drop_call(self, queue: str) -> None:
        self._close_unanswered(self._armed.pop(queue))

    def _close_unanswered(self, call: _BlockedCall) -> None:
        self._close(call)
        self.connection_lost_at = now = time.monotonic()
        self._unanswered = [(client_id, until) for client_id, until in self._unanswered if until > now]
        self._unanswered.append((call.client_id, call.armed_at + self._overdue_after_s))

    def _unblock(self) -> None:
        """Make Redis end every call of this process that it may still hold, in one round trip. Raises redis errors."""
        now = time.monotonic()
        client_ids = [client_id for client_id, until in self._unanswered if until > now]
        client_ids += [call.client_id for call in self._armed.values()]
        if not client_ids:
            return
        pipeline: Any = self._client.pipeline(transaction=False)
        for client_id in client_ids:
            # After a restart of Redis the id may belong to another client, which reads the UNBLOCK as a timeout.
            pipeline.client_unblock(client_id)
        pipeline.execute()
        self._unanswered.clear()

    def _close(self, call: _BlockedCall) -> None:
        # A failed channel has closed itself.
        with contextlib.suppress(KeyError, ValueError, OSError):
            self._selector.unregister(call.descriptor)
        call.channel.close()

    def _overdue_in_s(self) -> float:
        """Return the seconds until the oldest blocking call is overdue; the dict has the calls in the order of arming."""
        oldest = next(iter(self._armed.values()), None)
        if oldest is None:
            return self._block_timeout_s
        return max(0.0, oldest.armed_at + self._overdue_after_s - time.monotonic())

    def _check_overdue(self) -> None:
        latest = time.monotonic() - self._overdue_after_s
        overdue = [queue for queue, call in self._armed.items() if call.armed_at < latest]
        for queue in overdue:
            self._drop_call(queue)
        if overdue:
            raise RedisTimeoutError(f"no answer to a blocking call within {self._overdue_after_s:g} s")


def _has_answered(call: _BlockedCall, within_s: float) -> bool:
    """Wait until the connection of a call has data or is closed; return ``False`` if neither happens in time."""
    # Not `select.select`, which accepts no descriptor above 1,023.
    poll = select.poll()
    poll.register(call.descriptor, select.POLLIN)
    return bool(poll.poll(max(0.0, within_s) * 1000))
