"""Mark the begin and the end of one request or one job, and choose the facts of a request that its jobs and log lines carry.

A web framework may run the parts of a request in several threads, each with a copy of the request's context. They share the scope,
because the copies have the same list.
"""

import re
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_scope: ContextVar[list[Any] | None] = ContextVar("framework_scope", default=None)


def current_scope() -> list[Any] | None:
    """Return the objects of the request or job that runs here, or ``None`` outside of both."""
    return _scope.get()


@contextmanager
def scope() -> Generator[list[Any]]:
    """Run the block as one request or job; yield the list of its objects."""
    objects: list[Any] = []
    token = _scope.set(objects)
    try:
        yield objects
    finally:
        _scope.reset(token)


DEFAULT_HEADER = "X-Request-ID"
"""The header that holds the correlation id of a request, and of its response."""

_CORRELATION_ID = re.compile(r"[A-Za-z0-9._:@/+=-]{1,128}")


def correlation_id_of(header: str | None) -> str:
    """Return the value of the header if it is an id, else a new id: a client may send any text there."""
    return header if header is not None and _CORRELATION_ID.fullmatch(header) else uuid.uuid4().hex


def caller_id_of(method: str, route: str | None) -> str:
    """Return the name of the code that serves a request: its method and the pattern of its path, without values."""
    return f"{method} {route or '(no route)'}"
