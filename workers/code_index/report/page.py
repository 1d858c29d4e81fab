"""The page: totals, three charts with their tables, the most extreme files, and the files that do not parse."""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final

from workers.code_index.report.charts import columns, package_bars
from workers.code_index.report.markup import Column, Html, breakable, table, tag
from workers.code_index.run_statistics import FileRow, HistogramBar, PackageRow, RefusedRow, RunStatistics

LISTED_REFUSALS: Final = 500

# The page loads and runs nothing, for any name of a file.
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_KINDS: Final = {
    "syntax": "Syntax",
    "indentation": "Indentation",
    "encoding": "Encoding",
    "nul_byte": "NUL byte",
    "too_deep": "Nesting",
    "too_large": "Too large",
    "unreadable": "Not readable",
    "gave_up": "Given up",
}


def render(figures: RunStatistics, *, section: Html | None = None, style: str = "") -> str:
    """The whole page as text; it asks the network for nothing and holds no script.

    ``section`` is below the totals, styled by ``style``: there the demo shows the work of the worker processes.
    """
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"Code index · {figures.totals.files:,} files"),
        tag("style", Html(_style() + style)),
    )
    parts = [*_charts(figures), *_extremes(figures), _refusals(figures)]
    main = tag("main", _heading(figures), _tiles(figures), section or "", *parts)
    return f"<!doctype html>\n{tag('html', head, tag('body', main, _footer(figures)), lang='en')}\n"


@cache
def _style() -> str:
    return Path(__file__).with_name("page.css").read_text("utf-8")


def _heading(figures: RunStatistics) -> Html:
    moment = datetime.fromtimestamp(figures.created_at, UTC)
    stamp = tag("time", f"{moment:%d %B %Y, %H:%M} UTC", datetime=moment.isoformat(timespec="seconds"))
    roots = tag("ul", *(tag("li", tag("code", root)) for root in figures.roots), class_="roots")
    return tag(
        "header", tag("p", "Code index", class_="eyebrow"), tag("h1", _sentence(figures)), tag("p", stamp), roots
    )


def _sentence(figures: RunStatistics) -> str:
    totals = figures.totals
    if not totals.files:
        return "No Python file was found"
    ending = f"{totals.refused:,} do not parse"
    if totals.refused == 1:
        ending = "one does not parse"
    elif not totals.refused:
        ending = "it parses" if totals.files == 1 else "all of them parse"
    files, lines = "file" if totals.files == 1 else "files", "line" if totals.lines == 1 else "lines"
    return f"{totals.files:,} {files}, {totals.lines:,} {lines}; {ending}"


def _tiles(figures: RunStatistics) -> Html:
    totals = figures.totals
    pairs = [
        ("Files", f"{totals.files:,}", _bytes(totals.size)),
        ("Lines", f"{totals.lines:,}", f"{totals.lines // max(1, totals.measured):,} per file"),
        ("Functions", f"{totals.functions:,}", "async ones too"),
        ("Classes", f"{totals.classes:,}", ""),
        ("Not parsed", f"{totals.refused:,}", _share(totals.refused, totals.files)),
        ("Files per second", f"{totals.jobs_per_second:,.0f}", f"in {totals.span_s:,.1f} s"),
    ]
    tiles = [
        tag("div", tag("dt", name), tag("dd", value, tag("small", note)), class_="tile") for name, value, note in pairs
    ]
    return tag("dl", *tiles, class_="tiles")


