"""Unpack blocks of the payload store that are next in their queues, in a thread: no fetch and no acknowledgement waits for it.

At a crash: as ``fetch/blocks.py``. Until its block is unpacked, a queue counts as one without jobs.
"""

import threading

import redis
from redis.exceptions import RedisError

from framework.errors import StoredBlocksError
from framework.fetch.blocks import unpack
from framework.fetch.state import FetchState
from framework.supervised_threads import SupervisedThread
from framework.wire.sub_queues import SEPARATOR

_RETRY_S = 5.0
"""The time between two attempts while the payload store cannot be read."""


class StoredUnpacker:
    """Unpack one block after another. Safe from any thread. The thread lives while blocks wait."""

    def __init__(self, client: "redis.Redis", state: FetchState) -> None:
        self._client = client
        self._state = state
        self._lock = threading.Lock()
        self._next: dict[str, bytes] = {}
        """By queue the block that is next there."""
        self.waiting: frozenset[str] = frozenset()
        """The queues whose next jobs are in a block that is not unpacked yet."""
        self._closing = threading.Event()
        self._runs = False

    def request(self, queue: str, block: bytes) -> None:
        """Let the thread unpack the block that is next in a queue. Returns at once."""
        with self._lock:
            self._next[queue] = block
            self.waiting = self._whole_queues()
            if not self._runs and not self._closing.is_set():
                SupervisedThread("stored-unpacker", self._run).start()
                self._runs = True

    def close(self) -> None:
        """End the thread after its current step. Blocks that wait stay in their queues."""
        self._closing.set()

    def _run(self) -> None:
        while (found := self._first()) is not None:
            try:
                unpack(self._client, *found)
            except StoredBlocksError:
                # Its log line tells.
                self._closing.wait(_RETRY_S)
                continue
            except RedisError:
                # The next fetch meets the block again.
                pass
            with self._lock:
                self._next.pop(found[0], None)
                self.waiting = self._whole_queues()
            self._state.expect_jobs()

    def _whole_queues(self) -> frozenset[str]:
        # A queue goes on with the jobs of its other sub-queues.
        return frozenset(name for name in self._next if SEPARATOR not in name)

    def _first(self) -> tuple[str, bytes] | None:
        with self._lock:
            found = None if self._closing.is_set() else next(iter(self._next.items()), None)
            self._runs = found is not None
            return found
