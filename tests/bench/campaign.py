"""Run a campaign: every workload with every contestant, interleaved, pinned and unpinned."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.contestants import Contestant
from tests.bench.environments import prepared
from tests.bench.errors import ContestantSkipped, RunFailed, Stopped
from tests.bench.figures import Series, shown
from tests.bench.machine import Cores, available_cores, on_cores
from tests.bench.progress import say
from tests.bench.workload_run import Conditions, WorkloadRun
from tests.bench.workloads import Workload

PINNED, UNPINNED = "pinned", "unpinned"


@dataclass(frozen=True)
class Plan:
    """The caller's choice of runs."""

    workloads: Sequence[Workload]
    contestants: Sequence[Contestant]
    modes: Sequence[str]
    repetitions: int
    seconds: float
    quick: bool
    aof: bool
    delay_ms: float
    environments: Path
    runs: Path


@dataclass(frozen=True)
class Result:
    """One contestant at one workload in one mode: a series per figure."""

    workload: str
    contestant: str
    mode: str
    figures: dict[str, Series]


@dataclass
class Results:
    """The results of a campaign, and its failures."""

    results: list[Result] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    """The skipped and failed contestants, with the reason."""
    stopped: bool = False
    redis: str = ""

    def find(self, workload: str, contestant: str, mode: str) -> Result | None:
        found = (
            each for each in self.results if (each.workload, each.contestant, each.mode) == (workload, contestant, mode)
        )
        return next(found, None)

    def median(self, workload: str, contestant: str, mode: str, figure: str) -> float | None:
        """Return the median of a figure; None when there is none."""
        result = self.find(workload, contestant, mode)
        return result.figures[figure].median if result and figure in result.figures else None


class Campaign:
    """Runs a plan; the measured figures stay in ``results`` when it is stopped."""

    def __init__(self, plan: Plan, stopped: Callable[[], bool]) -> None:
        self.results = Results()
        self._plan = plan
        self._stopped = stopped
        self._environments: dict[str, Path | None] = {}

    def run(self) -> Results:
        try:
            able = [contestant for contestant in self._plan.contestants if self._bring(contestant)]
            for workload in self._plan.workloads:
                entries = [contestant for contestant in able if workload.admits(contestant)]
                for mode in self._modes(workload):
                    self._measure(workload, entries, mode)
        except Stopped:
            self.results.stopped = True
            say("stopped; what was measured until now is reported")
        return self.results

    def _bring(self, contestant: Contestant) -> bool:
        try:
            self._environments[contestant.name] = prepared(contestant, self._plan.environments)
        except ContestantSkipped as reason:
            self._trouble(f"{contestant.name} is skipped: {reason}")
            return False
        return True

    def _modes(self, workload: Workload) -> Iterator[str]:
        if not workload.pinnable:
            yield UNPINNED
            return
        for mode in self._plan.modes:
            if mode == PINNED and len(available_cores()) < 2:
                self._trouble(f"{workload.name} is not measured pinned: this machine has one core")
            else:
                yield mode

    def _measure(self, workload: Workload, entries: Sequence[Contestant], mode: str) -> None:
        """Prepare each contestant, then let all of them run once per repetition, so that slow changes of the machine
        affect all.
        """
        conditions = self._conditions(mode)
        repetitions = 1 if workload.once else self._plan.repetitions
        found: dict[str, list[dict[str, float]]] = {}
        # This process runs on the core of Redis, so that it takes no time from a pinned worker.
        with on_cores(conditions.cores.producer), ExitStack() as stack:
            sites = [site for entry in entries if (site := self._site(stack, workload, entry, mode, conditions))]
            for repetition in range(repetitions):
                for site in list(sites):
                    name = f"{workload.name} {mode} {repetition + 1}/{repetitions} {site.contestant.name}"
                    try:
                        figures = dict(workload.run(site))
                    except RunFailed as error:
                        self._trouble(f"{name} failed: {error}")
                        sites.remove(site)
                        continue
                    found.setdefault(site.contestant.name, []).append(figures)
                    say(f"{name}: {shown(figures[workload.figure])} {workload.unit}")
                    self._keep(workload.name, site.contestant.name, mode, found[site.contestant.name])

    def _keep(self, workload: str, contestant: str, mode: str, runs: list[dict[str, float]]) -> None:
        """Replace the earlier result by that of the runs so far."""
        names = [name for name in runs[0] if all(name in run for run in runs)]
        series = {name: Series(tuple(run[name] for run in runs)) for name in names}
        before = self.results.find(workload, contestant, mode)
        if before:
            self.results.results.remove(before)
        self.results.results.append(Result(workload, contestant, mode, series))

    def _site(
        self, stack: ExitStack, workload: Workload, entry: Contestant, mode: str, conditions: Conditions
    ) -> WorkloadRun | None:
        folder = self._plan.runs / f"{workload.name}-{mode}-{entry.name}"
        try:
            site = stack.enter_context(WorkloadRun(entry, folder, self._environments[entry.name], conditions))
            self.results.redis = site.store.version
            workload.prepare(site)
        except RunFailed as error:
            self._trouble(f"{workload.name} {mode} {entry.name} could not be prepared: {error}")
            return None
        return site

    def _conditions(self, mode: str) -> Conditions:
        plan = self._plan
        return Conditions(
            cores=Cores.of(available_cores(), pinned=mode == PINNED),
            stopped=self._stopped,
            aof=plan.aof,
            delay_ms=plan.delay_ms,
            quick=plan.quick,
            seconds=plan.seconds,
        )

    def _trouble(self, line: str) -> None:
        self.results.troubles.append(line)
        say(line)
