"""The ambient context of a piece of work: a correlation id and ``meta.*`` facts, copied into each job it pushes.

GitLab's rule: a job pushed by a job carries the same correlation id, so that one user action can be followed through.
"""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from framework.types import Json, Payload

CORRELATION_ID = "correlation_id"
META_PREFIX = "meta."

_source: ContextVar[Mapping[str, Json] | None] = ContextVar("framework_context", default=None)
"""The payload of the job that runs here, or the fields of ``bound``: most jobs never ask, so nothing is picked out yet."""


def current() -> dict[str, Json]:
    """Return the flat fields (``correlation_id``, ``meta.*``) of this thread's or task's context; empty outside of one."""
    source = _source.get()
    return fields_of(source) if source else {}


@contextmanager
def bound(correlation_id: str | None = None, **facts: Json) -> Generator[None]:
    """Within the block, pushes and log lines carry this correlation id and ``meta.<name>`` facts besides the outer ones."""
    fields = {**current(), **meta(facts)}
    if correlation_id is not None:
        fields[CORRELATION_ID] = correlation_id
    token = _source.set(fields)
    try:
        yield
    finally:
        _source.reset(token)


def meta(facts: Mapping[str, Json]) -> dict[str, Json]:
    """Return facts about a piece of work as the flat ``meta.<name>`` fields of a payload."""
    return {name if name.startswith(META_PREFIX) else META_PREFIX + name: value for name, value in facts.items()}


def enter_job(payload: Payload) -> None:
    """Make the job's own context the current one until this ``contextvars`` context ends: run each job in a copy."""
    _source.set(payload)


def fields_of(payload: Mapping[str, Json]) -> dict[str, Json]:
    """Return the context fields that a payload carries."""
    return {key: value for key, value in payload.items() if key == CORRELATION_ID or key.startswith(META_PREFIX)}
