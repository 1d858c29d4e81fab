"""Know whether the memory of a shard is short, so that no step of a worker process takes more of it.

The process that measures the memory writes a key while the memory is near its end. The others look for that key together with the
other keys that an idle shard lacks, so it costs them nothing while there is enough.
"""

from collections.abc import Callable
from typing import cast

import redis
from redis.exceptions import ResponseError

from framework.store.absent_keys import AbsentKeys
from framework.wire import keys

NEAR, SHORT, ENOUGH = 0.75, 0.9, 0.85
"""Shares of what Redis may use: from the first on the key exists, from the second on memory is short, until below the third."""

_NEAR_WORD, SHORT_WORD = b"near", b"short"


def pressure_word(used: int, most: int, *, was_short: bool) -> bytes:
    """Return the value of the key; empty for none. ``most`` is what Redis may use, 0 if that is not known."""
    if not most or used < most * NEAR:
        return b""
    return SHORT_WORD if used >= most * (ENOUGH if was_short else SHORT) else _NEAR_WORD


class MemoryPressure:
    """Whether the memory of one shard is short, as one process knows it. Any thread may read ``short``."""

    def __init__(self, client: "redis.Redis", absent: AbsentKeys, changed: Callable[[], None]) -> None:
        """``changed`` is called when memory becomes short, and when it is not any more."""
        self._client = client
        self._absent = absent
        self._changed = changed
        self.short = False
        self.near = False

    def refresh(self) -> None:
        """Read the key, unless it is known not to exist. Raises redis errors."""
        word = b""
        if self._absent.may_exist(keys.MEMORY_PRESSURE):
            try:
                word = cast("bytes | None", self._client.get(keys.MEMORY_PRESSURE)) or b""
            except ResponseError:
                word = b""
            self._absent.note(keys.MEMORY_PRESSURE, found=bool(word))
        self.note(word)

    def note(self, word: bytes) -> None:
        """Note the value of the key."""
        was_short, self.near, self.short = self.short, bool(word), word == SHORT_WORD
        if was_short != self.short:
            self._changed()
