"""Two charts as inline SVG, coloured by the page's style sheet. A table shows the same numbers next to each."""

from collections.abc import Sequence
from typing import Final

from workers.code_index.report.markup import Html, joined, tag
from workers.code_index.run_statistics import HistogramBar, PackageRow

_BAR_HEIGHT: Final = 34
_NAME_WIDTH: Final = 150
_BARS_WIDTH: Final = 640
_VALUE_WIDTH: Final = 76
_COLUMNS_WIDTH: Final = 520
_COLUMNS_HEIGHT: Final = 220
_BASE: Final = 190
_TOP: Final = 24
_GUIDE_WIDTH: Final = 48


def package_bars(packages: Sequence[PackageRow], title: str) -> Html:
    """A bar per package, as long as its lines are many; names on the left, numbers at the bars' ends."""
    most = max((package.lines for package in packages), default=0) or 1
    room = _BARS_WIDTH - _NAME_WIDTH - _VALUE_WIDTH
    rows: list[Html] = []
    for index, package in enumerate(packages):
        y = index * _BAR_HEIGHT
        width = max(2.0, room * package.lines / most)
        meaning = f"{package.name}: {package.lines:,} lines in {package.files:,} files"
        rows.append(
            tag(
                "g",
                tag("title", meaning),
                tag("text", _clipped(package.name, 20), x=_NAME_WIDTH - 10, y=y + 22, class_="name"),
                tag("rect", x=_NAME_WIDTH, y=y + 6, width=f"{width:.1f}", height=_BAR_HEIGHT - 10, rx=3, class_="bar"),
                tag("text", f"{package.lines:,}", x=f"{_NAME_WIDTH + width + 8:.1f}", y=y + 22, class_="value"),
            )
        )
    return _picture(rows, _BARS_WIDTH, max(1, len(packages)) * _BAR_HEIGHT, title)


def columns(slices: Sequence[HistogramBar], title: str, *, every: int = 1, values: bool = True) -> Html:
    """A column per slice on a common base line; every ``every``-th is labelled.

    With ``values`` each column carries its own; without, two guides on the left say how high they are.
    """
    most = max((part.count for part in slices), default=0) or 1
    left = 0 if values else _GUIDE_WIDTH
    step = (_COLUMNS_WIDTH - left) / max(1, len(slices))
    drawn = [] if values else [_guides(most)]
    for index, part in enumerate(slices):
        name = part.label if index % every == 0 else None
        drawn.append(_column(part, most, left + index * step, step, name=name, value=values))
    drawn.append(tag("line", x1=left, x2=_COLUMNS_WIDTH, y1=_BASE, y2=_BASE, class_="base"))
    return _picture(drawn, _COLUMNS_WIDTH, _COLUMNS_HEIGHT, title)


def _column(part: HistogramBar, most: int, start: float, step: float, *, name: str | None, value: bool) -> Html:
    gap = 8 if step > 30 else max(1.0, step * 0.15)
    height = (_BASE - _TOP) * part.count / most
    left, middle, width = f"{start + gap / 2:.1f}", f"{start + step / 2:.1f}", f"{step - gap:.1f}"
    top = _BASE - height
    parts: list[object] = [
        tag("title", f"{part.description}: {part.count:,}"),
        tag("rect", x=left, y=f"{top:.1f}", width=width, height=f"{height:.1f}", rx=2, class_="bar"),
    ]
    if value and part.count:
        parts.append(tag("text", f"{part.count:,}", x=middle, y=f"{top - 6:.1f}", class_="top"))
    if name is not None:
        parts.append(tag("text", name, x=middle, y=_BASE + 20, class_="tick"))
    return tag("g", *parts)


def _guides(most: int) -> Html:
    """Dotted lines at the highest column and at half of it, their values to the left."""
    lines: list[Html] = []
    for value in sorted({most, most // 2} - {0}):
        y = _BASE - (_BASE - _TOP) * value / most
        lines.append(tag("line", x1=_GUIDE_WIDTH, x2=_COLUMNS_WIDTH, y1=f"{y:.1f}", y2=f"{y:.1f}", class_="guide"))
        lines.append(tag("text", f"{value:,}", x=_GUIDE_WIDTH - 8, y=f"{y + 4:.1f}", class_="guide-value"))
    return joined(lines)


def _picture(parts: Sequence[object], width: int, height: int, title: str) -> Html:
    drawing = tag("svg", *parts, viewBox=f"0 0 {width} {height}", role="img", aria_label=title)
    return tag("div", drawing, class_="chart")


def _clipped(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
