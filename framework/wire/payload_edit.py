"""Write a changed payload without changing the bytes of its other fields.

``1e999``, or nesting deeper than this framework writes, is JSON of other writers that can be read, but not written. A job
with such a field must be retried like any other, so unchanged fields keep their bytes.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from framework.errors import PayloadError
from framework.types import Payload
from framework.wire.json import dumps, loads

_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}:,]', re.DOTALL)


def rewrite(data: bytes, payload: Payload) -> bytes:
    """Return ``payload`` as JSON; unchanged fields that cannot be written keep their bytes of ``data``, its source.

    Raises:
        PayloadError: a new or changed field cannot be written.
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


def set_fields(data: bytes, fields: Mapping[str, Any]) -> bytes:
    """Return ``data``, a JSON object that ``loads`` accepts, with these fields set. All other bytes stay; new fields come last."""
    pieces: list[bytes] = []
    at = 0
    missing = dict(fields)
    for name, start, end in _values(data):
        if name in fields:
            value = data[start:end]
            before, after = len(value) - len(value.lstrip()), len(value.rstrip())
            pieces += [data[at : start + before], dumps(fields[name])]
            missing.pop(name, None)
            at = start + after
    close = data.rindex(b"}")
    pieces.append(data[at:close])
    pieces += [b"," + dumps(name) + b":" + dumps(value) for name, value in missing.items()]
    return b"".join(pieces) + data[close:]


def append_fields(data: bytes, fields: Mapping[str, Any]) -> bytes:
    """Return ``data``, which ends like a JSON object and is not parsed, with these fields appended.

    Readers use the last field of a name.
    """
    close = data.rindex(b"}")
    return (
        data[:close]
        + b"".join(b"," + dumps(name) + b":" + dumps(value) for name, value in fields.items())
        + data[close:]
    )


def raw_fields(data: bytes) -> dict[str, bytes]:
    """Return the bytes of each field's value in ``data``, a JSON object that ``loads`` accepts."""
    return {name: data[start:end].strip() for name, start, end in _values(data)}


def _values(data: bytes) -> Iterator[tuple[str, int, int]]:
    """Yield name, start and end of every field's value of the object, including repeated names."""
    depth, start = 0, 0
    name: str | None = None
    for token in _TOKEN.finditer(data):
        character = data[token.start() : token.start() + 1]
        depth -= character in b"]}"
        if depth == 1 and name is None and character == b'"':
            name = str(loads(token.group()))
        elif depth == 1 and character == b":":
            start = token.end()
        elif name is not None and ((depth == 1 and character == b",") or depth == 0):
            yield name, start, token.start()
            name = None
        depth += character in b"[{"


def _same(before: Any, value: Any) -> bool:
    return type(before) is type(value) and before == value
