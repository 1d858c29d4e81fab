"""The ambient context of a piece of work: a correlation id and ``meta.*`` facts, copied into each job it pushes.

GitLab's rule: a job pushed by a job carries the same correlation id, so that one user action can be followed through.
"""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from framework.errors import PayloadError
from framework.typeguards import short_repr
from framework.types import Json, Payload
from framework.wire.json import dumps

CORRELATION_ID = "correlation_id"
META_PREFIX = "meta."
CALLER_ID = "meta.caller_id"
ROOT_CALLER_ID = "meta.root_caller_id"
FEATURE_CATEGORY = "meta.feature_category"


class BoundContext(NamedTuple):
    """What ``bound`` has said: ``facts``, besides those of the ``job`` that runs here, if one does."""

    job: Mapping[str, Json] | None
    facts: Mapping[str, Json]


_source: ContextVar[Payload | BoundContext | None] = ContextVar("framework_context", default=None)
"""The payload of the job that runs here, or what was bound: most jobs never ask, so nothing is picked out yet."""

context_source: Callable[[], Payload | BoundContext | None] = _source.get
"""Return where this thread's or task's context comes from, ``None`` outside of one. A C function: each push asks."""


def current() -> dict[str, Json]:
    """Return the flat fields (``correlation_id``, ``meta.*``) of this thread's or task's context; empty outside of one."""
    found = _source.get()
    if found is None:
        return {}
    if isinstance(found, BoundContext):
        return {**fields_of(found.job or {}), **found.facts}
    return fields_of(found)


@contextmanager
def bound(correlation_id: str | None = None, **facts: Json) -> Generator[None]:
    """Within the block, pushes and log lines carry this correlation id and ``meta.<name>`` facts besides the outer ones.

    ``caller_id`` names the code that calls (``"POST /orders"``); jobs pushed here and all that follow from them keep it as
    ``meta.root_caller_id``. Raises ValueError for a correlation id that is no text, or a fact that JSON cannot carry.
    """
    _check(correlation_id, facts)
    found = _source.get()
    outer = found if isinstance(found, BoundContext) else BoundContext(found, {})
    fields = {**outer.facts, **meta(facts)}
    if correlation_id is not None:
        fields[CORRELATION_ID] = correlation_id
    token = _source.set(BoundContext(outer.job, fields))
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
    # A copy: a thread that a job has left behind may ask while the job's own thread writes what became of it.
    return {key: value for key, value in dict(payload).items() if key == CORRELATION_ID or key.startswith(META_PREFIX)}


def feature_category_of(payload: Mapping[str, Any]) -> str | None:
    """Return the feature category that a payload carries: to a job of a ``not_owned`` class, its caller's."""
    found = payload.get(FEATURE_CATEGORY)
    return found if isinstance(found, str) and found else None


def _check(correlation_id: object, facts: Mapping[str, Json]) -> None:
    if correlation_id is not None and (not isinstance(correlation_id, str) or not correlation_id):
        raise ValueError(f"correlation_id must be a text that is not empty, not {short_repr(correlation_id)}")
    for name, value in {"correlation_id": correlation_id, **facts}.items():
        try:
            dumps({name: value})  # a level of its own, as the payload is
        except PayloadError as error:
            raise ValueError(
                f"the fact {name!r} travels with jobs, and JSON cannot carry it: {error.reason}. Give a text or a number."
            ) from None
