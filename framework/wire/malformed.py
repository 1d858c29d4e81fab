"""Build dead set entries for malformed bytes that every Sidekiq can display.

JSON that is not an object makes Ruby's whole Dead page fail (status 500), and a retry of bytes that are not JSON loses
them: Ruby removes the entry before it parses it. The entry therefore is an object with the bytes in base64. It is not a
job either: moved to a queue, by hand or by Ruby's Web UI, it is recognized there and returns to the dead set.
"""

import base64
import binascii
import re

from framework.errors import PayloadError, PayloadLimitError
from framework.text import error_class
from framework.types import Payload
from framework.wire.footprint import DECODED_LIMIT, DECODED_LIMIT_SETTING
from framework.wire.job import (
    MALFORMED,
    MALFORMED_RAW,
    append_fields,
    decode,
    generate_jid,
    set_fields,
    timestamp,
    wire_timestamp,
)
from framework.wire.json import dumps, loads_object
from framework.wire.resources import JobResources
from framework.wire.waiters import awaited_job_of

_DEFAULT_QUEUE = "default"
_MAX_MESSAGE = 1_000
_MAX_NAME = 200
_JID = re.compile(rb'"jid"\s*:\s*"([\w.:-]{1,64})"')


def dead_set_entry(data: bytes, error: PayloadError, now: float, queue: str = "") -> bytes:
    """Return the dead set entry of a payload that cannot run because of ``error``, taken from ``queue`` (empty if unknown).

    A job that Ruby can display, such as one with damaged compressed arguments, keeps its bytes. Everything else is wrapped
    once. A payload above the memory limit is not decoded here either: it keeps its bytes, and the error is appended.
    """
    limit = DECODED_LIMIT
    if isinstance(error, PayloadLimitError) and error.setting == DECODED_LIMIT_SETTING:
        limit = error.limit
    if isinstance(error, PayloadLimitError) and _begins_and_ends_as_object(data):
        error_fields = {
            "error_class": error_class(error),
            "error_message": str(error)[:_MAX_MESSAGE],
            "failed_at": wire_timestamp(now),
        }
        # A job with large compressed arguments can be parsed; any other is too large, and only its end is changed.
        return set_fields(data, error_fields) if _is_job(data, limit) else append_fields(data, error_fields)
    parsed = loads_object(data, limit)
    if _is_displayable(data, parsed, limit):
        return data
    wrapped = parsed.get("class") == MALFORMED and _is_base64(parsed.get(MALFORMED_RAW))
    created_at = timestamp(parsed.get("created_at"))
    entry: Payload = {
        "class": MALFORMED,
        "args": [],
        "jid": _name(parsed.get("jid")) or _find_jid(data) or generate_jid(),
        "queue": queue or _name(parsed.get("queue")) or _DEFAULT_QUEUE,
        # A Ruby process that fetches it moves it to the dead set at once.
        "retry": 0,
        "created_at": wire_timestamp(now if created_at is None else created_at),
        "failed_at": wire_timestamp(now),
        "error_class": error_class(error),
        "error_message": str(error)[:_MAX_MESSAGE],
        MALFORMED_RAW: parsed[MALFORMED_RAW] if wrapped else base64.b64encode(data).decode(),
    }
    if wrapped:
        entry.update({name: parsed[name] for name in ("error_class", "error_message") if _name(parsed.get(name))})
    return dumps(entry)


def _is_job(data: bytes, limit: int) -> bool:
    try:
        decode(data, limit)
    except PayloadError:
        return False
    return True


def _begins_and_ends_as_object(data: bytes) -> bool:
    """Return whether the bytes may be an object: Ruby displays objects and invalid JSON in braces."""
    return data.lstrip().startswith(b"{") and data.rstrip().endswith(b"}")


def _is_displayable(data: bytes, found: Payload, limit: int) -> bool:
    """Return whether Ruby's pages can display the job: 8.1 fails for a queue that is not text, all for tags that are not a list."""
    return (
        _is_job(data, limit)
        and bool(_name(found.get("queue")))
        and isinstance(found.get("tags", []), list)
        and "encrypt" not in found
    )


def _find_jid(data: bytes) -> str:
    """Return the only jid in bytes that are not JSON (such as a truncated job), for searching."""
    found: list[bytes] = _JID.findall(data)
    return found[0].decode(errors="replace") if len(found) == 1 else ""


def _name(value: object) -> str:
    return value[:_MAX_NAME] if isinstance(value, str) else ""


def _is_base64(value: object) -> bool:
    try:
        return isinstance(value, str) and bool(base64.b64decode(value, validate=True) or not value)
    except (binascii.Error, ValueError):
        return False


def batch_resources_of(data: bytes) -> JobResources | None:
    """Return the batch of a payload that cannot run, as far as it can be read: the batch must not wait for it."""
    awaited = awaited_job_of(loads_object(data))
    return None if awaited is None else JobResources(awaited=awaited, end_word="dead")
