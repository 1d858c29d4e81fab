"""How bytes that are no job stand in the dead set: in an object that every Sidekiq can show.

JSON that is no object takes Ruby's whole Dead page away (answer 500), and a retry of what is no JSON loses it there: Ruby takes
it out of the set before it reads it. The object has the bytes themselves in base64, and is no job either: put back into a queue,
by hand or by Ruby's Web UI, it is found there to be what it is, and returns to the dead set.
"""

import base64
import binascii
import re
from typing import Any, cast

from framework.errors import PayloadError, PayloadLimitError
from framework.types import Payload
from framework.wire.error_text import error_class
from framework.wire.footprint import DECODED_LIMIT, DECODED_LIMIT_SETTING
from framework.wire.ids import generate_jid
from framework.wire.job import MALFORMED, MALFORMED_RAW, decode, timestamp, wire_timestamp
from framework.wire.json import dumps, loads
from framework.wire.payload_edit import append_fields, set_fields

_DEFAULT_QUEUE = "default"
_MAX_MESSAGE = 1_000
_MAX_NAME = 200
_JID = re.compile(rb'"jid"\s*:\s*"([\w.:-]{1,64})"')


def dead_set_entry(data: bytes, error: PayloadError, now: float, queue: str = "") -> bytes:
    """Return what the dead set gets of a payload that cannot be run for ``error``, taken from ``queue`` (empty: not known).

    A job that Ruby shows, one whose arguments cannot be decompressed, stays as it is, byte for byte; all else is wrapped, once.
    What takes too much memory is not decoded for this either: it keeps its bytes, and the error stands behind them.
    """
    limit = DECODED_LIMIT
    if isinstance(error, PayloadLimitError) and error.setting == DECODED_LIMIT_SETTING:
        limit = error.limit
    if isinstance(error, PayloadLimitError) and _begins_and_ends_as_object(data):
        told = {
            "error_class": error_class(error),
            "error_message": str(error)[:_MAX_MESSAGE],
            "failed_at": wire_timestamp(now),
        }
        # Its arguments are what takes so much, or the job itself, which is not read.
        return set_fields(data, told) if _is_job(data, limit) else append_fields(data, told)
    found = _object(data, limit)
    if _is_displayable(data, found, limit):
        return data
    wrapped = found.get("class") == MALFORMED and _is_base64(found.get(MALFORMED_RAW))
    created_at = timestamp(found.get("created_at"))
    entry: Payload = {
        "class": MALFORMED,
        "args": [],
        "jid": _name(found.get("jid")) or _find_jid(data) or generate_jid(),
        "queue": queue or _name(found.get("queue")) or _DEFAULT_QUEUE,
        "retry": 0,  # a Ruby process that takes it from a queue buries it too, at once
        "created_at": wire_timestamp(now if created_at is None else created_at),
        "failed_at": wire_timestamp(now),
        "error_class": error_class(error),
        "error_message": str(error)[:_MAX_MESSAGE],
        MALFORMED_RAW: found[MALFORMED_RAW] if wrapped else base64.b64encode(data).decode(),
    }
    if wrapped:
        entry.update({name: found[name] for name in ("error_class", "error_message") if _name(found.get(name))})
    return dumps(entry)


def _is_job(data: bytes, limit: int) -> bool:
    try:
        decode(data, limit)
    except PayloadError:
        return False
    return True


def _begins_and_ends_as_object(data: bytes) -> bool:
    """Whether this is an object or no JSON: Ruby shows both."""
    return data.lstrip().startswith(b"{") and data.rstrip().endswith(b"}")


def _is_displayable(data: bytes, found: Payload, limit: int) -> bool:
    """Whether it is a job that Ruby's pages bear: 8.1 answers 500 for a queue that is no text, all do for tags that are no list."""
    return (
        _is_job(data, limit)
        and bool(_name(found.get("queue")))
        and isinstance(found.get("tags", []), list)
        and "encrypt" not in found
    )


def _object(data: bytes, limit: int) -> Payload:
    try:
        found: Any = loads(data, limit)
    except PayloadError:
        return {}
    return cast("Payload", found) if isinstance(found, dict) else {}


def _find_jid(data: bytes) -> str:
    """Return the one id that stands in what is no JSON, a job cut off for one, so that it is found by it."""
    found: list[bytes] = _JID.findall(data)
    return found[0].decode(errors="replace") if len(found) == 1 else ""


def _name(value: object) -> str:
    return value[:_MAX_NAME] if isinstance(value, str) else ""


def _is_base64(value: object) -> bool:
    try:
        return isinstance(value, str) and bool(base64.b64decode(value, validate=True) or not value)
    except (binascii.Error, ValueError):
        return False
