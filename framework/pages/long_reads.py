"""Read what takes longer than a page may: the first answer has a part, the read goes on, and each later view shows more."""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from typing import Generic, TypeVar

from redis.exceptions import RedisError

from framework.shard.redis_errors import unavailable_error
from framework.shard.shard import Shard
from framework.store.deadline import sent_commands
from framework.supervised_threads import SupervisedThread

T = TypeVar("T")

ANSWER_WITHIN_S = 1.0
"""The longest wait for the first answer."""

_SHARE = 0.5
"""The share of a core that a read takes after its first answer: other pages are served meanwhile."""

_UNSEEN_S = 15.0
"""A read that no viewer asks about ends after this time."""

_REST_S, _MOST_STEP_S = 0.25, 0.5
"""The wait after the first answer, and the longest one after a step."""

_AT_ONCE = 2
"""The reads of one shard that run at a time; others wait for them."""

_FORMER_S = 300.0
"""What was read longer ago is not shown while a page reads again."""

_MOST = 50
"""The reads that are kept."""


class ReadEndedError(Exception):
    """Ends a read that no viewer asks about."""


class ShardRead(Generic[T]):
    """The read of one shard: what its thread has found so far. The thread tells of each step."""

    def __init__(self, whole: "LongRead[T]", part_s: float) -> None:
        self.found: list[T] = []
        self.notes: list[str] = []
        """What could not be looked at."""
        self.share = 0.0
        """How much of the shard was read."""
        self.commands = 0
        """The commands that its thread has sent."""
        self.processor_s = 0.0
        self.is_over = False
        self.error: Exception | None = None
        self._whole = whole
        self._part_s = part_s
        self._began_s, self._sent_before = 0.0, 0

    def begin(self) -> None:
        """Begin to count the processor time and the commands, in the thread that reads."""
        self._began_s, self._sent_before = time.thread_time(), sent_commands()

    def finish(self) -> None:
        """Note that all was read."""
        self._note_spent()
        self.share = 1.0

    def step(self) -> None:
        """Note the end of a step; wait after the first answer.

        Raises:
            ReadEndedError: no viewer asks any more.
        """
        spent_s = self.processor_s
        self._note_spent()
        own_s = self.processor_s - spent_s
        if self.processor_s >= self._part_s and not self._whole.is_unseen:
            is_first = self._whole.answer(self)
            # The first answer is made meanwhile.
            least_s = _REST_S if is_first else 0.0
            time.sleep(max(least_s, min(_MOST_STEP_S, own_s * (self._whole.shards_count / _SHARE - 1))))
        if self._whole.is_unseen:
            raise ReadEndedError

    def _note_spent(self) -> None:
        self.processor_s = time.thread_time() - self._began_s
        self.commands = sent_commands() - self._sent_before


class LongRead(Generic[T]):
    """A read of some shards at the same time, each in a thread of its own."""

    def __init__(self, shards: Sequence[Shard], part_s: float) -> None:
        self.shards_count = len(shards)
        self.by_shard = {one.name: ShardRead(self, part_s) for one in shards}
        self.is_shown = False
        """Whether a viewer has seen the whole: the next view reads again."""
        self.ended_at = 0.0
        """When the last shard so far was read, in epoch seconds."""
        self.former: LongRead[T] | None = None
        """The whole read before it, which a page may show until this one is over."""
        self._lock = threading.Lock()
        self._unanswered = set(self.by_shard.values())
        self._wakes: list[Callable[[], None]] = []
        self._seen_at = time.monotonic()
        self._shards = shards
        self._noted = (0.0, 0)

    def start(self, slots: Mapping[str, threading.Semaphore], step: Callable[[str, ShardRead[T]], None]) -> None:
        """Start a thread for each shard."""
        for one in self._shards:
            context = copy_context()
            run = self._run
            SupervisedThread(f"long read {one.name}", context.run, run, one, slots[one.name], step).start()

    @property
    def is_over(self) -> bool:
        return all(one.is_over for one in self.by_shard.values())

    @property
    def is_unseen(self) -> bool:
        return time.monotonic() > self._seen_at + _UNSEEN_S

    def spent(self) -> tuple[float, int]:
        """Return the processor time and the commands of all shards since the last call."""
        reads = self.by_shard.values()
        processor_s, commands = sum(one.processor_s for one in reads), sum(one.commands for one in reads)
        noted_s, noted = self._noted
        self._noted = processor_s, commands
        return processor_s - noted_s, commands - noted

    def end(self) -> None:
        """Let the threads end at their next steps."""
        self._seen_at = 0.0 - _UNSEEN_S

    def answer(self, one: ShardRead[T]) -> bool:
        """Note that a shard has read the part for the first answer; return whether it is the first time."""
        if one not in self._unanswered:
            return False
        with self._lock:
            self._unanswered.discard(one)
            wakes, self._wakes = ([], self._wakes) if self._unanswered else (self._wakes, [])
        for wake in wakes:
            # The loop was closed meanwhile.
            with suppress(RuntimeError):
                wake()
        return True

    async def first(self) -> None:
        """Wait until each shard has read its part, but not for long."""
        self._seen_at = time.monotonic()
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(done.set)

        with self._lock:
            if not self._unanswered:
                return
            self._wakes.append(wake)
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_WITHIN_S):
                await done.wait()

    def _run(self, shard: Shard, slots: threading.Semaphore, step: Callable[[str, ShardRead[T]], None]) -> None:
        one = self.by_shard[shard.name]
        try:
            with slots:
                one.begin()
                step(shard.name, one)
                one.finish()
        except ReadEndedError:
            pass
        except (RedisError, OSError) as error:
            one.error = unavailable_error(shard.name, shard.endpoint, error)
        # A viewer sees it, as that of another read.
        except Exception as error:  # noqa: BLE001
            one.error = error
        finally:
            self.ended_at = time.time()
            one.is_over = True
            self.answer(one)


def percent_of(reads: Mapping[str, ShardRead[T]]) -> int:
    """Return how much was read of the shards together, in percent: 100 once all is read."""
    if all(one.is_over for one in reads.values()):
        return 100
    return min(99, int(100 * sum(one.share for one in reads.values()) / len(reads)))


class LongReads:
    """The long reads of a dashboard: those that run, and the last ones that have ended."""

    def __init__(self) -> None:
        self._slots: dict[str, threading.Semaphore] = {}
        self._found: dict[tuple[object, ...], LongRead[object]] = {}

    def get(self, key: tuple[object, ...]) -> "LongRead[object] | None":
        """Return the read that the next view shows; ``None`` if it reads again."""
        found = self._found.get(key)
        return None if found is None or found.is_shown or (found.is_unseen and not found.is_over) else found

    def begin(
        self,
        key: tuple[object, ...],
        shards: Sequence[Shard],
        step: Callable[[str, ShardRead[object]], None],
        part_s: float,
    ) -> "LongRead[object]":
        """Begin to read."""
        for one in shards:
            self._slots.setdefault(one.name, threading.Semaphore(_AT_ONCE))
        before = self._found.get(key)
        made = self._found[key] = LongRead(shards, part_s)
        if before is not None and before.is_shown and time.time() - before.ended_at < _FORMER_S:
            made.former, before.former = before, None
        made.start(self._slots, step)
        while len(self._found) > _MOST:
            self._found.pop(next(iter(self._found))).end()
        return made

    def forget(self) -> None:
        """End all reads: something was changed, or the server ends."""
        for one in self._found.values():
            one.end()
        self._found.clear()
