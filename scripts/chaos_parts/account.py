"""From the effects of all processes to what was lost, what ran again and why, and how fast it was taken back."""

import bisect
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from chaos_parts.blows import Blow
from chaos_parts.effects import BEGUN, Effect

ACKNOWLEDGED_LATE = 32
"""Jobs of one process that may have ended, or wait in its hand, beside the running ones (docs/redis.md: batches)."""

WAKING_S = 3.0
"""A process that was frozen may still start, within this time, what it had in hand."""

_DYING_S = 0.5
"""A process that was struck may still begin a job before the signal reaches its last thread."""

_REDIS_AFTERMATH_S = 25.0
"""How long after a blow to Redis a second run is laid to it: a lease and two sweeps."""


@dataclass
class Run:
    """One run of one job."""

    serial: int
    pid: int
    begun: float
    ended: float | None = None


@dataclass
class Account:
    """What became of the jobs of a round."""

    lost: list[int] = field(default_factory=list[int])
    runs: int = 0
    extra: Counter[str] = field(default_factory=Counter[str])
    """Second and further runs, by the kind of blow that explains them; `unexplained` is nobody's."""
    worst: int = 0
    """The most extra runs that one blow at a process caused."""
    interrupted: int = 0
    """Runs that a blow cut off."""
    recoveries: list[float] = field(default_factory=list[float])
    """Seconds from a kill, or the begin of a freeze, to the next begin of each job that was running."""
    resumed: list[float] = field(default_factory=list[float])
    """Seconds from the end of each trouble at Redis to the next begin of any job."""
    unexplained: list[int] = field(default_factory=list[int])


def runs_of(effects: Iterable[Effect]) -> dict[int, list[Run]]:
    """Return the runs of each serial, oldest first."""
    runs: dict[int, list[Run]] = defaultdict(list)
    for effect in sorted(effects, key=lambda effect: effect.at):
        if effect.kind == BEGUN:
            runs[effect.serial].append(Run(effect.serial, effect.pid, effect.at))
            continue
        own = [run for run in runs[effect.serial] if run.pid == effect.pid and run.ended is None]
        own[0].ended = effect.at
    return runs


def account(jobs: int, effects: Iterable[Effect], blows: Sequence[Blow], doubtful: Collection[int]) -> Account:
    """Judge a round of ``jobs`` serials."""
    runs = runs_of(effects)
    found = Account(runs=sum(map(len, runs.values())))
    found.lost = [serial for serial in range(jobs) if all(run.ended is None for run in runs.get(serial, ()))]
    causes = _Causes(blows)
    charged: Counter[int] = Counter()
    for serial, own in runs.items():
        for before, run in pairwise(own):
            blow = causes.explain(before, run)
            if blow is not None and blow.pid:
                charged[id(blow)] += 1
            kind = blow.kind if blow else "doubtful push" if serial in doubtful else "unexplained"
            found.extra[kind] += 1
            if kind == "unexplained":
                found.unexplained.append(serial)
    found.worst = max(charged.values(), default=0)
    _measure(found, runs, causes)
    begins = sorted(run.begun for own in runs.values() for run in own)
    for blow in causes.by_pid.get(0, []):
        index = bisect.bisect_left(begins, blow.until)
        found.resumed += [begin - blow.until for begin in begins[index : index + 1]]
    return found


class _Causes:
    def __init__(self, blows: Sequence[Blow]) -> None:
        self.by_pid: dict[int, list[Blow]] = defaultdict(list)
        for blow in sorted(blows, key=lambda blow: blow.at):
            self.by_pid[blow.pid].append(blow)

    def after(self, pid: int, at: float) -> Blow | None:
        """The first blow at a process from ``at`` on, or from just before."""
        own = self.by_pid.get(pid, [])
        index = bisect.bisect_left([blow.at for blow in own], at - _DYING_S)
        return own[index] if index < len(own) else None

    def explain(self, before: Run, run: Run) -> Blow | None:
        """The blow that made a job run again: at the process of the run before, at a waking one, or at Redis."""
        blow = self.after(before.pid, before.begun)
        if blow is not None and blow.at <= run.begun:
            return blow
        for woken in self.by_pid.get(run.pid, []):
            if woken.kind == "freeze" and woken.until - 0.1 <= run.begun <= woken.until + WAKING_S:
                return woken
        recent = [blow for blow in self.by_pid.get(0, []) if 0 <= run.begun - blow.at <= _REDIS_AFTERMATH_S]
        return recent[-1] if recent else None


def _measure(found: Account, runs: dict[int, list[Run]], causes: _Causes) -> None:
    for own in runs.values():
        for index, run in enumerate(own):
            blow = causes.after(run.pid, run.begun)
            if blow is None or blow.kind not in ("kill", "freeze") or (run.ended is not None and run.ended <= blow.at):
                continue
            found.interrupted += 1
            later = next((other for other in own[index + 1 :] if other.pid != run.pid), None)
            if later is not None:
                found.recoveries.append(later.begun - blow.at)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which ``share`` of the values lie; 0 when there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0
