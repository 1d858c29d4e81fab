"""Account for every job: from the effects of all processes to lost jobs, second runs with their cause, and recovery
times.
"""

import bisect
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from types import MappingProxyType

from tests.chaos.rounds.effects import BEGUN, ENDED, Effect
from tests.chaos.rounds.faults import Injection
from tests.chaos.rounds.history import Fetchers, FetchingProcess
from tests.chaos.rounds.producer import AcceptedPushes

ACKNOWLEDGED_LATE = 32
"""The jobs of one process that may have ended, or are prefetched, besides the running ones (docs/internals/redis.md:
batches).
"""

WAKING_S = 3.0
"""The time within which a thawed process may still start its jobs in flight."""

DYING_S = 0.5
"""The time within which a killed process may still start a job, before the signal reaches its last thread."""

DEATHS = ("kill", "freeze")
"""The injections after which other processes recover the jobs of the process: a frozen one counts as dead, too."""

_UNACKNOWLEDGED_S = 2.0
"""How long before an injection an ended job may still be unacknowledged, on a loaded machine; longer while Redis is
away.
"""

_ANSWER_S = 0.5
"""How long after a server's end its last answer may be recorded."""

_DECLARED_S = 0.5
"""The time within which a supervisor declares the death of its process."""

_REDIS_AFTERMATH_S = 25.0
"""How long after an injection to Redis a second run is assigned to it: a lease and two sweeps."""

_SECOND_S = 1.0
"""The times in a server's file are whole seconds: an event comes up to so much later."""

UNEXPLAINED, DOUBT = "unexplained", "doubtful push"
_NO_FETCHERS: Fetchers = MappingProxyType({})


@dataclass
class Run:
    """One run of one job."""

    serial: int
    pid: int
    begun: float
    ended: float | None = None


@dataclass
class Kind:
    """The effects of all injections of one kind."""

    injections: int = 0
    interrupted: int = 0
    """Runs that were cut off, or stood still."""
    extra: int = 0
    forgotten: int = 0
    """Jobs that were accepted, forgotten with their server, and never ran."""
    recoveries: list[float] = field(default_factory=list[float])
    """Seconds from the injection to the next start of each job that it cut off; an outage of Redis does not count.

    Where the next process that fetched the job had an injection before the start, each injection has its own time: that
    of the last one ends with the start, that of an earlier one when the job left the working list of its process.
    """
    undeclared: list[float] = field(default_factory=list[float])
    """The same times where a server may have forgotten the declaration of the death: then the lease has to expire."""
    resumed: list[float] = field(default_factory=list[float])
    """Seconds from the end of each fault to the next start of any job."""


@dataclass
class Account:
    """The result of every job of one shard."""

    lost: list[int] = field(default_factory=list[int])
    forgotten: list[int] = field(default_factory=list[int])
    """The jobs that the server forgot after it had answered their push, by its files."""
    forgotten_early: list[int] = field(default_factory=list[int])
    """Those of them that were answered before the time that may be forgotten."""
    runs: int = 0
    kinds: dict[str, Kind] = field(default_factory=dict[str, Kind])
    spans: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """From the injection at a process to the next start of each job that it cut off; from the last one if several
    processes had fetched the job.
    """
    extra: Counter[str] = field(default_factory=Counter[str])
    """Second and further runs, by the kind of injection that explains them; ``unexplained`` has none."""
    extra_kept: Counter[str] = field(default_factory=Counter[str])
    """Those of them by an injection at Redis in which nothing was forgotten."""
    ends_forgotten: int = 0
    """The extra runs of jobs whose end a server forgot, by its files."""
    worst: int = 0
    """The most extra runs of one injection at a process."""
    unexplained: list[int] = field(default_factory=list[int])

    @property
    def repeated(self) -> int:
        """Return the extra runs, without those of jobs that the producer pushed again."""
        return self.extra.total() - self.extra[DOUBT]

    @property
    def interrupted(self) -> int:
        """Return the runs that injections cut off."""
        return sum(kind.interrupted for kind in self.kinds.values())

    @property
    def recoveries(self) -> list[float]:
        """Return the recovery times of all kinds."""
        return [seconds for kind in self.kinds.values() for seconds in (*kind.recoveries, *kind.undeclared)]

    @property
    def resumed(self) -> list[float]:
        """Return the resumption times of all kinds."""
        return [seconds for kind in self.kinds.values() for seconds in kind.resumed]


def runs_of(effects: Iterable[Effect]) -> dict[int, list[Run]]:
    """Return the runs of each serial, oldest first."""
    runs: dict[int, list[Run]] = defaultdict(list)
    for effect in sorted(effects, key=lambda effect: effect.at):
        if effect.kind == BEGUN:
            runs[effect.serial].append(Run(effect.serial, effect.pid, effect.at))
            continue
        if effect.kind != ENDED:
            continue
        own = [run for run in runs[effect.serial] if run.pid == effect.pid and run.ended is None]
        own[0].ended = effect.at
    return runs


