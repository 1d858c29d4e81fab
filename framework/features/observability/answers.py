"""Answer ``/metrics``: of this process, of a group, and of the processes of a producer."""

from collections.abc import Callable, Mapping, Sequence

from framework.feature import Late
from framework.features.observability.observer import sums_of
from framework.features.observability.settings import ObservabilitySettings
from framework.process.health_server import Answer, HealthAnswer, Served
from framework.version import install_extra

_TEXT: "Late[Callable[[Mapping[bytes, Sequence[float]], str, str], tuple[bytes, str]]]" = Late(
    "framework.features.observability.exposition:process_text"
)
_PLAIN = "text/plain; charset=utf-8"


def answers(served: Served) -> Mapping[str, Answer]:
    """Return the answer for ``/metrics`` of a health server."""
    settings, counts = ObservabilitySettings.of(served.settings), served.counts
    if counts is None:
        return {"/metrics": lambda accept: metrics_answer(sums_of(settings), settings, accept)}
    return {"/metrics": lambda accept: metrics_answer(counts.sums(), settings, accept)}


def metrics_answer(sums: Mapping[bytes, Sequence[float]], settings: ObservabilitySettings, accept: str) -> HealthAnswer:
    """Return the metrics, or what to do if there are none."""
    mode = settings.metrics.mode
    if mode == "off":
        return _refusal("the metrics of this process are off: set metrics.mode in config/application.yml")
    try:
        text_of = _TEXT.load()
    except ImportError:
        return _refusal(f"the package prometheus-client is not installed here: {install_extra('prometheus')}")
    text, content_type = text_of(sums, mode, accept)
    return HealthAnswer(well=True, body=text, content_type=content_type)


def _refusal(text: str) -> HealthAnswer:
    return HealthAnswer(well=False, body=f"{text}\n".encode(), content_type=_PLAIN)
