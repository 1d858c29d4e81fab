"""Make the pushes of a class parts of traces, and check what the settings of tracing need."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec

from framework.errors import ConfigurationProblem
from framework.feature import Late
from framework.features.tracing.settings import TracingSettings
from framework.push.client import Client
from framework.push.normalize import NO_CONTEXT, ExtraFields
from framework.push.push_plan import PushPlan, PushSpans
from framework.route.router import LoadedWorkers
from framework.settings.base import SettingsBase
from framework.settings.model import CoreSettings
from framework.telemetry.sentry import reports_to_application
from framework.types import Json, Payload
from framework.version import install_extra

# Each is imported only where it is turned on.
_OTEL: "Late[type[PushSpans]]" = Late("framework.features.tracing.otel:OtelPushes")


_SENTRY: "Late[type[PushSpans]]" = Late("framework.features.tracing.sentry:SentryPushes")


def open_pushes(client: Client) -> Sequence[PushSpans]:
    kinds = ((_OTEL, traces_with_otel(client.settings)), (_SENTRY, traces_with_sentry(client.settings)))
    return [kind.load()() for kind, is_on in kinds if is_on]


PUSHES: "Late[Callable[[Client], Sequence[PushSpans]]]" = Late("framework.features.tracing.push:open_pushes")


_ENTER: "Late[Callable[[Payload], object]]" = Late("framework.features.tracing.otel:enter_trace")


def entry_of_traces(settings: SettingsBase) -> Callable[[Payload], object] | None:
    """Return what makes the trace of a job current in a process of its own; ``None`` without OpenTelemetry."""
    return _ENTER.load() if traces_with_otel(settings) else None


def traced_plan(plan: PushPlan, client: Client) -> PushPlan:
    """Return the plan of a class whose pushes have spans, and whose payloads name their traces; unchanged without a library."""
    spans: Sequence[PushSpans] = client.service(PUSHES)
    return with_spans(plan, spans) if spans else plan


def with_spans(plan: PushPlan, spans: Sequence[PushSpans]) -> PushPlan:
    return plan._replace(spans=spans, extra_fields=_TracedFields(spans, plan.extra_fields))


class _TracedFields:
    def __init__(self, spans: Sequence[PushSpans], extra: ExtraFields | None) -> None:
        self._spans = spans
        self._extra = extra

    def __call__(self) -> Mapping[str, Json]:
        found = {**(NO_CONTEXT if self._extra is None else self._extra())}
        for one in self._spans:
            found.update(one.fields())
        return found


def traces_with_otel(settings: SettingsBase) -> bool:
    """Return whether OpenTelemetry is turned on, and installed."""
    return TracingSettings.of(settings).tracing.opentelemetry and find_spec("opentelemetry") is not None


def traces_with_sentry(settings: CoreSettings) -> bool:
    """Return whether this process has a client of Sentry that knows the framework. It never makes one."""
    sdk = sys.modules.get("sentry_sdk")
    known = settings.sentry.dsn is not None or reports_to_application()
    return known and sdk is not None and bool(sdk.get_client().is_active())


def tracing_problems(workers: LoadedWorkers) -> Iterable[ConfigurationProblem]:
    settings = TracingSettings.of(workers.settings)
    if settings.tracing.opentelemetry and find_spec("opentelemetry") is None:
        message = f"needs the package opentelemetry-api: {install_extra('otel')}"
        yield ConfigurationProblem(settings.config_file_label("application.yml"), "tracing.opentelemetry", message)
