"""Simulate a group of queues whose slots follow ``slots_needed``, as KEDA scales processes: without a clock and without Redis.

Jobs arrive by a Poisson process whose rate follows a load, and wait in one queue. Every ``period_s`` the autoscaler reads the
signal, as the exporter computes it from what Redis would show then. New slots come ``start_s`` later; a slot too many ends when its
job has ended.
"""

import heapq
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from framework.features.observability.slots_needed import (
    TARGETS,
    LoadSample,
    QueueLoad,
    ShardLoad,
    group_slots,
    slots_for,
)
from framework.types import Urgency

RECORD_S = 5.0
"""How often a process writes its ended runs and its busy slots."""


@dataclass(frozen=True)
class Load:
    """A load: the rate of arrival at a time, its maximum, the mean seconds of a run, and how long it goes on."""

    name: str
    rate: Callable[[float], float]
    most: float
    seconds: float
    length_s: float
    urgency: Urgency = "low"
    period_s: float = 15.0
    start_s: float = 10.0
    warm_up_s: float = 180.0
    """The time at the beginning that is not judged: the autoscaler knows nothing yet."""


@dataclass
class Result:
    """The end of a simulation."""

    jobs: int = 0
    late: int = 0
    longest_wait_s: float = 0.0
    slot_seconds: float = 0.0
    needed_seconds: float = 0.0
    """The slots that a scaler would need that knows the rate of arrival, and has its slots at once."""
    curve: list[tuple[float, int, int]] = field(default_factory=list)
    """Time, slots, and the slots that were needed."""

    @property
    def in_time(self) -> float:
        return 1 - self.late / max(1, self.jobs)

    @property
    def surplus(self) -> float:
        """The slots above those that were needed, in the mean."""
        return self.slot_seconds / self.needed_seconds - 1


class _Simulation:
    def __init__(self, load: Load, seed: int) -> None:
        self.load, self.chance, self.target = load, random.Random(seed), TARGETS[load.urgency]
        self.shard, self.result = ShardLoad(), Result()
        self.waiting: deque[float] = deque()
        self.ends: list[float] = []  # when the running jobs end
        self.starting: deque[tuple[float, int]] = deque()  # when new slots are there, and how many
        self.slots, self.ended = 1, 0
        self.runs_shown = self.busy_shown = self.began = 0
        self.seconds = 0.0
        self.now, self.next_read, self.next_record = 0.0, 0.0, 0.0
        self.next_arrival = self.chance.expovariate(load.most)

    def run(self) -> Result:
        while self.now < self.load.length_s:
            coming = [one[0] for one in list(self.starting)[:1]]
            before = self.now
            self.now = min(self.next_arrival, self.next_read, self.next_record, *self.ends[:1], *coming)
            if before >= self.load.warm_up_s:
                # A slot that is to end has a running job until then.
                self.result.slot_seconds += max(self.slots, len(self.ends)) * (self.now - before)
            self.step()
            while self.waiting and len(self.ends) < self.slots:
                self.start_job()
        return self.result

    def step(self) -> None:
        if self.starting and self.starting[0][0] == self.now:
            self.slots += self.starting.popleft()[1]
        elif self.ends and self.ends[0] == self.now:
            heapq.heappop(self.ends)
            self.ended += 1
        elif self.next_arrival == self.now:
            if self.chance.random() * self.load.most < self.load.rate(self.now):
                self.waiting.append(self.now)
            self.next_arrival = self.now + self.chance.expovariate(self.load.most)
        elif self.next_record == self.now:
            self.runs_shown, self.busy_shown = self.ended, len(self.ends)
            self.next_record = self.now + RECORD_S
        else:
            self.scale()

    def start_job(self) -> None:
        since = self.waiting.popleft()
        if since >= self.load.warm_up_s:
            waited_s = self.now - since
            self.result.jobs += 1
            self.result.late += waited_s > self.target.seconds
            self.result.longest_wait_s = max(self.result.longest_wait_s, waited_s)
        run_s = self.chance.expovariate(1 / self.load.seconds)
        self.began, self.seconds = self.began + 1, self.seconds + run_s
        heapq.heappush(self.ends, self.now + run_s)

    def scale(self) -> None:
        load, runs = self.load, {"p": {"q": self.runs_shown}}
        mean = {"q": self.seconds / self.began} if self.began else {}
        sample = LoadSample(self.now, {"q": len(self.waiting)}, frozenset(), runs, {"q": self.busy_shown}, mean)
        wanted = group_slots(self.shard.note(sample), {"q": load.urgency}, {"g": ("q",)}, {})["g"]
        coming = sum(count for _, count in self.starting)
        if wanted > self.slots + coming:
            self.starting.append((self.now + load.start_s, wanted - self.slots - coming))
        elif wanted < self.slots:
            # A process that is told to stop ends its running jobs first.
            self.slots = max(1, wanted)
        needed = slots_for(QueueLoad(load.rate(self.now), load.seconds, 0), self.target)
        if self.now >= load.warm_up_s:
            self.result.needed_seconds += needed * load.period_s
        self.result.curve.append((self.now, self.slots, needed))
        self.next_read = self.now + load.period_s


