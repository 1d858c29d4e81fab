"""Draw charts as inline SVG. Widths are percentages, so that a chart fits any column and its text keeps its size.

The values of the vertical axis are left of the drawing (negative x), where the style sheet leaves space for them.
"""

from collections.abc import Sequence
from math import inf
from typing import Final

from demo.activity import Activity, Process, Samples
from demo.series import Bin, TimeSlice, place_of, round_steps
from workers.code_index.report.markup import Html, joined, tag

_COLOURS: Final = 6
_TOP: Final = 20
_BASE: Final = 200
_BINS_TOP: Final = 34
_BINS_BASE: Final = 180
_LANES: Final = _BASE + 40
_LANE: Final = 40
_ALL_LABELLED: Final = 6


def colours(activity: Activity) -> list[str]:
    """Return the style of each process: the busiest ones get colours of their own."""
    processes = activity.processes
    busiest = sorted(range(len(processes)), key=lambda place: -processes[place].runs.done)
    ranks = {place: min(rank + 1, _COLOURS) for rank, place in enumerate(busiest)}
    return [f"p{ranks[place]}" for place in range(len(processes))]


def pace_plot(activity: Activity, slices: Sequence[TimeSlice], styles: Sequence[str], title: str) -> Html:
    """Draw runs per second as columns, stacked by process, and below them a lane per shard with the lives of its processes."""
    span = max(len(slices) * slices[0].width_s, 0.001)
    most = max(part.rate for part in slices) or 1.0
    shards = sorted({process.shard for process in activity.processes})
    height = _LANES + _LANE * len(shards)
    parts = [*_guides(most, _TOP, _BASE), *(_column(part, span, most, styles) for part in slices if part.done)]
    parts += [tag("line", x1=0, x2="100%", y1=_BASE, y2=_BASE, class_="base"), *_seconds(span)]
    tops = {shard: _LANES + _LANE * place + 18 for place, shard in enumerate(shards)}
    for process, style in zip(activity.processes, styles, strict=True):
        parts.append(_life(process, span, activity.span_s, tops[process.shard], style))
    parts += [_death(process, span, tops[process.shard]) for process in activity.processes if process.died]
    parts += [_lane(shard, _LANES + _LANE * place) for place, shard in enumerate(shards)]
    return _picture(parts, height, title)


def histogram_plot(bins: Sequence[Bin], samples: Samples, title: str) -> Html:
    """Draw a histogram over a logarithmic axis, with marks at its 50th and 95th percentile."""
    most = max(one.count for one in bins)
    step = 100 / len(bins)
    parts = _guides(most, _BINS_TOP, _BINS_BASE, least=1.0)
    for place, one in enumerate(bins):
        left, height = place * step, (_BINS_BASE - _BINS_TOP) * one.count / most
        if one.count:
            meaning = tag("title", f"{between(one)}: {one.count:,}")
            # Two units high at least: a single job among thousands stays visible.
            parts.append(tag("g", meaning, _bar(left, step, _BINS_BASE - max(2.0, height), max(2.0, height), "bar")))
        if one.low_s and place and (len(bins) <= _ALL_LABELLED or is_decade(one.low_s)):
            parts.append(tag("text", shown_s(one.low_s), x=_percent(left), y=_BINS_BASE + 18, class_="soft middle"))
    parts.append(tag("line", x1=0, x2="100%", y1=_BINS_BASE, y2=_BINS_BASE, class_="base"))
    for percent, y in ((50, 26), (95, 12)):
        parts += _mark(percent, place_of(samples.percentile(percent), bins), y)
    return _picture(parts, _BINS_BASE + 26, title)


def between(one: Bin) -> str:
    """Return the values of a column in words."""
    if not one.low_s:
        return f"under {shown_s(one.high_s)}"
    return f"{shown_s(one.low_s)} or more" if one.high_s == inf else f"{shown_s(one.low_s)} to {shown_s(one.high_s)}"


