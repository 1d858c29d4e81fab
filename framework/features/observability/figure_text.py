"""Write figures in Prometheus' text format, and read the names of series."""

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

from framework.admin.figures import Figure
from framework.features.observability.catalogue import METRICS
from framework.telemetry.counters import series_name
from framework.text import visible

TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# A line that Prometheus cannot read makes it refuse all others.
_SERIES = re.compile(
    r"([a-z_:][\w:]*)(?:\{((?:[a-z_]\w*=\"(?:[^\"\\\n]|\\[\\\"n])*\",?)*)\})?", re.ASCII | re.IGNORECASE
)
_LABEL = re.compile(r"([a-z_]\w*)=\"((?:[^\"\\\n]|\\[\\\"n])*)\"", re.ASCII | re.IGNORECASE)
_ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


def exposition(figures: Iterable[Figure]) -> str:
    """Return the figures by name, each name once with its help and its type."""
    return "".join(f"{line}\n" for line in _lines(figures))


def _lines(figures: Iterable[Figure]) -> Iterator[str]:
    for name, group in groupby(sorted(figures, key=lambda one: one.name), key=lambda one: one.name):
        metric = METRICS.get(name)
        yield f"# HELP {name} {'A counter of the shard.' if metric is None else metric.help}"
        yield f"# TYPE {name} {'counter' if metric is None else metric.kind}"
        for one in group:
            yield f"{_escaped(series_name(name, dict(one.labels)))} {_number(one.value)}"


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def _escaped(series: str) -> str:
    """Return the series with its unprintable characters escaped once more, because Prometheus reads only its own escapes."""
    if series.isprintable():
        return series
    return "".join(char if char.isprintable() else visible(char).replace("\\", "\\\\") for char in series)


def read_series(text: str) -> tuple[str, Mapping[str, str]] | None:
    """Return the name and the labels of a series in Prometheus' notation; ``None`` for any other text."""
    found = _SERIES.fullmatch(text)
    if found is None:
        return None
    labels = {name: _ESCAPE.sub(lambda one: _ESCAPES[one[0]], value) for name, value in _LABEL.findall(found[2] or "")}
    return found[1], labels


_ESCAPE = re.compile(r"\\[\\\"n]")
