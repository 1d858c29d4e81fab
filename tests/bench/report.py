"""Write the files of a campaign: figures for programs, a picture, and a page for people."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path

from tests.bench.campaign import Results
from tests.bench.chart import drawn
from tests.bench.figures import shown
from tests.bench.table import aligned, by_rank, others, spread, times_reference
from tests.bench.targets import Verdict, unmeasured, verdicts
from tests.bench.workloads import BY_NAME, Workload

PAGE_STYLE = """
:root { color-scheme: light dark; --text: #1f2328; --ground: #ffffff; --line: #d1d9e0; --met: #1a7f37; --missed: #cf222e; }
@media (prefers-color-scheme: dark) {
  :root { --text: #f0f6fc; --ground: #0d1117; --line: #3d444d; --met: #3fb950; --missed: #f85149; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--ground); max-width: 1000px;
  margin: 2rem auto; padding: 0 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: .5rem 0 1.5rem; }
th, td { padding: .25rem .75rem .25rem 0; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
.number { text-align: right; white-space: nowrap; }
.met { color: var(--met); font-weight: 600; } .missed { color: var(--missed); font-weight: 600; }
svg { max-width: 100%; height: auto; } h2 { margin-top: 2.5rem; } pre { white-space: pre-wrap; }
"""


def targets_text(results: Results) -> str:
    """Return the targets as a table for standard output; empty when none was measured."""
    rows: list[Sequence[str]] = [("Target", "mode", "goal", "measured", "floor", "")]
    rows += [
        (each.says, each.mode, each.goal, each.measured, each.floor, "met" if each.met else "MISSED")
        for each in verdicts(results)
    ]
    left = unmeasured(results)
    note = [f"  not measured: {len(left)} of the targets"] if left else []
    return "\n".join([*aligned(rows), *note]) if len(rows) > 1 else ""


def write(folder: Path, results: Results, facts: Mapping[str, str]) -> list[Path]:
    """Write results.json, chart.svg and report.html; return their paths. ``facts`` are the machine, the versions, the
    options.
    """
    folder.mkdir(parents=True, exist_ok=True)
    picture = drawn(results)
    contents = {
        "results.json": json.dumps(as_data(results, facts), indent=2) + "\n",
        "chart.svg": picture,
        "report.html": page(results, facts, picture),
    }
    for name, content in contents.items():
        (folder / name).write_text(content)
    return [folder / name for name in contents]


def as_data(results: Results, facts: Mapping[str, str]) -> dict[str, object]:
    """Return everything as plain data."""
    return {
        "facts": dict(facts),
        "results": [
            {
                "workload": each.workload,
                "unit": BY_NAME[each.workload].unit,
                "main": BY_NAME[each.workload].figure,
                "contestant": each.contestant,
                "mode": each.mode,
                "figures": {
                    name: {"median": series.median, "min": series.low, "max": series.high, "values": series.values}
                    for name, series in each.figures.items()
                },
            }
            for each in results.results
        ],
        "targets": [asdict(verdict) for verdict in verdicts(results)],
        "not_measured": unmeasured(results),
        "troubles": results.troubles,
    }


def page(results: Results, facts: Mapping[str, str], picture: str) -> str:
    """Return one complete HTML page."""
    workloads = [BY_NAME[name] for name in dict.fromkeys(each.workload for each in results.results)]
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Benchmark</title>',
            f'<meta name="viewport" content="width=device-width"><style>{PAGE_STYLE}</style></head><body>',
            "<h1>Benchmark</h1>",
            _table([[escape(name), escape(value)] for name, value in facts.items()]),
            "<h2>Targets</h2>",
            _table(
                [_verdict(verdict) for verdict in verdicts(results)],
                _heads("Target", "mode", "goal", "measured", "floor", ""),
            ),
            *_trouble(results.troubles),
            "<h2>Chart</h2>",
            picture,
            *(part for workload in workloads for part in _workload(results, workload)),
            "</body></html>",
            "",
        ]
    )


def _verdict(verdict: Verdict) -> list[str]:
    word = '<span class="met">met</span>' if verdict.met else '<span class="missed">missed</span>'
    cells = [verdict.says, verdict.mode, verdict.goal, verdict.measured, verdict.floor]
    return [*(escape(cell) for cell in cells), word]


def _workload(results: Results, workload: Workload) -> Iterator[str]:
    yield f"<h2>{escape(workload.title)}</h2><p>{escape(workload.name)}, {escape(workload.unit)}</p>"
    for mode in dict.fromkeys(each.mode for each in results.results if each.workload == workload.name):
        rows = []
        for result in by_rank(results, workload, mode):
            series = result.figures[workload.figure]
            ratio = times_reference(results, result, workload.figure)
            times = shown(ratio) if ratio is not None else ""
            cells = [result.contestant, shown(series.median), spread(series), times, others(result, workload.figure)]
            rows.append([escape(cell) for cell in cells])
        yield _table(rows, _heads(mode, "median", "min-max", f"x {workload.reference}", "also"))


def _trouble(troubles: Sequence[str]) -> Iterator[str]:
    if troubles:
        yield "<h2>Skipped or failed</h2>"
        yield from (f"<pre>{escape(line)}</pre>" for line in troubles)


def _heads(*names: str) -> str:
    return "<tr>" + "".join(f"<th>{escape(name)}</th>" for name in names) + "</tr>"


def _table(rows: Iterable[Sequence[str]], head: str = "") -> str:
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table>{head}{body}</table></div>'
