"""Compute the memory that JSON takes when it is parsed, before parsing it, from its structure and in chunks.

``[],`` is three bytes of JSON and 82 bytes of memory, and 100 kB of compressed text hold 30 million of them. The figures
below are the most that CPython takes for each kind of value, measured by ``tests/wire/test_footprint.py``. Small integers
and repeated keys, which are cached, take less: with many of them the result is up to six times too high.
"""

import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate

from framework.errors import PayloadLimitError

DECODED_LIMIT = 256_000_000
"""The default limit in bytes of memory for the values of one payload."""

DECODED_LIMIT_SETTING = "size_limit.decoded_limit"

MAX_MEMORY_PER_BYTE = 80
"""The most memory per byte of valid JSON (``{},`` counts as 67). JSON that cannot exceed a limit by this factor is not measured."""

LARGE_PAYLOAD = 4_000_000
"""Bytes of memory from which decoding reserves its share of the process's memory budget."""

_POINTER, _SCALAR, _TEXT, _KEY, _LIST, _OBJECT = 16, 32, 64, 80, 88, 184
_CHUNK = 1 << 16
_ASCII, _LATIN_1, _WIDE, _ASTRAL = 1, 2, 3, 5
"""Bytes of memory per byte of a text by its widest character, including the copy made while parsing."""

# The bytes that occur in UTF-8 of characters below U+0100, and below U+10000.
_OF_LATIN_1, _BELOW_ASTRAL = (
    bytes(range(0xC4)),
    bytes(range(0xF0)),
)
_NO_STRUCTURE = bytes(set(range(256)) - set(b'",:[{'))
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_escapes_astral, _escapes_wide = re.compile(rb"\\u[dD][89a-fA-F]").search, re.compile(rb"\\u(?!00)").search
_STEP = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


class _Structure:
    """Read JSON chunk by chunk and leave out the contents of its texts."""

    __slots__ = ("_carry", "_inside", "quotes", "width")

    def __init__(self) -> None:
        self.quotes = 0
        """The number of quotes that begin or end a text."""
        self.width = _ASCII
        """The width of the characters written as escapes."""
        self._carry = b""
        self._inside = 0

    def outside(self, chunk: bytes) -> bytes:
        """Return the bytes of the next chunk that are outside of texts."""
        if self._carry or b"\\" in chunk:
            chunk = self._without_escapes(self._carry + chunk)
        parts = chunk.split(b'"')
        found = b"".join(parts[self._inside :: 2])
        quotes = len(parts) - 1
        self.quotes += quotes
        self._inside ^= quotes & 1
        return found

    def _without_escapes(self, chunk: bytes) -> bytes:
        """Remove the escapes, so that every remaining quote begins or ends a text."""
        backslashes = len(chunk) - len(chunk.rstrip(b"\\"))
        # The character escaped by a last single backslash comes with the next chunk.
        self._carry = b"\\" if backslashes % 2 else b""
        chunk = chunk[: len(chunk) - len(self._carry)].replace(b"\\\\", b"")
        if self.width < _ASTRAL and b"\\u" in chunk:
            self.width = (
                _ASTRAL if _escapes_astral(chunk) else _WIDE if _escapes_wide(chunk) else max(self.width, _LATIN_1)
            )
        return chunk.replace(b'\\"', b"")


class Footprint:
    """Sum the memory of one JSON document from its chunks, in order.

    Without a ``structure``, characters inside of texts count as structure. The result is then never too low, and computed
    several times as fast.
    """

    __slots__ = ("_colons", "_commas", "_empty", "_lists", "_objects", "_quotes", "_structure", "_width", "size")

    def __init__(self, structure: _Structure | None = None) -> None:
        self.size = 0
        """Bytes of JSON so far."""
        self._commas = self._colons = self._empty = self._lists = self._objects = self._quotes = 0
        self._width = _ASCII
        self._structure = structure

    def add(self, chunk: bytes) -> None:
        """Add the next chunk. Small chunks keep the memory of the measurement itself small."""
        self.size += len(chunk)
        if not chunk.isascii() and self._width < _ASTRAL:
            self._widen(chunk)
        structure = self._structure
        if structure is None:
            # Removing all other bytes first halves the time, because each count then reads only the rest.
            outside = chunk.translate(None, _NO_STRUCTURE)
            self._quotes += outside.count(b'"')
            # An escape may stand for any character.
            self._width = _ASTRAL if b"\\" in chunk else self._width
        else:
            outside = structure.outside(chunk)
            self._quotes = structure.quotes
            self._width = max(self._width, structure.width)
        self._commas += outside.count(b",")
        self._colons += outside.count(b":")
        self._lists += outside.count(b"[")
        self._objects += outside.count(b"{")
        if structure is not None:
            # Empty containers are slow to find. Without a structure they are left out: the sum is then only greater.
            self._empty += outside.count(b"[]") + outside.count(b"{}")

    @property
    def memory(self) -> int:
        """Return the most bytes that the values take, without the JSON itself."""
        containers = self._lists + self._objects
        values = self._commas + containers + 1 - self._empty
        texts = self._quotes // 2
        # The figure of a key includes its text. Without a structure keys are not recognized and all texts count as texts.
        texts, scalars = (
            (texts, values) if self._structure is None else (texts - self._colons, values - texts - containers)
        )
        return (
            self._width * self.size
            + _POINTER * values
            + _SCALAR * max(0, scalars)
            + _TEXT * max(0, texts)
            + _KEY * self._colons
            + _LIST * self._lists
            + _OBJECT * self._objects
        )

    def _widen(self, chunk: bytes) -> None:
        """Raise the width to that of the chunk's widest character: it decides the size of all characters of its text."""
        if chunk.translate(None, _BELOW_ASTRAL):
            self._width = _ASTRAL
        else:
            self._width = max(self._width, _WIDE if chunk.translate(None, _OF_LATIN_1) else _LATIN_1)


