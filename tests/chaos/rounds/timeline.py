"""Draw a round as a picture: jobs per second of both shards, every fault, every process, every recovery, over one time
axis.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import count

from tests.bench.svg import picture, text
from tests.chaos.rounds.faults import Injection
from tests.chaos.rounds.worker_processes import Life

WIDTH, MARGIN, LEFT = 960, 24, 190
SPAN = WIDTH - MARGIN - LEFT
TOP, FAULTY_HEIGHT, CONTROL_HEIGHT, GAP = 64, 120, 60, 26
LANE, LIFE_LANE = 18, 8
_BUCKETS = 240
_LEAST_WIDTH = 2.0
_STEPS_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1_200, 3_600)
_MOST_STEPS = 12

STYLE = """
.faulty { fill: #0969da; opacity: .75; } .control { fill: #818b98; opacity: .75; }
.process { fill: #bf8700; } .redis { fill: #8250df; } .network { fill: #0a7ea4; } .forgets { fill: #cf222e; }
.band { opacity: .12; } .life { stroke: #59636e; stroke-width: 3; } .death { fill: #bf8700; }
.recovery { stroke: #1a7f37; stroke-width: 2; } .recovered { fill: #1a7f37; } .lane { fill: #818b98; opacity: .1; }
@media (prefers-color-scheme: dark) {
  .faulty { fill: #4493f8; } .control { fill: #9198a1; } .process { fill: #d29922; } .redis { fill: #ab7df8; }
  .network { fill: #39c5cf; } .forgets { fill: #f85149; } .band { opacity: .2; } .life { stroke: #9198a1; }
  .death { fill: #d29922; } .recovery { stroke: #3fb950; } .recovered { fill: #3fb950; }
}
"""

_LEGEND = (
    ("process", "at a process"), ("redis", "at Redis"), ("network", "on the way to Redis"),
    ("forgets", "Redis forgets answers"), ("recovered", "job running again"),
)  # fmt: skip


@dataclass
class Timeline:
    """The data of the picture; all times are monotonic seconds."""

    title: str
    facts: str
    since: float
    until: float
    faulty: Sequence[float]
    """The ends of the jobs of the shard with the faults."""
    control: Sequence[float]
    injections: Sequence[Injection]
    lives: Sequence[Life]
    recoveries: Sequence[tuple[float, float]]
    """From the injection to the next start of each job that it cut off."""

    def x(self, at: float) -> float:
        """Return the x coordinate of a time."""
        share = (at - self.since) / (self.until - self.since)
        return round(LEFT + SPAN * min(1.0, max(0.0, share)), 1)


def drawn(line: Timeline) -> str:
    """Return the SVG."""
    parts = [text(MARGIN, 30, line.title, "text title"), text(MARGIN, 50, line.facts, "faint small")]
    y: float = TOP + GAP
    panels = y
    areas: list[str] = []
    for name, kind, ends, height in (
        ("faulty shard", "faulty", line.faulty, FAULTY_HEIGHT), ("control shard", "control", line.control, CONTROL_HEIGHT)
    ):  # fmt: skip
        areas += _area(line, name, kind, ends, y, height)
        y += height + GAP
    parts += [_band(line, injection, panels, y - GAP - panels) for injection in line.injections]
    parts += areas
    for lanes in (_faults, _lives, _recoveries):
        drawn_lanes, y = lanes(line, y)
        parts += drawn_lanes
    parts[2:2] = _axis(line, panels, y)
    parts += _legend(y + 34)
    return picture(WIDTH, y + 34 + MARGIN, line.title, STYLE, parts)


def _area(line: Timeline, name: str, kind: str, ends: Sequence[float], top: float, height: float) -> Iterator[str]:
    """Return jobs per second as an area, with the label of its height."""
    rates = _rates(line, ends)
    most = max(rates) or 1.0
    step = SPAN / _BUCKETS
    points = [f"M{LEFT} {top + height:g}"]
    for bucket, rate in enumerate(rates):
        y = top + height * (1 - rate / most)
        points.append(f"L{LEFT + bucket * step:.1f} {y:.1f}H{LEFT + (bucket + 1) * step:.1f}")
    title = f"<title>{escape(f'{name}: {len(ends):,} jobs')}</title>"
    yield f'<path class="{kind}" d="{"".join(points)}V{top + height:g}Z">{title}</path>'
    yield text(LEFT - 10, top + 14, name, "text small", anchor="end")
    yield text(LEFT - 10, top + 30, f"up to {most:,.0f} jobs/s", "faint small", anchor="end")
    yield f'<path class="axis" d="M{LEFT} {top + height:g}h{SPAN}"/>'


def _rates(line: Timeline, ends: Sequence[float]) -> list[float]:
    """Return the jobs per second in each bucket, over the second around it: some producers push in bursts."""
    width_s = (line.until - line.since) / _BUCKETS
    counts = Counter(int((at - line.since) / width_s) for at in ends if line.since <= at < line.until)
    reach = round(0.5 / width_s)
    found: list[float] = []
    for bucket in range(_BUCKETS):
        near = range(max(0, bucket - reach), min(_BUCKETS, bucket + reach + 1))
        found.append(sum(counts[one] for one in near) / (len(near) * width_s))
    return found


def _band(line: Timeline, injection: Injection, top: float, height: float) -> str:
    x, width = _place(line, injection)
    return f'<rect class="{_colour(injection)} band" x="{x}" y="{top:g}" width="{width}" height="{height:g}"/>'


def _faults(line: Timeline, top: float) -> tuple[list[str], float]:
    """Return a lane per kind of fault."""
    kinds: dict[str, list[Injection]] = {}
    for injection in sorted(line.injections, key=lambda injection: (injection.family, injection.kind)):
        kinds.setdefault(injection.kind, []).append(injection)
    parts: list[str] = []
    for kind, injections in kinds.items():
        parts.append(f'<rect class="lane" x="{LEFT}" y="{top:g}" width="{SPAN}" height="{LANE - 4}"/>')
        parts.append(text(LEFT - 10, top + 11, f"{kind} ({len(injections)})", "text small", anchor="end"))
        parts += [_mark(line, injection, top) for injection in injections]
        top += LANE
    return parts, top + GAP / 2


def _mark(line: Timeline, injection: Injection, top: float) -> str:
    x, width = _place(line, injection)
    at, lasted = injection.at - line.since, max(0.0, injection.until - injection.at)
    title = f"<title>{escape(f'{injection.kind} at {at:.1f} s, for {lasted:.1f} s')}</title>"
    return f'<rect class="{_colour(injection)}" x="{x}" y="{top:g}" width="{width}" height="{LANE - 4}">{title}</rect>'


def _lives(line: Timeline, top: float) -> tuple[list[str], float]:
    """Return each process from its readiness to its end; a successor may use the same row."""
    rows: list[float] = []
    parts = [text(LEFT - 10, top + 8, "processes at work", "text small", anchor="end")]
    for life in sorted(line.lives, key=lambda life: life.since):
        until = life.until or line.until
        row = next((index for index, free in enumerate(rows) if free <= life.since), len(rows))
        rows[row:] = [until, *rows[row + 1 :]]
        y = top + 4 + row * LIFE_LANE
        parts.append(f'<path class="life" d="M{line.x(life.since)} {y:g}H{line.x(until)}"/>')
        if life.until and life.until < line.until:
            parts.append(f'<circle class="death" cx="{line.x(until)}" cy="{y:g}" r="3"/>')
    return parts, top + max(len(rows), 1) * LIFE_LANE + GAP / 2


def _recoveries(line: Timeline, top: float) -> tuple[list[str], float]:
    """Return the recovery times of each injection that cut jobs off: a line to the last of them, a dot for each."""
    if not line.recoveries:
        return [], top
    spans: dict[float, list[float]] = {}
    for injected_at, begun in line.recoveries:
        spans.setdefault(injected_at, []).append(begun)
    rows: list[float] = []
    parts = [text(LEFT - 10, top + 8, "jobs cut off, run again", "text small", anchor="end")]
    for injected_at, begins in sorted(spans.items()):
        row = next((index for index, free in enumerate(rows) if free <= injected_at), len(rows))
        rows[row:] = [max(begins), *rows[row + 1 :]]
        y = top + 4 + row * LIFE_LANE
        parts.append(f'<path class="recovery" d="M{line.x(injected_at)} {y:g}H{line.x(max(begins))}"/>')
        dots = dict.fromkeys(line.x(begun) for begun in begins)
        parts += [f'<circle class="recovered" cx="{x}" cy="{y:g}" r="2.5"/>' for x in dots]
    return parts, top + len(rows) * LIFE_LANE + GAP / 2


def _axis(line: Timeline, top: float, bottom: float) -> Iterator[str]:
    length = line.until - line.since
    step = next((step for step in _STEPS_S if length / step <= _MOST_STEPS), _STEPS_S[-1])
    for seconds in count(0, step):
        if seconds > length:
            return
        x = line.x(line.since + seconds)
        yield f'<path class="axis" d="M{x} {top:g}V{bottom:g}"/>'
        yield text(x, top - 8, f"{seconds} s", "faint small", anchor="middle")


def _legend(y: float) -> Iterator[str]:
    x = float(LEFT)
    for kind, words in _LEGEND:
        yield f'<rect class="{kind}" x="{x:g}" y="{y - 10:g}" width="12" height="12" rx="2"/>'
        yield text(x + 18, y, words, "text small")
        x += 40 + 6.4 * len(words)


def _place(line: Timeline, injection: Injection) -> tuple[float, float]:
    """Return the start and the width of an injection."""
    x = line.x(injection.at)
    return x, round(max(_LEAST_WIDTH, line.x(injection.until) - x), 1)


def _colour(injection: Injection) -> str:
    return "forgets" if injection.forgets else injection.family
