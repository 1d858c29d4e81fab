"""Print the results as text."""

from collections.abc import Iterator, Sequence

from tests.bench.campaign import Result, Results
from tests.bench.figures import Series, shown
from tests.bench.workloads import BY_NAME, Workload

LEFT_OUT = frozenset({"jobs"})


def printed(results: Results) -> str:
    """Return one table per workload: a line per contestant, pinned and unpinned side by side."""
    names = dict.fromkeys(result.workload for result in results.results)
    return "\n\n".join("\n".join(_workload(results, BY_NAME[name])) for name in names)


def by_rank(results: Results, workload: Workload, mode: str) -> list[Result]:
    """Return the results of a workload in a mode, the best first."""
    found = [each for each in results.results if (each.workload, each.mode) == (workload.name, mode)]
    return sorted(found, key=lambda each: each.figures[workload.figure].median, reverse=workload.more_is_better)


def times_reference(results: Results, result: Result, figure: str) -> float | None:
    """Return the median as a multiple of the reference's of the same workload and mode."""
    reference = results.median(result.workload, BY_NAME[result.workload].reference, result.mode, figure)
    return result.figures[figure].median / reference if reference else None


def spread(series: Series) -> str:
    return f"{shown(series.low)}-{shown(series.high)}" if len(series.values) > 1 else ""


def others(result: Result, figure: str) -> str:
    """Return the figures other than the main one."""
    kept = ((name, series) for name, series in result.figures.items() if name not in {figure, *LEFT_OUT})
    return "; ".join(f"{name} {shown(series.median)}" for name, series in kept)


def _workload(results: Results, workload: Workload) -> Iterator[str]:
    yield f"{workload.title} ({workload.name}), {workload.unit}"
    modes = dict.fromkeys(each.mode for each in results.results if each.workload == workload.name)
    for mode in modes:
        rows: list[Sequence[str]] = [(mode, "median", "min-max", f"x {workload.reference}", "")]
        for result in by_rank(results, workload, mode):
            series = result.figures[workload.figure]
            ratio = times_reference(results, result, workload.figure)
            rows.append(
                (
                    result.contestant,
                    shown(series.median),
                    spread(series),
                    shown(ratio) if ratio is not None else "",
                    others(result, workload.figure),
                )
            )
        yield from aligned(rows)


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Align the first and last column to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        middle = [cell.rjust(width) for cell, width in zip(row[1:-1], widths[1:-1], strict=True)]
        yield "  ".join(["", row[0].ljust(widths[0]), *middle, row[-1]]).rstrip()
