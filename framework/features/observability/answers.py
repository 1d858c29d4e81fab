"""Answer ``/metrics``: of this process, of a group, and of the processes of a producer."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from framework.feature import Late
from framework.features.observability.observer import sums_of
from framework.features.observability.settings import ObservabilitySettings
from framework.process.health_server import Answer, HealthAnswer, Served
from framework.version import install_extra

_TEXT: "Late[Callable[[Mapping[bytes, Sequence[float]], str, str, Sequence[Figure]], tuple[bytes, str]]]" = Late(
    "framework.features.observability.exposition:process_text"
)
_REPORTER: "Late[type[Reporter]]" = Late("framework.features.observability.reporter:Reporter")

# Only a process with `fleet.reporter` loads it.
if TYPE_CHECKING:
    from framework.admin.figures import Figure
    from framework.features.observability.reporter import Reporter

_PLAIN = "text/plain; charset=utf-8"


def answers(served: Served) -> Mapping[str, Answer]:
    """Return the answer for ``/metrics`` of a health server."""
    settings, counts = ObservabilitySettings.of(served.settings), served.counts
    reporter = _REPORTER.load()(settings) if settings.fleet.reporter else None

    def metrics(accept: str) -> HealthAnswer:
        sums = sums_of(settings) if counts is None else counts.sums()
        return metrics_answer(sums, settings, accept, () if reporter is None else reporter.figures())

    return {"/metrics": metrics}


def metrics_answer(
    sums: Mapping[bytes, Sequence[float]],
    settings: ObservabilitySettings,
    accept: str,
    figures: "Sequence[Figure]" = (),
) -> HealthAnswer:
    """Return the metrics, with ``figures`` of shards, or what to do if there are none."""
    mode = settings.metrics.mode
    if mode == "off":
        return _refusal("the metrics of this process are off: set metrics.mode in config/application.yml")
    try:
        text_of = _TEXT.load()
    except ImportError:
        return _refusal(f"the package prometheus-client is not installed here: {install_extra('prometheus')}")
    text, content_type = text_of(sums, mode, accept, figures)
    return HealthAnswer(well=True, body=text, content_type=content_type)


def _refusal(text: str) -> HealthAnswer:
    return HealthAnswer(well=False, body=f"{text}\n".encode(), content_type=_PLAIN)
