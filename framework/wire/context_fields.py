"""Name the payload fields of a job's context and of its trace, and check the keys of a context."""

from collections.abc import Iterable, Mapping

from framework.text import did_you_mean
from framework.types import Json

CORRELATION_ID = "correlation_id"
META_PREFIX = "meta."
CALLER_ID = "meta.caller_id"
ROOT_CALLER_ID = "meta.root_caller_id"
FEATURE_CATEGORY = "meta.feature_category"

TRACEPARENT, TRACESTATE, BAGGAGE = "traceparent", "tracestate", "baggage"
"""Fields of W3C Trace Context and Baggage, at the top of the payload: OpenTelemetry's instrumentation of Sidekiq reads them there."""

SENTRY_TRACE = "trace_propagation_headers"
"""An object with Sentry's headers ``sentry-trace`` and ``baggage``, as sentry-sidekiq writes and reads it."""

TRACE_FIELDS = (TRACEPARENT, TRACESTATE, BAGGAGE, SENTRY_TRACE)
"""The fields that lead from a job to the trace of the code that pushed it."""

KNOWN_KEYS = ("caller_id", "root_caller_id", "feature_category", "client_id", "user", "tenant")
"""The keys of a context that are always allowed."""

_allowed: frozenset[str] | None = None


class UnknownKeyError(ValueError):
    """A key of a context is not among the allowed ones."""


def allow_keys(names: Iterable[str] | None) -> None:
    """Allow these keys in contexts, besides those of ``KNOWN_KEYS``; ``None`` allows every key.

    The loader of the settings calls it.
    """
    global _allowed  # noqa: PLW0603 - a fact of the process, as its settings are
    _allowed = None if names is None else frozenset((*KNOWN_KEYS, *names))


def check_keys(facts: Iterable[str]) -> None:
    """Raise UnknownKeyError for a key that the setting ``context.keys`` does not allow."""
    if _allowed is None:
        return
    for name in facts:
        plain = name.removeprefix(META_PREFIX)
        if plain not in _allowed:
            hint = did_you_mean(plain, sorted(_allowed))
            listed = ", ".join(sorted(_allowed))
            raise UnknownKeyError(
                f"the key {plain!r} is not allowed in a context{hint}. Allowed: {listed}. Add it to context.keys in "
                "config/application.yml, or take one of them"
            )


def trace_fields_of(payload: Mapping[str, Json]) -> dict[str, Json]:
    """Return the trace fields of a payload; empty for most."""
    return {name: payload[name] for name in TRACE_FIELDS if name in payload}


def trace_ids(traceparent: object) -> tuple[str, str] | None:
    """Return the ids of the trace and of the span in a ``traceparent``; ``None`` for any other value.

    W3C Trace Context: ``00-`` 32 hexadecimal digits ``-`` 16 ``-`` 2, in lower case. A newer version may have more after it.
    """
    if not isinstance(traceparent, str):
        return None
    version, trace, span, flags = (*traceparent.split("-", 4), "", "", "", "")[:4]
    sizes = (len(version), len(trace), len(span), len(flags)) == (2, 32, 16, 2)
    if not sizes or version == "ff" or (version == "00" and len(traceparent) != _LENGTH):
        return None
    hexadecimal = set(version + trace + span + flags) <= _HEXADECIMAL
    return (trace, span) if hexadecimal and trace.strip("0") and span.strip("0") else None


_LENGTH = 55
_HEXADECIMAL = frozenset("0123456789abcdef")
