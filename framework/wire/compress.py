"""GitLab's payload compression: arguments deflated at level 5 and base64-encoded, marked in the payload."""

import base64
import binascii
import zlib

from framework.errors import PayloadError
from framework.types import Payload
from framework.wire.json import dumps, loads

COMPRESSED = "compressed"
ORIGINAL_SIZE = "original_job_size_bytes"
_LEVEL = 5


def deflated(arguments_json: bytes) -> bytes:
    """Return the one string that stands for compressed arguments; it needs no escapes in JSON."""
    return base64.b64encode(zlib.compress(arguments_json, _LEVEL))


def decompress_arguments(payload: Payload, limit: int) -> None:
    """Put the original arguments back and remove both marks; a payload that is not compressed stays as it is.

    Raises:
        PayloadError: the compressed form is damaged (GitLab's PayloadDecompressionError), was altered by somebody (its
            PayloadDecompressionConflictError), or inflates beyond ``limit`` bytes. The payload is as it was.
    """
    if not payload.get(COMPRESSED):
        return
    arguments = payload.get("args")
    if not (isinstance(arguments, list) and len(arguments) == 1 and isinstance(arguments[0], str)):  # pyright: ignore[reportUnknownArgumentType]
        raise PayloadError(
            "it is marked as compressed, but its arguments are not one string: a middleware changed them"
        )
    data = _inflate(arguments[0], limit)
    said = payload.get(ORIGINAL_SIZE)
    if said is not None and said != len(data):
        raise PayloadError(
            f"its {ORIGINAL_SIZE} is {said!r:.40}, but its arguments inflate to {len(data):,} bytes: somebody changed one of them"
        )
    original = loads(data)
    if not isinstance(original, list):
        raise PayloadError("its compressed arguments are no list")
    payload["args"] = original
    payload.pop(COMPRESSED)
    payload.pop(ORIGINAL_SIZE, None)


def _inflate(text: str, limit: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(base64.b64decode(text, validate=True), limit + 1)
    except (binascii.Error, ValueError, zlib.error) as error:
        raise PayloadError(f"its compressed arguments are damaged: {error}") from error
    if len(data) > limit:
        raise PayloadError(
            f"its compressed arguments inflate beyond {limit:,} bytes (setting: size_limit.decompressed_limit)"
        )
    if not inflater.eof:
        raise PayloadError("its compressed arguments are cut off")
    if inflater.unused_data:
        raise PayloadError(
            f"{len(inflater.unused_data):,} bytes follow its compressed arguments: somebody changed them"
        )
    return data


def pack_backtrace(lines: list[str]) -> str:
    """Return Sidekiq's form of ``error_backtrace``: base64 of the deflated JSON list of lines."""
    printable = [line.encode("utf-8", "replace").decode("utf-8") for line in lines]
    return base64.b64encode(zlib.compress(dumps(printable))).decode("ascii")
