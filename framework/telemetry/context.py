"""Hold the context of a piece of work: a correlation id and ``meta.*`` facts, which each pushed job copies.

By GitLab's rule, a job that a job pushes has the same correlation id, so that one user action can be traced.
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
    """The facts of ``bound`` blocks, in addition to those of the running ``job``, if any."""

    job: Mapping[str, Json] | None
    facts: Mapping[str, Json]


_source: ContextVar[Payload | BoundContext | None] = ContextVar("framework_context", default=None)
"""The payload of the running job, or the bound context. Fields are read on demand, as most jobs never need them."""

context_source: Callable[[], Payload | BoundContext | None] = _source.get
"""Return the source of this thread's or task's context, or ``None``. A C function, because each push calls it."""

enter_job: Callable[[Payload], object] = _source.set
"""Make the job's context the current one in this ``contextvars`` context; run each job in a copy of it. A C function, as above."""


def current() -> dict[str, Json]:
    """Return the flat fields (``correlation_id``, ``meta.*``) of this thread's or task's context."""
    found = _source.get()
    if found is None:
        return {}
    if isinstance(found, BoundContext):
        return {**fields_of(found.job or {}), **found.facts}
    return fields_of(found)


@contextmanager
def bound(correlation_id: str | None = None, **facts: Json) -> Generator[None]:
    """Add a correlation id and ``meta.<name>`` facts to the pushes and log lines of the block.

    ``caller_id`` names the calling code (``"POST /orders"``); the pushed jobs and all their successors keep it as
    ``meta.root_caller_id``. Raises ValueError for a correlation id that is not a text, or a fact that JSON cannot hold.
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
    """Return facts as the flat ``meta.<name>`` fields of a payload."""
    return {name if name.startswith(META_PREFIX) else META_PREFIX + name: value for name, value in facts.items()}


def job_fields() -> dict[str, Json]:
    """Return class and jid of the job that runs in this thread or task; empty without one."""
    found = _source.get()
    job = found.job if isinstance(found, BoundContext) else found
    # A payload of another program may lack the jid.
    return {name: job[name] for name in ("class", "jid") if name in job} if job else {}


def fields_of(payload: Mapping[str, Json]) -> dict[str, Json]:
    """Return the context fields of a payload."""
    # A copy: a thread that a job has left running may read them while the job's own thread writes its result.
    return {key: value for key, value in dict(payload).items() if key == CORRELATION_ID or key.startswith(META_PREFIX)}


def feature_category_of(payload: Mapping[str, Any]) -> str | None:
    """Return the feature category of a payload, which a job of a ``not_owned`` class has from its caller."""
    found = payload.get(FEATURE_CATEGORY)
    return found if isinstance(found, str) and found else None


def _check(correlation_id: object, facts: Mapping[str, Json]) -> None:
    if correlation_id is not None and (not isinstance(correlation_id, str) or not correlation_id):
        raise ValueError(f"correlation_id must be a text that is not empty, not {short_repr(correlation_id)}")
    for name, value in {"correlation_id": correlation_id, **facts}.items():
        try:
            # In an object, as in the payload: its nesting level counts.
            dumps({name: value})
        except PayloadError as error:
            raise ValueError(
                f"the fact {name!r} is stored in jobs, and JSON cannot hold it: {error.reason}. Use a text or a number."
            ) from None