def _charts(figures: RunStatistics) -> list[Html]:
    more = figures.packages_total - len(figures.packages)
    note = f"The {len(figures.packages)} largest of {figures.packages_total:,}." if more > 0 else "All packages."
    package_columns = [
        Column[PackageRow]("Package", lambda row: row.name),
        Column[PackageRow]("Files", lambda row: f"{row.files:,}", numeric=True),
        Column[PackageRow]("Lines", lambda row: f"{row.lines:,}", numeric=True),
        Column[PackageRow]("Not parsed", lambda row: row.refused or "–", numeric=True),
    ]
    title = "Lines per top-level package"
    packages: Sequence[PackageRow] = figures.packages
    wide = tag(
        "figure",
        tag("figcaption", tag("h2", title), tag("p", note)),
        tag("div", package_bars(packages, title), table(title, package_columns, packages), class_="pair"),
    )
    every = max(1, -(-len(figures.completions) // 10))
    width = f"{figures.bar_width_s:g} s"
    pace = columns(figures.completions, "Files finished over time", every=every, values=False)
    sizes = columns(figures.sizes, "Files by their number of lines")
    return [
        tag("section", wide),
        tag(
            "section",
            _distribution("Files by length", "Number of files with so many lines.", sizes, "Lines", figures.sizes),
            _distribution(
                "Pace", f"Files finished in each {width}; seconds below.", pace, "Second", figures.completions
            ),
            class_="two",
        ),
    ]


def _distribution(title: str, note: str, picture: Html, label: str, slices: Sequence[HistogramBar]) -> Html:
    cells = [
        Column[HistogramBar](label, lambda row: row.description),
        Column[HistogramBar]("Files", lambda row: f"{row.count:,}", numeric=True),
    ]
    numbers = tag("details", tag("summary", "As a table"), table(title, cells, slices))
    return tag("figure", tag("figcaption", tag("h2", title), tag("p", note)), picture, numbers)


def _extremes(figures: RunStatistics) -> list[Html]:
    name = Column[FileRow]("File", lambda row: _path(row.shown))
    lines = Column[FileRow]("Lines", lambda row: f"{row.lines:,}", numeric=True)
    time = Column[FileRow]("CPU", lambda row: f"{row.cpu_s * 1000:,.1f} ms", numeric=True)
    size = Column[FileRow]("Size", lambda row: _bytes(row.size), numeric=True)
    function = Column[FileRow]("Function", lambda row: tag("code", breakable(row.longest_name or "–")))
    length = Column[FileRow]("Lines", lambda row: f"{row.longest_lines:,}", numeric=True)
    longest = [row for row in figures.longest_functions if row.longest_name]
    where = Column[FileRow]("In", lambda row: _path(row.shown))
    mean = figures.totals.cpu_s / max(1, figures.totals.files) * 1000
    means = f"By processor time to read, parse and count; the mean is {mean:,.1f} ms."
    slowest = _listing("Slowest files", means, [name, time, lines], figures.slowest)
    largest = _listing("Largest files", "By their number of lines.", [name, lines, size], figures.largest)
    functions = _listing("Longest functions", "The longest one of each file.", [function, length, where], longest)
    return [tag("section", slowest, largest, class_="two"), tag("section", functions)]


def _listing(title: str, note: str, cells: Sequence[Column[FileRow]], rows: Sequence[FileRow]) -> Html:
    body = table(title, cells, rows) if rows else tag("p", "None.", class_="none")
    return tag("article", tag("h2", title), tag("p", note), body)


def _refusals(figures: RunStatistics) -> Html:
    rows = figures.refused
    heading = tag("h2", "Files that do not parse")
    if not rows:
        return tag("section", heading, tag("p", "None: every file was read and parsed.", class_="none"))
    counts = Counter(row.kind for row in rows)
    kinds = [
        tag("li", tag("b", f"{count:,}"), f" {_KINDS.get(kind, kind).lower()}") for kind, count in counts.most_common()
    ]
    cells = [
        Column[RefusedRow]("File", lambda row: _path(row.shown)),
        Column[RefusedRow]("Kind", lambda row: tag("span", _KINDS.get(row.kind, row.kind), class_="kind")),
        Column[RefusedRow]("Reason", lambda row: row.reason),
    ]
    listed: Sequence[RefusedRow] = rows[:LISTED_REFUSALS]
    parts: list[Any] = [heading, tag("ul", *kinds, class_="kinds"), table("Files that do not parse", cells, listed)]
    if len(rows) > LISTED_REFUSALS:
        parts.append(tag("p", f"{len(rows) - LISTED_REFUSALS:,} more are in the database, table code_index_results."))
    return tag("section", *parts)


def _footer(figures: RunStatistics) -> Html:
    return tag("footer", tag("p", "Run ", tag("code", figures.run_id), ". This page loads nothing and runs nothing."))


def _path(shown: str) -> Html:
    """A file name that a narrow column may break after a slash, its last part standing out."""
    folder, slash, name = shown.rpartition("/")
    return tag("code", tag("span", breakable(folder + slash), class_="folder"), breakable(name))


def _bytes(size: int) -> str:
    value = float(size)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1000
    return f"{value:,.1f} GB"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%} of all" if whole else ""
