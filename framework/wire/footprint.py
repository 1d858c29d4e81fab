"""How much memory JSON takes when it is parsed, found out before it is: from its structure, in pieces, without keeping any.

``[],`` is three bytes of JSON and 82 of memory, and 100 kB of compressed text hold 30 million of them. The figures below are what
CPython takes at most for each kind of value, measured by ``tests/wire/test_footprint.py``; small integers and repeated keys, which
are cached, take less.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate

from framework.errors import PayloadLimitError

DECODED_LIMIT = 256_000_000
"""Bytes of memory that one payload's values may take, where no setting says otherwise."""

DECODED_LIMIT_SETTING = "size_limit.decoded_limit"

MAX_MEMORY_PER_BYTE = 80
"""No valid JSON takes more memory than this for each of its bytes (``{},`` counts as 67): what is shorter need not be looked at."""

LARGE_PAYLOAD = 4_000_000
"""Bytes of memory from which on decoding waits for its share of the process's budget."""

_POINTER, _SCALAR, _TEXT, _KEY, _LIST, _OBJECT = 16, 32, 64, 80, 88, 184
_CHUNK = 1 << 16
_ASCII, _LATIN_1, _WIDE, _ASTRAL = 1, 2, 3, 5
"""Bytes for each byte of a text by the widest character in it, the copy that is made while it is read included."""

_OF_LATIN_1, _BELOW_ASTRAL = (
    bytes(range(0xC4)),
    bytes(range(0xF0)),
)  # bytes of UTF-8 in characters below U+0100, U+10000
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_escapes_astral, _escapes_wide = re.compile(rb"\\u[dD][89a-fA-F]").search, re.compile(rb"\\u(?!00)").search
_STEP = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


class _Structure:
    """Reads JSON piece by piece and leaves its texts out."""

    __slots__ = ("_carry", "_inside", "quotes", "width")

    def __init__(self) -> None:
        self.quotes = 0
        """How many begin or end a text."""
        self.width = _ASCII
        """How wide the characters are that are written as escapes."""
        self._carry = b""
        self._inside = 0

    def outside(self, chunk: bytes) -> bytes:
        """Return what of the next piece stands outside of texts."""
        if self._carry or b"\\" in chunk:
            chunk = self._without_escapes(self._carry + chunk)
        parts = chunk.split(b'"')
        found = b"".join(parts[self._inside :: 2])
        quotes = len(parts) - 1
        self.quotes += quotes
        self._inside ^= quotes & 1
        return found

    def _without_escapes(self, chunk: bytes) -> bytes:
        """Take the escapes out, so that every quote left begins or ends a text."""
        backslashes = len(chunk) - len(chunk.rstrip(b"\\"))
        # The character that the last backslash escapes comes with the next piece.
        self._carry = b"\\" if backslashes % 2 else b""
        chunk = chunk[: len(chunk) - len(self._carry)].replace(b"\\\\", b"")
        if self.width < _ASTRAL and b"\\u" in chunk:
            self.width = (
                _ASTRAL if _escapes_astral(chunk) else _WIDE if _escapes_wide(chunk) else max(self.width, _LATIN_1)
            )
        return chunk.replace(b'\\"', b"")


class Footprint:
    """Adds up the memory of one JSON document from its pieces, in order.

    Without a ``structure`` what stands in texts counts as if it stood outside: never too little, and found several times as fast.
    """

    __slots__ = ("_colons", "_commas", "_empty", "_lists", "_objects", "_quotes", "_structure", "_width", "size")

    def __init__(self, structure: _Structure | None = None) -> None:
        self.size = 0
        """Bytes of JSON so far."""
        self._commas = self._colons = self._empty = self._lists = self._objects = self._quotes = 0
        self._width = _ASCII
        self._structure = structure

    def add(self, chunk: bytes) -> None:
        """Take in the next piece; small ones keep the memory small that this takes itself."""
        self.size += len(chunk)
        if not chunk.isascii() and self._width < _ASTRAL:
            self._widen(chunk)
        structure = self._structure
        if structure is None:
            outside = chunk
            self._quotes += chunk.count(b'"')
            self._width = _ASTRAL if b"\\" in chunk else self._width  # an escape may stand for any character
        else:
            outside = structure.outside(chunk)
            self._quotes = structure.quotes
            self._width = max(self._width, structure.width)
        self._commas += outside.count(b",")
        self._colons += outside.count(b":")
        self._lists += outside.count(b"[")
        self._objects += outside.count(b"{")
        self._empty += outside.count(b"[]") + outside.count(b"{}")

    @property
    def memory(self) -> int:
        """Bytes that the values take at most, the JSON itself not counted."""
        containers = self._lists + self._objects
        values = self._commas + containers + 1 - self._empty
        texts = self._quotes // 2
        # Of a key the figure has the text, too. Not told apart, no text is taken for a key.
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
        """A text takes as many bytes for each character as its widest one needs."""
        if chunk.translate(None, _BELOW_ASTRAL):
            self._width = _ASTRAL
        else:
            self._width = max(self._width, _WIDE if chunk.translate(None, _OF_LATIN_1) else _LATIN_1)


# Decision 170: payload memory is bounded before parsing.
def measure(read: Callable[[], Iterable[bytes]], limit: int) -> Footprint:
    """Return what the document takes that ``read`` gives in pieces; reading ends where it is more than ``limit`` bytes of memory.

    Most are small even if their texts are counted as structure. Only what is not is read again, and counted exactly.

    Raises:
        PayloadLimitError: it is more.
    """
    # Two passes cost less than one exact one: texts are found by their quotes, of which there may be many.
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
    """Return what ``data`` takes, all of it counted exactly."""
    found = Footprint(_Structure())
    for chunk in pieces(data):
        found.add(chunk)
    return found


def is_nested_deeper(data: bytes, levels: int) -> bool:
    """Whether arrays and objects of this JSON are nested deeper than so many levels; counted, not built."""
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
    """Whether JSON of so many bytes may take more memory than ``limit``."""
    return size > limit // MAX_MEMORY_PER_BYTE


def pieces(data: bytes) -> Iterator[bytes]:
    """Return ``data`` in pieces that ``Footprint`` takes in without much memory."""
    return (data[start : start + _CHUNK] for start in range(0, len(data), _CHUNK))
