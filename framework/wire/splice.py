"""Writing a payload anew without touching what did not change in it.

``1e999``, or nesting deeper than we write, is JSON that others sent and that can be read, but not written again. A job that
holds such must be retried like any other, so the fields that nobody changed keep their bytes.
"""

import re
from typing import Any

from framework.errors import PayloadError
from framework.types import Payload
from framework.wire.json import dumps, loads

_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}:,]', re.DOTALL)


def rewrite(data: bytes, payload: Payload) -> bytes:
    """Return ``payload`` as JSON; ``data`` is what it was read from, byte for byte the source of what cannot be written anew.

    Raises:
        PayloadError: a field that is new or changed cannot be written.
    """
    try:
        return dumps(payload)
    except PayloadError:
        before: Payload = loads(data)
        raw = raw_fields(data)
    fields = [
        dumps(name) + b":" + (raw[name] if name in raw and _same(before[name], value) else dumps(value))
        for name, value in payload.items()
    ]
    return b"{" + b",".join(fields) + b"}"


def raw_fields(data: bytes) -> dict[str, bytes]:
    """Return the bytes of each field's value in ``data``, which must be a JSON object that ``loads`` takes."""
    fields: dict[str, bytes] = {}
    depth, start = 0, 0
    name: str | None = None
    for token in _TOKEN.finditer(data):
        mark = data[token.start() : token.start() + 1]
        depth -= mark in b"]}"
        if depth == 1 and name is None and mark == b'"':
            name = str(loads(token.group()))
        elif depth == 1 and mark == b":":
            start = token.end()
        elif name is not None and ((depth == 1 and mark == b",") or depth == 0):
            fields[name] = data[start : token.start()].strip()
            name = None
        depth += mark in b"[{"
    return fields


def _same(before: Any, value: Any) -> bool:
    return type(before) is type(value) and before == value
