"""Compress arguments as GitLab does: deflate, encode in base64, mark the payload."""

import base64
import binascii
import gc
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

from framework.errors import MissingKeyError, OffloadedArgumentsError, PayloadError, PayloadLimitError
from framework.types import Payload
from framework.wire.footprint import DECODED_LIMIT, LARGE_PAYLOAD, measure, pieces
from framework.wire.json import dumps, loads
from framework.wire.protected import OFFLOADED, READ, ProtectedArguments, is_protected

COMPRESSED = "compressed"
ORIGINAL_SIZE = "original_job_size_bytes"
# Bytes per call of the inflater. The input chunk is small because zlib copies its unconsumed rest after each call.
_INPUT_CHUNK, _OUTPUT_CHUNK = 1 << 12, 1 << 16
# Arguments up to this size are inflated by one call. Larger ones are inflated in steps: few bytes may inflate to gigabytes.
_KEPT_BYTES = 1 << 20


def deflate_arguments(arguments_json: bytes) -> bytes:
    """Return the one string that stores compressed arguments; it needs no escapes in JSON."""
    return base64.b64encode(deflate(arguments_json))


def decompress_arguments(
    payload: Payload,
    limit: int,
    decoded_limit: int = DECODED_LIMIT,
    reserve: Callable[[int], None] | None = None,
    protected: ProtectedArguments | None = None,
) -> bool:
    """Restore the original arguments and remove both marker fields; an uncompressed payload stays unchanged.

    Return whether the restored arguments surely pass the check of strict arguments (``is_surely_strict``).

    ``reserve`` is called with the bytes of memory that large arguments take, before they are inflated whole. ``protected`` reads
    encrypted and offloaded arguments; their payload keeps its marker fields, so that no log line shows the arguments.

    Raises:
        MissingKeyError: the arguments are encrypted, and this process lacks the key.
        OffloadedArgumentsError: they are offloaded, and this process cannot read the payload store.
        PayloadLimitError: they inflate beyond ``limit`` bytes, or their values would take more memory than ``decoded_limit``.
        PayloadError: the compressed form is damaged (GitLab's PayloadDecompressionError) or was altered (its
            PayloadDecompressionConflictError). The payload is unchanged.
    """
    if not payload.get(COMPRESSED) or READ in payload:
        return False
    arguments = payload.get("args")
    if not (isinstance(arguments, list) and len(arguments) == 1 and isinstance(arguments[0], str)):  # pyright: ignore[reportUnknownArgumentType]
        raise PayloadError(
            "it is marked as compressed, but its arguments are not one string: a middleware changed them"
        )
    try:
        deflated_arguments = _deflated(payload, arguments[0], protected)
        inflated = inflate_at_once(deflated_arguments, min(limit, _KEPT_BYTES))
        read = partial(_inflated, deflated_arguments, limit) if inflated is None else partial(pieces, inflated)
        footprint = measure(read, decoded_limit)
    except (binascii.Error, ValueError, zlib.error) as error:
        raise PayloadError(f"its compressed arguments are damaged: {error}") from error
    stated_size = payload.get(ORIGINAL_SIZE)
    if stated_size is not None and stated_size != footprint.size:
        raise PayloadError(
            f"its {ORIGINAL_SIZE} is {stated_size!r:.40}, but its arguments inflate to {footprint.size:,} bytes: "
            "one of them was changed"
        )
    if reserve is not None and footprint.memory > LARGE_PAYLOAD:
        reserve(footprint.memory + footprint.size)
    if inflated is None:
        # With the size known, zlib fills one buffer instead of joining several.
        inflated = zlib.decompress(deflated_arguments, bufsize=footprint.size)
    original = loads(inflated, None)
    if not isinstance(original, list):
        raise PayloadError("its compressed arguments are not a list")
    payload["args"] = original
    if is_protected(payload):
        payload[READ] = True
    else:
        payload.pop(COMPRESSED)
        payload.pop(ORIGINAL_SIZE, None)
    return is_surely_strict(inflated, original)


def _deflated(payload: Payload, text: str, protected: ProtectedArguments | None) -> bytes:
    """Return the compressed arguments. Raises binascii.Error, and as ``decompress_arguments``."""
    if not is_protected(payload):
        return base64.b64decode(text, validate=True)
    if protected is None and OFFLOADED in payload:
        raise OffloadedArgumentsError("no payload store is configured here")
    if protected is None:
        raise MissingKeyError("the arguments are encrypted", "no key is configured here", "encryption.keys")
    return protected.read(payload, text)


