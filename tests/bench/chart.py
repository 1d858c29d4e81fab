"""Draw the results: one SVG, readable on light and dark ground, made of text and rectangles only."""

from collections.abc import Iterator, Sequence
from html import escape

from tests.bench.campaign import PINNED, UNPINNED, Result, Results
from tests.bench.figures import shown
from tests.bench.svg import picture, text
from tests.bench.table import by_rank, spread, times_reference
from tests.bench.workloads import BY_NAME, Workload

WIDTH, MARGIN = 960, 24
LABEL_WIDTH, BAR_WIDTH = 150, 440
BAR_HEIGHT, ROW_GAP, TITLE_HEIGHT, PANEL_GAP = 16, 8, 40, 28
BAR_LEFT = MARGIN + LABEL_WIDTH
FAR_OFF = 4  # times the middle contestant's figure
TEXT_DROP = 12  # from the top of a bar to its text's baseline

LEGEND = "solid: pinned, Redis and worker on a core each; pale: on all cores; line: least to greatest; cut: longer than shown"

STYLE = """
.framework { fill: #0969da; } .reference { fill: #bc4c00; } .peer { fill: #818b98; }
.floor { fill: #d1d9e0; stroke: #818b98; stroke-dasharray: 3 2; } .unpinned { opacity: .55; }
.range { stroke: #1f2328; stroke-width: 1.5; } .cut { stroke: #ffffff; stroke-width: 4; }
@media (prefers-color-scheme: dark) {
  .framework { fill: #4493f8; } .reference { fill: #db6d28; } .peer { fill: #656c76; }
  .floor { fill: #21262d; stroke: #656c76; } .range { stroke: #f0f6fc; } .cut { stroke: #0d1117; }
}
"""


def drawn(results: Results) -> str:
    """Return the SVG: a panel per workload, a row per contestant, a bar per mode with its range and its multiple of
    the reference.
    """
    parts: list[str] = []
    top = MARGIN
    for name in dict.fromkeys(result.workload for result in results.results):
        panel = list(_panel(results, BY_NAME[name], top))
        parts.extend(part for part, _ in panel)
        top = panel[-1][1] + PANEL_GAP
    legend = text(MARGIN, top, LEGEND, "faint small")
    return picture(WIDTH, top + MARGIN, "Benchmark results", STYLE, [*parts, legend])


def _panel(results: Results, workload: Workload, top: int) -> Iterator[tuple[str, int]]:
    """Yield the pieces of a panel, each with its lower edge."""
    better = "" if workload.more_is_better else ", less is better"
    yield text(MARGIN, top + 15, f"{workload.title} ({workload.unit}{better})", "text title"), top + TITLE_HEIGHT
    rows = _rows(results, workload)
    greatest = _greatest(workload, rows)
    at = top + TITLE_HEIGHT - 12
    for row in rows:
        yield text(BAR_LEFT - 10, at + TEXT_DROP, row[0].contestant, "text", anchor="end"), at
        for result in row:
            yield _bar(results, workload, result, at, greatest), at + BAR_HEIGHT
            at += BAR_HEIGHT + 2
        at += ROW_GAP
    yield f'<path class="axis" d="M{BAR_LEFT} {top + TITLE_HEIGHT - 16}V{at - ROW_GAP + 2}"/>', at


def _greatest(workload: Workload, rows: Sequence[Sequence[Result]]) -> float:
    """Return the value of a full bar. Where less is better, one extreme value must not make all others invisible."""
    series = [each.figures[workload.figure] for row in rows for each in row]
    greatest = max(each.high for each in series)
    if not workload.more_is_better:
        middle = sorted(each.median for each in series)[len(series) // 2]
        greatest = min(greatest, FAR_OFF * middle)
    return greatest if greatest > 0 else 1.0


def _rows(results: Results, workload: Workload) -> list[Sequence[Result]]:
    """Return the contestants in the order of their rank pinned (or unpinned, where only that was measured)."""
    modes = {mode: by_rank(results, workload, mode) for mode in (PINNED, UNPINNED)}
    order = dict.fromkeys(each.contestant for mode in modes.values() for each in mode)
    return [[each for mode in modes.values() for each in mode if each.contestant == name] for name in order]


def _bar(results: Results, workload: Workload, result: Result, top: int, greatest: float) -> str:
    series = result.figures[workload.figure]
    low, median, high = (
        BAR_WIDTH * min(1.0, max(0.0, value / greatest)) for value in (series.low, series.median, series.high)
    )
    middle = top + BAR_HEIGHT / 2
    end = BAR_LEFT + max(median, high)
    kind = f"{_kind(workload, result.contestant)} {result.mode}"
    width = max(1.0, median)
    parts = [f'<rect class="{kind}" x="{BAR_LEFT}" y="{top}" width="{width:.1f}" height="{BAR_HEIGHT}" rx="2"/>']
    if series.median > greatest:
        at = BAR_LEFT + BAR_WIDTH - 24
        parts.append(f'<path class="cut" d="M{at} {top + BAR_HEIGHT + 1}l8 -{BAR_HEIGHT + 2}"/>')
    elif len(series.values) > 1:
        parts.append(f'<path class="range" d="M{BAR_LEFT + low:.1f} {middle}H{BAR_LEFT + high:.1f}"/>')
    label = " · ".join([shown(series.median), *_more(results, workload, result)])
    title = f"<title>{escape(f'{result.contestant}, {result.mode}: {spread(series)} {workload.unit}')}</title>"
    parts.append(text(round(end) + 8, top + TEXT_DROP, label, "text small"))
    return f"<g>{title}{''.join(parts)}</g>"


def _more(results: Results, workload: Workload, result: Result) -> Iterator[str]:
    """Return the text behind the figure of a bar."""
    ratio = times_reference(results, result, workload.figure)
    if ratio is not None and result.contestant != workload.reference:
        yield f"{shown(ratio)}x {workload.reference}"
    for name in workload.details:
        if name in result.figures:
            yield f"{name} {shown(result.figures[name].median)}"


def _kind(workload: Workload, contestant: str) -> str:
    if contestant.startswith("framework"):
        return "framework"
    return {workload.reference: "reference", "bare": "floor"}.get(contestant, "peer")
