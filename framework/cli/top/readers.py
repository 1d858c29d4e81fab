"""Read each shard again and again in a thread of its own: a shard that does not answer delays no other, and no key."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from redis.exceptions import RedisError

from framework.cli.top.facts import ShardFacts, read_facts
from framework.cli.top.rates import RateWindow, ShardRates
from framework.errors import FrameworkError
from framework.supervised_threads import SupervisedThread
from framework.text import format_clock_time

LARGEST_SHARE = 0.1
"""The most of its time that a reader waits for Redis: a slow shard is read more rarely."""


@dataclass(slots=True)
class ShardReading:
    """The last facts of a shard, and why it does not answer now; written by its reader alone, as a new object."""

    facts: ShardFacts | None = None
    rates: ShardRates = ShardRates()  # noqa: RUF009 - immutable
    failure: str = ""
    crash: BaseException | None = None
    """An error that does not come from Redis: it ends the view."""


class ShardReader:
    """The thread that reads one shard. ``reading`` has the newest state."""

    def __init__(self, shard: str, period_s: float, on_news: Callable[[], None]) -> None:
        self.shard = shard
        self.reading = ShardReading()
        self.shown_set = ""
        """The set whose jobs are read too."""
        self._period_s = period_s
        self._on_news = on_news
        self._due = threading.Event()
        self._window = RateWindow()
        self._thread = SupervisedThread(f"read {shard}", self._run)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def read_soon(self) -> None:
        """Read once more now, instead of at the end of the period."""
        self._due.set()

    def read(self) -> None:
        """Read once."""
        try:
            facts = read_facts(self.shard, self.shown_set)
        except (FrameworkError, RedisError, OSError) as error:
            before = self.reading
            at = format_clock_time(time.time())
            failure = (
                before.failure or f"no answer since {at}{', its figures are older' if before.facts else ''}: {error}"
            )
            self.reading = ShardReading(before.facts, before.rates, failure)
        else:
            self.reading = ShardReading(facts, self._window.add(facts))

    def _run(self) -> None:
        while True:
            self._due.clear()
            began_at = time.monotonic()
            try:
                self.read()
            except BaseException as error:  # noqa: BLE001 - the thread of the view raises it
                self.reading = ShardReading(crash=error)
            self._on_news()
            if self.reading.crash is not None:
                return
            took_s = time.monotonic() - began_at
            self._due.wait(max(self._period_s, took_s / LARGEST_SHARE))