def shown_s(seconds: float) -> str:
    """Return seconds with at most three figures."""
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms" if seconds >= 0.0001 or not seconds else f"{seconds * 1_000_000:.3g} us"
    return f"{seconds:.3g} s" if seconds < 1000 else f"{seconds:,.0f} s"


def is_decade(seconds: float) -> bool:
    """Return whether it is a power of ten."""
    return f"{seconds:.0e}"[0] == "1"


def _guides(most: float, top: int, base: int, least: float = 0.0) -> list[Html]:
    """Draw dotted lines at round values, each value to the left of its line."""
    parts: list[Html] = []
    for value in round_steps(most, 3, least):
        y = f"{base - (base - top) * value / most:.1f}"
        parts.append(tag("line", x1=0, x2="100%", y1=y, y2=y, class_="guide"))
        parts.append(tag("text", f"{value:,.4g}", x=-8, y=y, dy=4, class_="soft end"))
    return parts


def _mark(percent: int, place: float, y: int) -> list[Html]:
    """Draw a percentile's line; its name is at ``y``, on the side with space."""
    at = _percent(100 * place)
    side, shift = ("end", -4) if place > 0.5 else ("start", 4)
    return [
        tag("line", x1=at, x2=at, y1=y - 10, y2=_BINS_BASE, class_="mark"),
        tag("text", f"p{percent}", x=at, y=y, dx=shift, class_=f"soft {side}"),
    ]


def _seconds(span: float) -> list[Html]:
    return [
        tag("text", f"{step:g}", x=_percent(100 * step / span), y=_BASE + 18, class_="soft middle")
        for step in (0.0, *round_steps(span, 5))
    ]


def _column(part: TimeSlice, span: float, most: float, styles: Sequence[str]) -> Html:
    left, width = 100 * part.start_s / span, 100 * part.width_s / span
    scale = (_BASE - _TOP) / most / part.width_s
    top, bars = float(_BASE), list[Html]()
    for count, style in zip(part.counts, styles, strict=True):
        if count:
            top -= count * scale
            bars.append(_bar(left, width, top, count * scale, style))
    return tag("g", tag("title", f"from {part.start_s:.3g} s: {part.rate:,.3g} per second"), *bars)


def _lane(shard: str, y: int) -> Html:
    return tag("text", shard, x=-40, y=y + 12, class_="soft lane")


def _life(process: Process, span: float, until: float, y: int, style: str) -> Html:
    """Draw the life of a process: faint while it starts, then full."""
    end = process.ended_s if process.ended_s is not None else until
    ready = process.ready_s if process.ready_s is not None else end
    started = process.started_s if process.started_s is not None else ready
    parts: list[Html] = [tag("title", f"{process.shard}, pid {process.pid}: from {started:.1f} s to {end:.1f} s")]
    for left, right, kind in ((started, ready, f"{style} boot"), (ready, end, style)):
        if right > left:
            width = _percent(100 * (right - left) / span)
            parts.append(tag("rect", x=_percent(100 * left / span), y=y, width=width, height=10, class_=kind))
    return tag("g", *parts)


def _death(process: Process, span: float, y: int) -> Html:
    at = _percent(100 * (process.ended_s or 0) / span)
    return tag(
        "g",
        tag("title", f"{process.shard}, pid {process.pid} died at {process.ended_s or 0:.1f} s"),
        tag("line", x1=at, x2=at, y1=_TOP, y2=y, class_="death"),
        tag("text", "×", x=at, y=y + 12, class_="cross"),
    )


def _bar(left: float, width: float, top: float, height: float, style: str) -> Html:
    gap = width * 0.12
    at, wide = _percent(left + gap / 2), _percent(width - gap)
    return tag("rect", x=at, width=wide, y=f"{top:.1f}", height=f"{height:.1f}", class_=style)


def _percent(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") + "%"


def _picture(parts: Sequence[Html], height: int, title: str) -> Html:
    drawing = tag("svg", joined(parts), width="100%", height=height, role="img", aria_label=title)
    return tag("div", drawing, class_="plot")