def _inflated(data: bytes, limit: int) -> Iterator[bytes]:
    """Inflate in chunks.

    Raises:
        PayloadLimitError: the data inflates beyond ``limit`` bytes.
        PayloadError: the data is damaged.
    """
    inflater = zlib.decompressobj()
    size = 0
    for start in range(0, len(data), _INPUT_CHUNK):
        fed = data[start : start + _INPUT_CHUNK]
        while True:
            piece = inflater.decompress(fed, _OUTPUT_CHUNK)
            size += len(piece)
            if size > limit:
                reason = f"its compressed arguments inflate beyond {limit:,} bytes"
                raise PayloadLimitError(reason, limit, setting="size_limit.decompressed_limit")
            yield piece
            fed = inflater.unconsumed_tail
            if inflater.eof or not (fed or len(piece) == _OUTPUT_CHUNK):
                break
        if inflater.eof:
            surplus = len(inflater.unused_data) + max(0, len(data) - start - _INPUT_CHUNK)
            if surplus:
                raise PayloadError(f"{surplus:,} bytes follow its compressed arguments: they were changed")
            return
    raise PayloadError("its compressed arguments are cut off")


def pack_backtrace(lines: list[str]) -> str:
    """Return Sidekiq's form of ``error_backtrace``: base64 of the deflated JSON list of lines."""
    printable = [line.encode("utf-8", "replace").decode("utf-8") for line in lines]
    # Only JSON: bytes that are not JSON are read by Sidekiq 6.4 with Ruby's Marshal, which is unsafe with foreign data.
    return base64.b64encode(zlib.compress(dumps(printable))).decode("ascii")


def unpack_backtrace(packed: object) -> list[str]:
    """Return the lines of an ``error_backtrace`` of any Sidekiq; none for a damaged one, or one of more than ``_KEPT_BYTES``."""
    if isinstance(packed, list):
        # Sidekiq 6.4 also wrote the list itself.
        return [str(line) for line in cast("list[object]", packed)]
    try:
        inflater = zlib.decompressobj()
        # Not strict: Ruby 6.4 breaks base64 into lines.
        lines = loads(inflater.decompress(base64.b64decode(str(packed)), _KEPT_BYTES))
    except (binascii.Error, ValueError, zlib.error, PayloadError):
        return []
    return [str(line) for line in cast("list[object]", lines)] if isinstance(lines, list) else []


try:
    from isal import isal_zlib
# The extra `fast` is not installed.
except ImportError:
    _isal_compress: Callable[[bytes, int], bytes] | None = None
    _new_inflater: Callable[[], Any] = zlib.decompressobj
    _errors: Any = zlib.error
else:
    _isal_compress = isal_zlib.compress  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    _new_inflater = isal_zlib.decompressobj  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    _errors = (zlib.error, isal_zlib.IsalError)

_ZLIB_LEVEL = 5
"""GitLab's level."""

# Level 2 of ISA-L takes about 5 % more bytes than level 5 of zlib. Level 3 saves 1 %, and is 6 times slower for repeated records.
_ISAL_LEVEL = 2


def deflate(data: bytes) -> bytes:
    if _isal_compress is None:
        return zlib.compress(data, _ZLIB_LEVEL)
    return _isal_compress(data, _ISAL_LEVEL)


# ISA-L may accept data, but only zlib refuses it. So the extra changes no decision about damaged data.
def inflate_at_once(data: bytes, most: int) -> bytes | None:
    """Return the inflated ``data`` if it is whole, and has at most ``most`` bytes; ``None`` if it has to be read by steps."""
    inflater = _new_inflater()
    try:
        # One more byte than allowed: the checksum is read only after the last byte.
        inflated: bytes = inflater.decompress(data, most + 1)
    except _errors:
        return None
    return inflated if inflater.eof and not inflater.unused_data and len(inflated) <= most else None


_LEVELS = 63
"""The most nested arrays and objects that are visited. An argument may have one more (``declare/strict_json``): an empty object."""

_class_of: Callable[[Any], type[Any]] = type
# Digits and a plus become 0, so that two searches find each number that may be too large. They also find some texts.
_NUMBERS = bytes.maketrans(b"123456789E+", b"000000000e0")
_LONG, _LARGE = b"0" * 200, b"0e000"


# A number of fewer than 200 digits with an exponent below 100 is finite, and no integer is long.
def is_surely_strict(data: bytes, value: Any) -> bool:
    """Return whether ``value``, parsed from ``data``, surely passes ``check_strict_json``.

    ``False`` means that the check has to visit each value.
    """
    marks = data.translate(_NUMBERS)
    return _LARGE not in marks and _LONG not in marks and _is_shallow(value)


def _is_shallow(value: Any) -> bool:
    layer: list[Any] = [value]
    for _ in range(_LEVELS):
        # The garbage collector tracks every list and, up to Python 3.13, only those objects that contain a list or an object. So
        # the values of most objects are not visited.
        layer = [
            child
            for parent in layer
            for child in (parent.values() if _class_of(parent) is dict else parent)
            if gc.is_tracked(child)
        ]
        if not layer:
            return True
    return False
