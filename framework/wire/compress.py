"""GitLab's payload compression: arguments deflated at level 5 and base64-encoded, marked in the payload."""

import base64
import binascii
import zlib
from collections.abc import Callable, Iterator
from functools import partial

from framework.errors import PayloadError, PayloadLimitError
from framework.types import Payload
from framework.wire.footprint import DECODED_LIMIT, LARGE_PAYLOAD, measure
from framework.wire.json import dumps, loads

COMPRESSED = "compressed"
ORIGINAL_SIZE = "original_job_size_bytes"
_LEVEL = 5
_INPUT_CHUNK, _OUTPUT_CHUNK = (
    1 << 12,
    1 << 16,
)  # bytes that go in and come out at a time: what is left of the first is copied each time


def deflate_arguments(arguments_json: bytes) -> bytes:
    """Return the one string that stands for compressed arguments; it needs no escapes in JSON."""
    return base64.b64encode(zlib.compress(arguments_json, _LEVEL))


def decompress_arguments(
    payload: Payload,
    limit: int,
    decoded_limit: int = DECODED_LIMIT,
    reserve: Callable[[int], None] | None = None,
) -> None:
    """Put the original arguments back and remove both marks; a payload that is not compressed stays as it is.

    ``reserve`` is called, before they are inflated whole, with the bytes of memory that they take if that is much.

    Raises:
        PayloadLimitError: they inflate beyond ``limit`` bytes, or their values would take more memory than ``decoded_limit``.
        PayloadError: the compressed form is damaged (GitLab's PayloadDecompressionError), or was altered (its
            PayloadDecompressionConflictError). The payload is as it was.
    """
    if not payload.get(COMPRESSED):
        return
    arguments = payload.get("args")
    if not (isinstance(arguments, list) and len(arguments) == 1 and isinstance(arguments[0], str)):  # pyright: ignore[reportUnknownArgumentType]
        raise PayloadError(
            "it is marked as compressed, but its arguments are not one string: a middleware changed them"
        )
    try:
        deflated_arguments = base64.b64decode(arguments[0], validate=True)
        found = measure(partial(_inflated, deflated_arguments, limit), decoded_limit)
    except (binascii.Error, ValueError, zlib.error) as error:
        raise PayloadError(f"its compressed arguments are damaged: {error}") from error
    said = payload.get(ORIGINAL_SIZE)
    if said is not None and said != found.size:
        raise PayloadError(
            f"its {ORIGINAL_SIZE} is {said!r:.40}, but its arguments inflate to {found.size:,} bytes: one of them was changed"
        )
    if reserve is not None and found.memory > LARGE_PAYLOAD:
        reserve(found.memory + found.size)
    # Told its size, zlib fills one buffer, and does not join several.
    original = loads(zlib.decompress(deflated_arguments, bufsize=max(1, found.size)), None)
    if not isinstance(original, list):
        raise PayloadError("its compressed arguments are no list")
    payload["args"] = original
    payload.pop(COMPRESSED)
    payload.pop(ORIGINAL_SIZE, None)


def _inflated(data: bytes, limit: int) -> Iterator[bytes]:
    """Inflate in pieces, of which none is kept; raise for what is damaged, or inflates beyond ``limit`` bytes."""
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
