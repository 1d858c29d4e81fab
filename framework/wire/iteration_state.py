"""Read and write the state of an iterating job: the HASH ``it-JID``, with Sidekiq's fields and those of this framework.

``ex`` is the number of runs, ``c`` the cursor of the next item as JSON, ``rt`` the seconds of all runs, ``cancelled`` when the job
was cancelled. Sidekiq's pages show them. This framework adds: ``aw_done`` and ``aw_total`` count items, ``aw_run`` is the token of
the run that may write, ``aw_signature`` the signature of a cursor, a space, and the beginning of the cursor's digest.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from framework.errors import PayloadError
from framework.wire.json import dumps, loads, stored_count, stored_number

RUNS, CURSOR, RUNTIME, CANCELLED = "ex", "c", "rt", "cancelled"
DONE, TOTAL, CURSOR_SIGNATURE = "aw_done", "aw_total", "aw_signature"

MAX_CURSOR_BYTES = 65_536
"""A cursor is a position, and each save sends it."""


class CursorError(ValueError):
    """A cursor that cannot be stored, or a stored one that cannot be read."""


@dataclass(frozen=True, slots=True)
class SavedIteration:
    """The stored state of an iterating job."""

    runs: int = 0
    cursor: bytes = b"null"
    """JSON of the position of the next item; ``null`` at the beginning."""
    runtime_s: float = 0.0
    """The seconds of all runs until the last save."""
    done: int = 0
    total: int | None = None
    cancelled_at: float | None = None
    signature: str = ""
    """The signature of this cursor; empty without one."""

    @property
    def rate(self) -> float | None:
        """Items per second of run time; ``None`` before the first save."""
        return self.done / self.runtime_s if self.done and self.runtime_s > 0 else None

    @property
    def eta_s(self) -> float | None:
        """Seconds of run time until the last item; ``None`` if the total is unknown."""
        rate = self.rate
        return None if rate is None or self.total is None else max(0, self.total - self.done) / rate


def read_iteration(fields: Mapping[bytes, bytes]) -> SavedIteration | None:
    """Return the state in the fields of a HASH; ``None`` for no field. Other writers' fields that are no numbers count as missing."""
    if not fields:
        return None
    total = fields.get(TOTAL.encode())
    cancelled = fields.get(CANCELLED.encode())
    cursor = fields.get(CURSOR.encode()) or b"null"
    return SavedIteration(
        stored_count(fields.get(RUNS.encode())),
        cursor,
        stored_number(fields.get(RUNTIME.encode())),
        stored_count(fields.get(DONE.encode())),
        stored_count(total) if total else None,
        None if cancelled is None else stored_number(cancelled),
        _signature_of(cursor, fields.get(CURSOR_SIGNATURE.encode(), b"")),
    )


def signed_cursor(cursor: bytes, signature: str) -> str:
    """Return the field with the signature of a cursor.

    It names the cursor: another process, which has no key yet, may save a later cursor, and leaves this field as it is.
    """
    return f"{signature} {_digest(cursor)}"


def _signature_of(cursor: bytes, field: bytes) -> str:
    if not field:
        return ""
    signature, _, digest = field.decode("ascii", "replace").partition(" ")
    return signature if digest == _digest(cursor) else ""


def _digest(cursor: bytes) -> str:
    return hashlib.sha256(cursor).hexdigest()[:16]


def encode_cursor(cursor: object) -> bytes:
    """Return a cursor as JSON. Raises CursorError for one that JSON does not give back as it was, or that is too long."""
    try:
        data = dumps(cursor)
        same = loads(data, None) == cursor
    except PayloadError as error:
        raise CursorError(f"is no JSON value: {error}") from None
    if not same:
        raise CursorError("does not survive JSON: use text, numbers, None, lists, or objects with text as names")
    if len(data) > MAX_CURSOR_BYTES:
        raise CursorError(
            f"has {len(data):,} bytes, and {MAX_CURSOR_BYTES:,} are allowed: it is a position, not the data"
        )
    return data


def decode_cursor(data: bytes) -> Any:
    """Return a stored cursor. Raises CursorError for bytes that are no JSON."""
    try:
        return loads(data, None)
    except PayloadError as error:
        raise CursorError(f"is no JSON: {error}") from None
