"""Mark the begin and the end of one request or one job, and choose the facts of a request that its jobs and log lines carry.

A web framework may run the parts of a request in several threads, each with a copy of the request's context. They share the scope,
because the copies have the same list.
"""

import re
import uuid
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from framework.types import Json
from framework.wire.context_fields import TRACEPARENT, TRACESTATE, trace_ids

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


_MAX_TRACESTATE = 512
"""Characters of ``tracestate`` that are carried on (W3C: at least so many)."""


def trace_of(header: Callable[[str], str | None]) -> Mapping[str, Json]:
    """Return the trace fields of a request, for its jobs; empty if its ``traceparent`` is missing or not valid (W3C)."""
    traceparent = header(TRACEPARENT)
    if trace_ids(traceparent) is None:
        return {}
    state = header(TRACESTATE)
    fields: dict[str, Json] = {TRACEPARENT: traceparent}
    if state and len(state) <= _MAX_TRACESTATE and state.isascii() and state.isprintable():
        fields[TRACESTATE] = state
    return fields


def caller_id_of(method: str, route: str | None) -> str:
    """Return the name of the code that serves a request: its method and the pattern of its path, without values."""
    return f"{method} {route or '(no route)'}"
