"""The open channels of one shard that nobody uses at the moment: taken and given back by any thread, without a lock."""

import os
from collections import deque
from time import monotonic
from weakref import WeakSet

import redis

from framework.store.channel import Channel

MAX_IDLE_CHANNELS = 16
"""Channels kept open; threads beyond that connect for their push alone."""

HEALTH_CHECK_AFTER_S = 0.1
"""A channel that idle for longer is looked at before it is used: its server may have gone or been restarted meanwhile."""


# Decision 15: channels of its own, because redis-py's pool, packing and parsing cost as much as the round trip.
class ChannelPool:
    """A free list. A channel is one thread's between ``take`` and ``release``; one that failed is not given back."""

    def __init__(self, client: "redis.Redis", *, read_timeout_s: float) -> None:
        self._client = client
        self._read_timeout_s = read_timeout_s
        self._free: deque[tuple[Channel, float]] = deque()
        self.last_reply_at = 0.0
        """When some channel was last given back, all of its replies read (monotonic seconds)."""
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
        """Return a new channel, which connects when it first sends, for a call that began then (monotonic seconds)."""
        channel = Channel(self._client, read_timeout_s=self._read_timeout_s)
        channel.began = began
        return channel

    def release(self, channel: Channel) -> None:
        """Keep a channel all of whose replies were read; one that a refusal has closed connects anew when it next sends."""
        self.last_reply_at = now = monotonic()
        if len(self._free) < MAX_IDLE_CHANNELS:
            self._free.append((channel, now))
        else:
            channel.close()

    def close(self) -> None:
        """Close what is kept; channels in use are their users' to give back."""
        while self._free:
            try:
                channel, _ = self._free.pop()
            except IndexError:  # another thread took the last one
                return
            channel.close()

    def reset_after_fork(self) -> None:
        """Drop what is kept without a word to the server: after a fork it belongs to the parent."""
        self._free = deque()


_pools: WeakSet[ChannelPool] = WeakSet()


def _reset_all_after_fork() -> None:
    for channels in list(_pools):
        channels.reset_after_fork()


os.register_at_fork(after_in_child=_reset_all_after_fork)
