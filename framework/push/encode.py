"""From a payload to bytes within the size limits (GitLab's size limiter)."""

from dataclasses import dataclass
from typing import Literal

from framework.errors import ArgumentsError, ExceedLimitError, PayloadError
from framework.types import Payload
from framework.wire.compress import COMPRESSED, compress_arguments
from framework.wire.json import dumps

SIZE_LIMITER, TRACKED = "size_limiter", "tracked"


@dataclass(frozen=True, slots=True)
class SizeLimits:
    """Sizes are bytes of the arguments' JSON: compressed from ``compression_threshold`` on, refused above ``limit``."""

    mode: Literal["compress", "track"] = "compress"
    compression_threshold: int = 100_000
    limit: int = 5_000_000
    """0 = no limit."""

    @property
    def unquestioned(self) -> int:
        """A whole payload below this size needs no look at its arguments."""
        return min(self.compression_threshold, self.limit or self.compression_threshold)


def encode(payload: Payload, limits: SizeLimits, *, big_payload: bool) -> bytes:
    """Return the payload's bytes, with its arguments compressed when they are large; ``payload`` itself is not changed.

    Raises:
        ArgumentsError: it cannot be JSON (a middleware put something else in).
        ExceedLimitError: the arguments are too large even so, mode is ``compress`` and the class is no ``big_payload``.
    """
    try:
        data = dumps(payload)
        if len(data) < limits.unquestioned or payload.get(COMPRESSED):
            return data
        return _limited(payload, data, limits, big_payload=big_payload)
    except PayloadError as error:
        raise ArgumentsError(str(payload.get("class")), f"refused: {error.reason}") from error


def _limited(payload: Payload, data: bytes, limits: SizeLimits, *, big_payload: bool) -> bytes:
    arguments = dumps(payload["args"])
    size = len(arguments)
    stored = payload
    if limits.mode == "compress" and size >= limits.compression_threshold:
        stored = dict(payload)
        size = compress_arguments(stored, arguments)
        data = dumps(stored)
    if not limits.limit or size <= limits.limit or big_payload:
        return data
    if limits.mode == "compress":
        raise ExceedLimitError(str(payload.get("class")), size, limits.limit)
    return dumps({**stored, SIZE_LIMITER: TRACKED})