def measure(read: Callable[[], Iterable[bytes]], limit: int) -> Footprint:
    """Return the footprint of the document that ``read`` returns in chunks; stop reading above ``limit`` bytes of memory.

    Most documents are small even if their texts count as structure. Only others are read again and measured exactly.

    Raises:
        PayloadLimitError: the document takes more than ``limit``.
    """
    # Two passes cost less than one exact pass: finding texts by their quotes is slow if there are many.
    enough = min(limit, LARGE_PAYLOAD)
    found = Footprint()
    for chunk in read():
        found.add(chunk)
        if found.memory > enough:
            break
    else:
        return found
    found = Footprint(_Structure())
    for chunk in read():
        found.add(chunk)
        if found.memory > limit:
            reason = f"decoded, it takes more than {limit:,} bytes of memory"
            raise PayloadLimitError(reason, limit, setting=DECODED_LIMIT_SETTING)
    return found


def footprint_of(data: bytes) -> Footprint:
    found = Footprint(_Structure())
    for chunk in pieces(data):
        found.add(chunk)
    return found


def is_nested_deeper(data: bytes, levels: int) -> bool:
    """Return whether arrays and objects of this JSON are nested deeper than ``levels``, without building them."""
    structure, depth = _Structure(), 0
    for chunk in pieces(data):
        brackets = structure.outside(chunk).translate(None, _NO_BRACKETS)
        if not brackets:
            continue
        reached = list(accumulate(map(_STEP.__getitem__, brackets), initial=depth))
        if max(reached) > levels:
            return True
        depth = reached[-1]
    return False


def may_exceed(size: int, limit: int) -> bool:
    """Return whether JSON of ``size`` bytes may take more memory than ``limit``."""
    return size > limit // MAX_MEMORY_PER_BYTE


def pieces(data: bytes) -> Iterator[bytes]:
    return (data[start : start + _CHUNK] for start in range(0, len(data), _CHUNK))


# At a crash: the budget belongs to this process. If it dies while a job waits for its share, the job is in the working list, from
# which another process takes it.

DECODING_BUDGET = 256_000_000
"""The default budget in bytes."""

# Seconds between two checks whether the process stops.
_STOP_CHECK_S = 0.1


class MemoryBudget:
    """Grant bytes first come, first served, so that small requests never starve a large one. Shared between threads.

    A caller releases its share before it acquires a larger one. No caller holds a share while waiting, so no two wait for each
    other. A request above the capacity gets the whole capacity.
    """

    def __init__(self, capacity: int = DECODING_BUDGET) -> None:
        self._capacity = capacity
        self._used = 0
        self._waiters: deque[object] = deque()
        self._changed = threading.Condition()

    def acquire(self, amount: int, stopping: Callable[[], bool]) -> int | None:
        """Wait for a share and return its size, or ``None`` if the process stops meanwhile."""
        share = min(amount, self._capacity)
        turn = object()
        with self._changed:
            self._waiters.append(turn)
            try:
                while self._waiters[0] is not turn or self._used + share > self._capacity:
                    if stopping():
                        return None
                    self._changed.wait(_STOP_CHECK_S)
                self._used += share
                return share
            finally:
                self._waiters.remove(turn)
                self._changed.notify_all()

    def try_acquire(self, amount: int) -> int | None:
        """Return the share if it is free and no other caller waits, else ``None``."""
        share = min(amount, self._capacity)
        with self._changed:
            if self._waiters or self._used + share > self._capacity:
                return None
            self._used += share
            return share

    def release(self, share: int) -> None:
        with self._changed:
            self._used -= share
            self._changed.notify_all()
