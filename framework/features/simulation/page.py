"""Draw the course of one or several simulations in a page that needs nothing beside itself."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from math import ceil, floor, log10
from typing import NamedTuple

from framework.features.simulation.engine import SimulationResult
from framework.features.simulation.report import SimulationReport
from framework.text import format_bytes

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 560, 170, 64, 20
_MARKS = 4
_ROWS = 12
"""Rows of the table beside a chart."""
_LINES = 8
"""Lines of one chart; those with the largest values."""

_COLOURS = "".join(
    f".l{number} {{ stroke: var(--c{number}); }} .k{number} {{ background: var(--c{number}); }}\n"
    for number in range(_LINES)
)
_STYLE = """
:root { color-scheme: light dark; --ink: #1c2733; --soft: #5b6b7b; --rule: #d9e0e7; --ground: #fff;
  --c0: #2563a8; --c1: #b4540a; --c2: #2e7d4f; --c3: #8b3fa0; --c4: #a3213b; --c5: #5f6a00; --c6: #00727d; --c7: #6b5b4f; }
@media (prefers-color-scheme: dark) { :root { --ink: #e3e9ef; --soft: #9aa9b8; --rule: #34414e; --ground: #141b22;
  --c0: #7db4f0; --c1: #f0a35e; --c2: #7fcf9f; --c3: #d39be6; --c4: #f08ca0; --c5: #c9d46a; --c6: #6fd0d9; --c7: #c9b8aa; } }
body { font: 14px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--ground); margin: 2rem auto; max-width: 74rem;
  padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2.5rem; } h3 { font-size: .95rem; margin: 0 0 .3rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; } .scroll { overflow-x: auto; }
th, td { text-align: right; padding: .15rem .7rem; border-bottom: 1px solid var(--rule); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; } th { color: var(--soft); font-weight: 500; }
.charts { display: grid; margin-top: 1.5rem; grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr)); gap: 1.5rem; }
svg { width: 100%; height: auto; } text { fill: var(--soft); font-size: 11px; } .axis { stroke: var(--rule); }
.line { fill: none; stroke-width: 1.6; } .key { display: inline-block; width: .7em; height: .7em; margin: 0 .3em 0 .8em; }
details { color: var(--soft); } .remark { border-left: 3px solid var(--c1); padding-left: .7rem; }
"""


class Chart(NamedTuple):
    """One chart: its title, the moments, and a line for each name."""

    title: str
    moments: Sequence[float]
    lines: Mapping[str, Sequence[float]]
    shown: Callable[[float], str]


def page_of(reports: Sequence[tuple[SimulationReport, SimulationResult]]) -> str:
    """Return the page."""
    return "\n".join(_page(reports)) + "\n"


def _page(reports: Sequence[tuple[SimulationReport, SimulationResult]]) -> Iterator[str]:
    yield '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Simulation</title>'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<style>{_STYLE}{_COLOURS}</style></head><body><h1>Simulation</h1>"
    for report, result in reports:
        yield f"<h2>{escape(report.name or 'recorded jobs')}</h2>"
        for remark in report.remarks:
            yield f'<p class="remark">{escape(remark)}</p>'
        yield from _class_table(report)
        yield '<div class="charts">'
        for chart in _charts(result):
            yield from _drawn(chart)
        yield "</div>"
    yield "</body></html>"


def _class_table(report: SimulationReport) -> Iterator[str]:
    head = ["class", "urgency", "queue", "jobs", "in time", "p50 s", "p95 s", "p99 s", "longest s", "most held"]
    rows = [
        [
            one.name,
            one.urgency,
            f"{one.shard}/{one.queue}",
            f"{one.started:,}",
            f"{one.in_time:.1%}",
            *(f"{wait:,.3f}" for wait in one.waits),
            f"{one.most_held:,}",
        ]
        for one in report.classes
    ]
    yield from _table(head, rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f'<div class="scroll"><table><tr>{"".join(f"<th>{escape(one)}</th>" for one in head)}</tr>'
    for row in rows:
        yield f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>"
    yield "</table></div>"


def _charts(result: SimulationResult) -> Iterator[Chart]:
    samples = result.samples
    moments = [one.at for one in samples]
    shards = list(result.store_us)
    yield Chart(
        "Waiting and held jobs of a shard",
        moments,
        {name: [one.waiting[name] + one.held[name] for one in samples] for name in shards},
        _count,
    )
    urgencies = sorted({name for one in samples for name in one.in_time})
    # A step without a start has no share: the last one is shown.
    yield Chart(
        "Jobs that start in time, by urgency",
        moments,
        {name: _last_known([one.in_time.get(name) for one in samples]) for name in urgencies},
        _share,
    )
    yield Chart(
        "Processes of a set",
        moments,
        {name: [one.processes[name] for one in samples] for name in result.model.sets},
        _count,
    )
    yield Chart(
        "Slots in use", moments, {name: [one.busy[name] for one in samples] for name in result.model.sets}, _count
    )
    step_us = result.step_s * 1e6
    yield Chart(
        "Processor time of a shard's Redis, of one core",
        moments,
        {name: [us / step_us for us in result.store_us[name][: len(moments)]] for name in shards},
        _share,
    )
    yield Chart(
        "Bytes of waiting jobs of a shard",
        moments,
        {name: [one.waiting_bytes[name] for one in samples] for name in shards},
        format_bytes,
    )


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def _share(value: float) -> str:
    return f"{100 * value:.3g} %"


def _last_known(values: Sequence[float | None]) -> list[float]:
    found: list[float] = []
    for value in values:
        found.append(value if value is not None else found[-1] if found else 1.0)
    return found


def _drawn(chart: Chart) -> Iterator[str]:
    """Yield a chart with the names of its lines, and the same values in a table."""
    names = sorted(chart.lines, key=lambda name: -max(chart.lines[name], default=0.0))[:_LINES]
    left_out = len(chart.lines) - len(names)
    top = _round_up(max((max(chart.lines[name], default=0.0) for name in names), default=0.0))
    yield f"<section><h3>{escape(chart.title)}</h3>"
    keys = "".join(f'<span class="key k{number}"></span>{escape(name)}' for number, name in enumerate(names))
    yield f"<div>{keys}{f' and {left_out} with smaller values' if left_out else ''}</div>"
    yield f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(chart.title)}">'
    for mark in range(_MARKS + 1):
        y = _y(top * mark / _MARKS, top)
        yield f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(chart.shown(top * mark / _MARKS))}</text>'
    last = chart.moments[-1] or 1.0
    for mark in range(_MARKS + 1):
        anchor = "start" if mark == 0 else "end" if mark == _MARKS else "middle"
        x = _x(last * mark / _MARKS, last)
        yield f'<text x="{x:.1f}" y="{_HEIGHT - 4}" text-anchor="{anchor}">{last * mark / _MARKS:,.0f} s</text>'
    for number, name in enumerate(names):
        points = " ".join(
            f"{_x(at, last):.1f},{_y(value, top):.1f}"
            for at, value in zip(chart.moments, chart.lines[name], strict=True)
        )
        yield f'<polyline class="line l{number}" points="{points}"/>'
    yield "</svg><details><summary>Values</summary>"
    every = ceil(len(chart.moments) / _ROWS)
    rows = [
        [f"{at:,.0f}", *(chart.shown(chart.lines[name][index]) for name in names)]
        for index, at in enumerate(chart.moments)
        if index % every == 0
    ]
    yield from _table(["s", *names], rows)
    yield "</details></section>"


def _x(at: float, last: float) -> float:
    return _LEFT + (_WIDTH - _LEFT) * at / last


def _y(value: float, top: float) -> float:
    return 8 + (_HEIGHT - _BOTTOM - 8) * (1 - value / top)


def _round_up(value: float) -> float:
    """Return the next number with one digit that differs from zero, so that the marks are whole."""
    if value <= 0:
        return 1.0
    unit = 10.0 ** floor(log10(value))
    return ceil(value / unit) * unit