def gone(pushed_at: Sequence[float], injections: Iterable[Injection]) -> dict[int, Injection]:
    """Return the serials that a server forgot after it had answered, each with the injection, without those pushed
    again later.

    ``pushed_at`` has the start of each accepted push: on a loaded machine its answer is recorded seconds later.
    """
    return {
        serial: injection
        for injection in injections
        for serial in injection.forgotten
        if serial < len(pushed_at) and injection.forgets and pushed_at[serial] <= injection.forgets[1]
    }


def account(
    accepted: AcceptedPushes,
    effects: Iterable[Effect],
    injections: Sequence[Injection],
    doubts: Mapping[int, int],
    fetchers: Fetchers = _NO_FETCHERS,
) -> Account:
    """Account for one shard: ``doubts`` has how many pushes of each serial were in doubt, ``fetchers`` the processes that
    fetched it, by the server's file.
    """
    runs = runs_of(effects)
    found = Account(runs=sum(map(len, runs.values())))
    for injection in injections:
        found.kinds.setdefault(injection.kind, Kind()).injections += 1
    never = [
        serial for serial in range(len(accepted.begun_at)) if all(run.ended is None for run in runs.get(serial, ()))
    ]
    _record_lost(found, never, accepted, injections)
    causes = _Causes(injections)
    _record_extra(found, runs, causes, doubts)
    _record_recoveries(found, runs, causes, fetchers)
    _record_resumed(found, runs, causes)
    return found


def _record_lost(
    found: Account, never: Collection[int], accepted: AcceptedPushes, injections: Sequence[Injection]
) -> None:
    forgotten = gone(accepted.begun_at, injections)
    for serial in never:
        injection = forgotten.get(serial)
        if injection is None:
            found.lost.append(serial)
            continue
        found.forgotten.append(serial)
        found.kinds[injection.kind].forgotten += 1
        if injection.forgets and accepted.answered_at[serial] < injection.forgets[0]:
            found.forgotten_early.append(serial)


class _Causes:
    def __init__(self, injections: Sequence[Injection]) -> None:
        self.by_pid: dict[int, list[Injection]] = defaultdict(list)
        for injection in sorted(injections, key=lambda injection: injection.at):
            self.by_pid[injection.pid].append(injection)
        self.redis = self.by_pid.pop(0, [])

    def after(self, pid: int, at: float) -> Injection | None:
        """Return the first injection at a process from ``at`` on, or from just before."""
        own = self.by_pid.get(pid, [])
        index = bisect.bisect_left([injection.at for injection in own], at - DYING_S)
        return own[index] if index < len(own) else None

    def explain(self, before: Run, run: Run) -> Injection | None:
        """Return the injection that surely made a job run again: one that forgot the end of the run before, at the
        process of that run, at a thawed one, or one that forgot.
        """
        # First: a process that was hit about then is no cause, because the server had the end of the job.
        if (forgetful := self.forgot_end(before, run)) is not None:
            return forgetful
        injection = self.after(before.pid, before.begun)
        if injection is not None and injection.at <= run.begun and self._maybe_unacknowledged(before, injection.at):
            return injection
        for woken in self.by_pid.get(run.pid, []):
            if woken.kind == "freeze" and woken.until - 0.1 <= run.begun <= woken.until + WAKING_S:
                return woken
        for injection in self.redis:
            if injection.forgets and injection.at <= run.begun and _overlaps(before, *injection.forgets):
                return injection
        return None

    def forgot_end(self, before: Run, run: Run) -> Injection | None:
        """Return the injection that made a server forget the end of the run before, by its files."""
        for injection in self.redis:
            if (
                injection.forgets
                and before.serial in injection.forgotten_ends
                and injection.at <= run.begun
                and before.ended is not None
                and before.ended <= injection.forgets[1] + _ANSWER_S
            ):
                return injection
        return None

    def forgot_declaration(self, death: Injection) -> bool:
        """Return whether a server that forgot may have had the supervisor's declaration of a death (``MARK_DEAD``)."""
        return any(
            one.forgets is not None and one.forgets[0] - _DECLARED_S <= death.at <= one.forgets[1] for one in self.redis
        )

    def deaths(
        self, first: Injection, until: float, fetchers: Iterable[FetchingProcess]
    ) -> list[tuple[Injection, float]]:
        """Return the injections at processes that had a job in their working list, from ``first`` on and before
        ``until``, oldest first, each with the time at which the job left the list; 0: unknown.
        """
        found = {id(first): (first, 0.0)}
        for fetcher in fetchers:
            for injection in self.by_pid.get(fetcher.pid, []):
                in_list = not fetcher.until or fetcher.until > injection.at - _SECOND_S
                known = found.get(id(injection), (injection, 0.0))[1]
                if injection.kind in DEATHS and first.at <= injection.at < until and in_list:
                    found[id(injection)] = (injection, known or fetcher.until)
        return sorted(found.values(), key=lambda death: death[0].at)

    def suspect(self, run: Run) -> Injection | None:
        """Return the last injection at Redis that may have caused it, though none of its kind should."""
        recent = [injection for injection in self.redis if 0 <= run.begun - injection.at <= _REDIS_AFTERMATH_S]
        return recent[-1] if recent else None

    def _maybe_unacknowledged(self, run: Run, at: float) -> bool:
        """Return whether a run may have been unacknowledged at ``at``."""
        if run.ended is None or run.ended >= at - _UNACKNOWLEDGED_S:
            return True
        return any(
            injection.at <= run.ended + _UNACKNOWLEDGED_S and at - _UNACKNOWLEDGED_S <= injection.until
            for injection in self.redis
        )

    def well_from(self, at: float, until: float) -> float:
        """Return from when on between the two times Redis was well: an outage delays the recovery of a dead process."""
        ends = [injection.until for injection in self.redis if injection.at < until and injection.until > at]
        return min(until, max(ends, default=at))


