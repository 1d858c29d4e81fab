"""Choose the facts of a request that its jobs and log lines carry."""

import re
import uuid

DEFAULT_HEADER = "X-Request-ID"
"""The header that holds the correlation id of a request, and of its response."""

_CORRELATION_ID = re.compile(r"[A-Za-z0-9._:@/+=-]{1,128}")


def correlation_id_of(header: str | None) -> str:
    """Return the value of the header if it is an id, else a new id: a client may send any text there."""
    return header if header is not None and _CORRELATION_ID.fullmatch(header) else uuid.uuid4().hex


def caller_id_of(method: str, route: str | None) -> str:
    """Return the name of the code that serves a request: its method and the pattern of its path, without values."""
    return f"{method} {route or '(no route)'}"
