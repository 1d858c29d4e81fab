"""Draw the panels of all dashboards from a real Prometheus: Grafana's queries, as one picture."""

import time
from html import escape
from pathlib import Path

from framework.features.observability.dashboards import DASHBOARDS
from framework.features.observability.grafana import Dashboard, Panel
from tests.prometheus import PrometheusServer

COLUMNS, WIDTH, HEIGHT, GAP = 6, 190, 92, 10
CHART_TOP, CHART_HEIGHT, POINTS, MOST_SERIES = 20, 54, 60, 4
COLOURS = ("#5794f2", "#ff9830", "#73bf69", "#f2495c")
STYLE = (
    "text{font:10px sans-serif;fill:#ccccdc}.t{font-size:11px;font-weight:600}.d{font-size:15px;font-weight:600}"
    ".p{fill:#1f2026;stroke:#34353c}.f{fill:#9fa1ab;font-size:9px}polyline{fill:none;stroke-width:1.2}.n{font-size:22px}"
)


def draw(prometheus: PrometheusServer, began: float, path: Path) -> dict[str, list[str]]:
    """Write the picture of what Prometheus has since ``began``; return the panels without data, by dashboard."""
    empty: dict[str, list[str]] = {}
    parts: list[str] = []
    y = GAP
    for one in DASHBOARDS:
        parts.append(f'<text class="d" x="{GAP}" y="{y + 14}">{escape(one.title)}</text>')
        y += 22
        for number, panel in enumerate(one.panels()):
            x = GAP + number % COLUMNS * (WIDTH + GAP)
            series = _series(prometheus, one, panel, began)
            if not series:
                empty.setdefault(one.name, []).append(panel.title)
            parts.append(
                f'<g transform="translate({x},{y + number // COLUMNS * (HEIGHT + GAP)})">{_chart(panel, series)}</g>'
            )
        y += (len(list(one.panels())) + COLUMNS - 1) // COLUMNS * (HEIGHT + GAP) + GAP
    width = COLUMNS * (WIDTH + GAP) + GAP
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{y}" viewBox="0 0 {width} {y}"><style>{STYLE}</style>'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{head}<rect width="100%" height="100%" fill="#111217"/>{"".join(parts)}</svg>\n')
    return empty


def _series(
    prometheus: PrometheusServer, dashboard: Dashboard, panel: Panel, began: float
) -> list[tuple[str, dict[float, float]]]:
    """Return the series of a panel: a legend, and the values by time."""
    now = time.time()
    found = []
    for legend, expression in panel.queries.items():
        query = expression.replace("$__rate_interval", "10s")
        for variable in dashboard.variables:
            query = query.replace(f'=~"${variable.name}"', '=~".*"')
        step = max(1, (now - began) / POINTS)
        for one in prometheus.get("query_range", query=query, start=began, end=now, step=step)["result"]:
            name = legend
            for label, value in one["metric"].items():
                name = name.replace(f"{{{{{label}}}}}", value)
            values = {at - began: float(value) for at, value in one["values"] if value not in ("NaN", "+Inf", "-Inf")}
            if values:
                found.append((name, values))
    return sorted(found, key=lambda one: -max(one[1].values()))[:MOST_SERIES]


def _chart(panel: Panel, series: list[tuple[str, dict[float, float]]]) -> str:
    title = escape(panel.title if len(panel.title) < 30 else f"{panel.title[:28]}…")
    parts = [f'<rect class="p" width="{WIDTH}" height="{HEIGHT}" rx="3"/><text class="t" x="7" y="14">{title}</text>']
    if not series:
        return "".join((*parts, '<text class="f" x="7" y="50">no data</text>'))
    if panel.kind == "stat":
        last = list(series[0][1].values())[-1]
        return "".join((*parts, f'<text class="n" x="7" y="56">{last:g}</text>'))
    highest = max(max(values.values()) for _, values in series)
    end = max(max(values) for _, values in series) or 1.0
    for (name, values), colour in zip(series, COLOURS, strict=False):
        lines = "".join(
            f'<polyline points="{_points(run, end, highest or 1.0)}"/>' for run in _unbroken(values, 1.5 * end / POINTS)
        )
        parts.append(f'<g stroke="{colour}"><title>{escape(name)}</title>{lines}</g>')
    names = ", ".join(dict.fromkeys(name for name, _ in series))
    legend = escape(names if len(names) < 27 else f"{names[:26]}…")
    parts.append(
        f'<text class="f" x="{WIDTH - 7}" y="{HEIGHT - 6}" text-anchor="end">{_shown(highest, panel.unit)}</text>'
    )
    parts.append(f'<text class="f" x="7" y="{HEIGHT - 6}">{legend}</text>')
    return "".join(parts)


def _unbroken(values: dict[float, float], step: float) -> list[list[tuple[float, float]]]:
    """Return the parts of a series between its gaps."""
    found: list[list[tuple[float, float]]] = []
    for at, value in values.items():
        if not found or at - found[-1][-1][0] > step:
            found.append([])
        found[-1].append((at, value))
    return found


def _points(run: list[tuple[float, float]], end: float, highest: float) -> str:
    found = [(round(7 + at / end * (WIDTH - 14)), round(_height(value, highest))) for at, value in run]
    # A line of one point would not be seen.
    return " ".join(
        f"{x},{y}" for x, y in (found if len(found) > 1 else [(x + by, y) for x, y in found for by in (-1, 1)])
    )


def _height(value: float, top: float) -> float:
    return CHART_TOP + CHART_HEIGHT * (1 - max(0.0, value) / top)


def _shown(value: float, unit: str) -> str:
    if unit == "percentunit":
        return f"{value:.0%}"
    for size, word in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {word}{'B' if unit == 'bytes' else ''}"
    return f"{value:.3g}{' s' if unit == 's' else ''}"
