"""Mark the begin and the end of one request or one job, for integrations that must know which objects belong to it.

A web framework may run the parts of a request in several threads, each with a copy of the request's context. They share the scope,
because the copies have the same list.
"""

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
