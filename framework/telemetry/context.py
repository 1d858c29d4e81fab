"""Hold the context of a piece of work: a correlation id and ``meta.*`` facts, which each pushed job copies, and its trace.

By GitLab's rule, a job that a job pushes has the same correlation id, so that one user action can be traced.
"""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, cast

from framework.errors import PayloadError
from framework.typeguards import short_repr
from framework.types import Json, Payload
from framework.wire.context_fields import (
    CALLER_ID,
    CORRELATION_ID,
    FEATURE_CATEGORY,
    META_PREFIX,
    ROOT_CALLER_ID,
    TRACEPARENT,
    check_keys,
    trace_fields_of,
    trace_ids,
)
from framework.wire.json import dumps

__all__ = ["CALLER_ID", "CORRELATION_ID", "FEATURE_CATEGORY", "META_PREFIX", "ROOT_CALLER_ID"]

_UNKNOWN = object()


class LazyFact:
    """A fact that a function returns. It is called once, by the first push or log line that needs the fact."""

    __slots__ = ("_call", "_name", "_value")

    def __init__(self, name: str, call: Callable[[], Json]) -> None:
        self._name = name
        self._call = call
        self._value: object = _UNKNOWN

    def value(self) -> Json:
        """Return the fact. One that fails, or that JSON cannot hold, is a text that says so: no push fails by a fact."""
        if self._value is _UNKNOWN:
            try:
                value = self._call()
                _check_json(self._name, value)
            except Exception as error:  # noqa: BLE001 - code of the application may raise anything
                value = f"[{type(error).__name__}]"
            self._value = value
        return cast("Json", self._value)


class BoundContext(NamedTuple):
    """The facts of ``bound`` blocks, in addition to those of the running ``job``, if any."""

    job: Mapping[str, Json] | None
    facts: Mapping[str, Json]
    trace: Mapping[str, Json] = {}
    """The fields of the trace of a request (``wire/context_fields.py``)."""
    lazy: Mapping[str, LazyFact] = {}

    def known_facts(self) -> Mapping[str, Json]:
        """Return the facts, those of functions too."""
        return self.facts if not self.lazy else {**self.facts, **{name: one.value() for name, one in self.lazy.items()}}


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
        return {**fields_of(found.job or {}), **found.known_facts()}
    return fields_of(found)


def current_trace() -> dict[str, Json]:
    """Return the trace fields of this thread's or task's context: those of the request, or of the running job."""
    found = _source.get()
    if found is None:
        return {}
    if isinstance(found, BoundContext):
        return {**trace_fields_of(found.job or {}), **found.trace}
    return trace_fields_of(found)


def line_fields() -> dict[str, Json]:
    """Return the fields that log lines carry here: those of ``current``, and the ids of the trace."""
    if _source.get() is None:
        return {}
    return {**current(), **ids_of_trace(current_trace())}


def ids_of_trace(fields: Mapping[str, Json]) -> dict[str, Json]:
    """Return ``trace_id`` and ``span_id`` of trace fields; empty without a valid ``traceparent``."""
    ids = trace_ids(fields.get(TRACEPARENT))
    return {} if ids is None else {"trace_id": ids[0], "span_id": ids[1]}


@contextmanager
def bound(correlation_id: str | None = None, **facts: Json | Callable[[], Json]) -> Generator[None]:
    """Add a correlation id and ``meta.<name>`` facts to the pushes and log lines of the block.

    ``caller_id`` names the calling code (``"POST /orders"``); the pushed jobs and all their successors keep it as
    ``meta.root_caller_id``. A fact may be a function: the first push or log line of the block that needs it calls it. Raises
    ValueError for a correlation id that is not a text, a fact that JSON cannot hold, or a key that ``context.keys`` does not allow.
    """
    plain = {name: value for name, value in facts.items() if not callable(value)}
    lazy = {name: LazyFact(name, value) for name, value in facts.items() if callable(value)}
    _check(correlation_id, plain)
    check_keys(facts)
    found = _source.get()
    outer = found if isinstance(found, BoundContext) else BoundContext(found, {})
    own, own_lazy = meta(plain), meta(lazy)
    fields = {name: value for name, value in outer.facts.items() if name not in own_lazy} | own
    later = {name: value for name, value in outer.lazy.items() if name not in own} | own_lazy
    if correlation_id is not None:
        fields[CORRELATION_ID] = correlation_id
    with _entered(outer._replace(facts=fields, lazy=later)):
        yield


@contextmanager
def bound_trace(fields: Mapping[str, Json]) -> Generator[None]:
    """Let the pushes of the block belong to a trace: of the trace that the header of a request names, for example."""
    found = _source.get()
    outer = found if isinstance(found, BoundContext) else BoundContext(found, {})
    with _entered(outer._replace(trace={**outer.trace, **fields})):
        yield


@contextmanager
def root(caller_id: str) -> Generator[None]:
    """Leave the context of the calling code: the pushes of the block have this caller, and no other fact, id or trace."""
    with _entered(BoundContext(None, {CALLER_ID: caller_id})):
        yield


@contextmanager
def _entered(context: BoundContext) -> Generator[None]:
    token = _source.set(context)
    try:
        yield
    finally:
        _source.reset(token)


def meta(facts: Mapping[str, Any]) -> dict[str, Any]:
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
        _check_json(name, value)


def _check_json(name: str, value: object) -> None:
    try:
        # In an object, as in the payload: its nesting level counts.
        dumps({name: value})
    except PayloadError as error:
        raise ValueError(
            f"the fact {name!r} is stored in jobs, and JSON cannot hold it: {error.reason}. Use a text or a number."
        ) from None
