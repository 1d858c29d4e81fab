"""Keep the idle connections of one shard. Any thread takes and returns them without a lock."""

import os
from collections import deque
from collections.abc import Sequence
from time import monotonic
from typing import Any
from weakref import WeakSet

import redis
from redis.exceptions import NoScriptError, ResponseError

from framework.store.channel import Channel
from framework.store.script import Script

MAX_IDLE_CHANNELS = 16
"""The most idle channels kept open. A thread beyond that connects for one push only."""

HEALTH_CHECK_AFTER_S = 0.1
"""A channel idle for longer is checked before use: its server may have stopped or restarted meanwhile."""


# Decision 15: channels of its own, because redis-py's pool, packing and parsing cost as much as the round trip.
class ChannelPool:
    """Keep a free list of channels.

    A channel belongs to one thread between ``acquire`` and ``release``; a failed channel is not returned.
    """

    def __init__(self, client: "redis.Redis", *, read_timeout_s: float) -> None:
        self._client = client
        self._read_timeout_s = read_timeout_s
        # append and pop of a deque are atomic, so that threads need no lock (decision 150).
        self._free: deque[tuple[Channel, float]] = deque()
        self.last_reply_at = 0.0
        """When a channel was last released with all of its replies read (monotonic seconds)."""
        _pools.add(self)

    def acquire(self) -> Channel:
        """Return the channel used last, or a new one, for a call that begins now."""
        now = monotonic()
        try:
            channel, since = self._free.pop()
        except IndexError:
            return self.new_channel(now)
        if now - since > HEALTH_CHECK_AFTER_S and not channel.healthy():
            channel.close()
        channel.began = now
        return channel

    def new_channel(self, began: float) -> Channel:
        """Return a new channel for a call that began at ``began`` (monotonic seconds). It connects when it first sends."""
        channel = Channel(self._client, read_timeout_s=self._read_timeout_s)
        channel.began = began
        return channel

    def release(self, channel: Channel) -> None:
        """Return a channel with all replies read to the pool. A closed channel connects again when it next sends."""
        self.last_reply_at = now = monotonic()
        if len(self._free) < MAX_IDLE_CHANNELS:
            self._free.append((channel, now))
        else:
            channel.close()

    def run_script(self, script: Script, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        """Run a script once and return its reply. Raises redis errors: then the script may have run."""
        channel = self.acquire()
        try:
            try:
                reply = channel.call(*script.by_digest(len(keys), *keys, *arguments))
            except NoScriptError:
                reply = channel.call(*script.by_source(len(keys), *keys, *arguments))
        except ResponseError:
            # The reply was read: the channel can be used again.
            self.release(channel)
            raise
        self.release(channel)
        return reply

    def close(self) -> None:
        """Close the idle channels. Channels in use stay with their threads."""
        while self._free:
            try:
                channel, _ = self._free.pop()
            # Another thread took the last one.
            except IndexError:
                return
            channel.close()

    def reset_after_fork(self) -> None:
        """Discard the idle channels without a message to the server: after a fork they belong to the parent."""
        self._free = deque()


_pools: WeakSet[ChannelPool] = WeakSet()


def _reset_all_after_fork() -> None:
    for channels in list(_pools):
        channels.reset_after_fork()


os.register_at_fork(after_in_child=_reset_all_after_fork)