def _overlaps(run: Run, since: float, until: float) -> bool:
    """Return whether a server that forgot answers between the two times may not know the end of the run."""
    unacknowledged = run.ended is None or run.ended >= since - _UNACKNOWLEDGED_S
    return unacknowledged and run.begun <= until + _ANSWER_S


def _record_extra(found: Account, runs: Mapping[int, list[Run]], causes: _Causes, doubts: Mapping[int, int]) -> None:
    charged: Counter[int] = Counter()
    for serial, own in runs.items():
        excused = doubts.get(serial, 0)
        for before, run in pairwise(own):
            injection = causes.explain(before, run)
            if injection is None and excused:
                excused -= 1
                found.extra[DOUBT] += 1
                continue
            injection = injection or causes.suspect(run)
            found.extra[injection.kind if injection else UNEXPLAINED] += 1
            if injection is None:
                found.unexplained.append(serial)
                continue
            found.kinds[injection.kind].extra += 1
            found.ends_forgotten += injection is causes.forgot_end(before, run)
            if injection.pid:
                charged[id(injection)] += 1
            elif not injection.forgets:
                found.extra_kept[injection.kind] += 1
    found.worst = max(charged.values(), default=0)


def _record_recoveries(found: Account, runs: Mapping[int, list[Run]], causes: _Causes, fetchers: Fetchers) -> None:
    for serial, own in runs.items():
        for index, run in enumerate(own):
            injection = causes.after(run.pid, run.begun)
            if (
                injection is None
                or injection.kind not in DEATHS
                or (run.ended is not None and run.ended <= injection.at)
            ):
                continue
            later = next((other for other in own[index + 1 :] if other.pid != run.pid), None)
            if injection.kind == "kill" and run.ended is not None and later is None:
                # It ended, and was acknowledged, before the signal reached its process.
                continue
            found.kinds[injection.kind].interrupted += 1
            if later is not None:
                deaths = causes.deaths(injection, later.begun, fetchers.get(serial, ()))
                _record_recovery(found, deaths, later.begun, causes)


def _record_recovery(found: Account, deaths: list[tuple[Injection, float]], begun: float, causes: _Causes) -> None:
    """Record the recovery of one job after each death of a process that had it, and then its start."""
    *earlier, (last_death, _) = deaths
    for injection, left_at in earlier:
        # Without a time in the file only the last death is judged.
        if left_at:
            _record_time(found, injection, left_at, causes)
    found.spans.append((last_death.at, begun))
    _record_time(found, last_death, begun, causes)


def _record_time(found: Account, injection: Injection, until: float, causes: _Causes) -> None:
    kind = found.kinds[injection.kind]
    times = kind.undeclared if causes.forgot_declaration(injection) else kind.recoveries
    times.append(max(0.0, until - causes.well_from(injection.at, until)))


def _record_resumed(found: Account, runs: Mapping[int, list[Run]], causes: _Causes) -> None:
    begins = sorted(run.begun for own in runs.values() for run in own)
    for injection, following in zip_longest(causes.redis, causes.redis[1:]):
        index = bisect.bisect_left(begins, injection.until)
        begin = begins[index] if index < len(begins) else None
        # A start before the next fault belongs to this one; else to the next one.
        if begin is not None and (following is None or begin <= following.at):
            found.kinds[injection.kind].resumed.append(begin - injection.until)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which ``share`` of the values lie; 0 when there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0
