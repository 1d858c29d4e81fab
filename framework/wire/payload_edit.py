"""Writing a payload anew without touching what did not change in it.

``1e999``, or nesting deeper than we write, is JSON that others sent and that can be read, but not written again. A job that
holds such must be retried like any other, so the fields that nobody changed keep their bytes.
"""

import re
from collections.abc import Iterator, Mapping
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


def set_fields(data: bytes, fields: Mapping[str, Any]) -> bytes:
    """Return ``data``, a JSON object that ``loads`` takes, with these fields set; every other byte is what it was.

    A field that is not there comes last.
    """
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
    """Return ``data``, which ends as a JSON object does and is not parsed for this, with these fields behind its own.

    Readers take the last field of a name.
    """
    close = data.rindex(b"}")
    return (
        data[:close]
        + b"".join(b"," + dumps(name) + b":" + dumps(value) for name, value in fields.items())
        + data[close:]
    )


def raw_fields(data: bytes) -> dict[str, bytes]:
    """Return the bytes of each field's value in ``data``, which must be a JSON object that ``loads`` takes."""
    return {name: data[start:end].strip() for name, start, end in _values(data)}


def _values(data: bytes) -> Iterator[tuple[str, int, int]]:
    """Every field of the object with begin and end of its value, as often as it stands there."""
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
            yield name, start, token.start()
            name = None
        depth += mark in b"[{"


def _same(before: Any, value: Any) -> bool:
    return type(before) is type(value) and before == value