def simulate(load: Load, seed: int = 1) -> Result:
    return _Simulation(load, seed).run()


def step(at: float, low: float, high: float) -> Callable[[float], float]:
    return lambda now: low if now < at else high


def ramp(begin: float, end: float, low: float, high: float) -> Callable[[float], float]:
    return lambda now: low + (high - low) * min(1.0, max(0.0, (now - begin) / (end - begin)))


# --- the picture of docs/operate/autoscaling.md ---------------------------------------------------------------------

PICTURE = Path(__file__).resolve().parents[3] / "docs" / "pictures" / "autoscaling.svg"
_WIDTH, _HEIGHT, _MARGIN = 300, 150, 34


def drawn() -> str:
    """Return the picture: slots, and the slots that were needed, of a step, a ramp and a day."""
    day = Load("a day", lambda at: 4 - 3.5 * math.cos(2 * math.pi * at / 86_400), 8, 5, 86_400)
    panels = [
        Load("step, 10 to 25 jobs/s", step(900, 10, 25), 25, 1.0, 1_800),
        Load("ramp, 5 to 40 jobs/s", ramp(300, 1_500, 5, 40), 40, 1.0, 1_800),
        day,
    ]
    parts = [_panel(load, number) for number, load in enumerate(panels)]
    size = f'viewBox="0 0 {len(panels) * (_WIDTH + _MARGIN) + _MARGIN} {_HEIGHT + 3 * _MARGIN}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11" role="img">'
    title = "<title>Slots that follow application_worker_slots_needed, and slots that the load needs</title>"
    key = (
        f'<text x="{_MARGIN}" y="{_HEIGHT + 2.7 * _MARGIN:.0f}" fill="#0b6e4f">slots</text>'
        f'<text x="{2 * _MARGIN + 10}" y="{_HEIGHT + 2.7 * _MARGIN:.0f}" fill="#888">needed</text>'
    )
    return "\n".join([head, title, *parts, key, "</svg>", ""])


def _panel(load: Load, number: int) -> str:
    curve = simulate(load).curve
    curve = curve[:: max(1, len(curve) // 150)]
    most, left = max(max(slots, needed) for _, slots, needed in curve), _MARGIN + number * (_WIDTH + _MARGIN)

    def line(column: int, color: str) -> str:
        points = " ".join(
            f"{left + one[0] / load.length_s * _WIDTH:.1f},{_MARGIN + _HEIGHT * (1 - one[column] / most):.1f}"
            for one in curve
        )
        return f'<polyline fill="none" stroke="{color}" stroke-width="1.5" points="{points}"/>'

    hours = load.length_s / 3_600
    return "\n".join(
        (
            f'<text x="{left}" y="{_MARGIN - 12}" fill="#444">{load.name}, runs of {load.seconds:g} s</text>',
            f'<text x="{left - 6}" y="{_MARGIN + 4}" text-anchor="end" fill="#444">{most}</text>',
            f'<path d="M{left},{_MARGIN} V{_MARGIN + _HEIGHT} H{left + _WIDTH}" stroke="#444" fill="none"/>',
            f'<text x="{left + _WIDTH}" y="{_MARGIN + _HEIGHT + 14}" text-anchor="end" fill="#444">{hours:g} h</text>',
            line(2, "#888"),
            line(1, "#0b6e4f"),
        )
    )


if __name__ == "__main__":
    PICTURE.write_text(drawn())
