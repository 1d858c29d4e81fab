"""Run every command of every scenario with every fault, one case after the other."""

import os
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from framework import middleware
from tests.proofs.crash_points.case_checks import CaseChecks
from tests.proofs.crash_points.environment import SHARDS, CaseEnvironment
from tests.proofs.crash_points.job_notes import count
from tests.proofs.crash_points.jobs import SECOND, declare_fair
from tests.proofs.crash_points.scenarios import DEAD, NAME, SCENARIOS, Scenario
from tests.proofs.crash_points.stepped_worker import SteppedWorker, move_clock_by_steps, settle
from tests.proofs.crash_points.wire import QUIET, Fault, Line, Way, install

_HUNG_S = 60
_GONE_S = 20.0
_MOST_RECOVERERS = 3


@dataclass(frozen=True)
class Case:
    """A process runs ``scenario`` with ``batch`` jobs and suffers ``fault``; then a second process recovers, with fault
    ``second``.
    """

    scenario: str
    batch: int
    fault: Fault | None = None
    second: Fault | None = None

    def __str__(self) -> str:
        faulted = f", {self.fault}" if self.fault else ""
        return f"{self.scenario}, batch {self.batch}{faulted}{f', recoverer {self.second}' if self.second else ''}"


@dataclass(frozen=True)
class Verdict:
    """The result of a case: ``problems``, the names of the ``commands`` of the process, and of its ``recoverer``."""

    case: Case
    problems: tuple[str, ...]
    commands: tuple[str, ...]
    recoverer: tuple[str, ...]
    extra: int
    """The number of runs beyond the first, of jobs that did not ask for another."""
    warnings: tuple[str, ...] = ()

    @property
    def counterexample(self) -> str:
        """Return the complete counterexample."""
        at = self.case.fault.at if self.case.fault else 0
        name = f" ({self.commands[at - 1]})" if 0 < at <= len(self.commands) else ""
        head = f"{self.case}{name}"
        again = f"scripts/prove points --only {self.case.scenario!r} --batch {self.case.batch}"
        again += f" --at {at}" if at else ""
        again += f" --rounds {self.case.second.at}" if self.case.second else ""
        lines = [*(f"  {problem}" for problem in self.problems), *(f"  log: {line}" for line in self.warnings[-8:])]
        return "\n".join([head, *lines, f"  again: {again}"])


class CaseRunner:
    """Runs cases in one environment. Its process has one thread: it forks."""

    def __init__(self, environment: CaseEnvironment) -> None:
        self._environment = environment
        self._known: dict[tuple[str, int], tuple[str, ...]] = {}

    def commands(self, scenario: str, batch: int) -> tuple[str, ...]:
        """Return the names of the commands of a scenario without a fault, which must hold too."""
        known = self._known.get((scenario, batch))
        if known is None:
            verdict = self.run_case(Case(scenario, batch))
            if verdict.problems:
                raise AssertionError(verdict.counterexample)
            known = self._known[scenario, batch] = verdict.commands
        return known

    def expect(self, scenario: str, commands: Iterable[str]) -> None:
        """Take these for the commands of the smallest batch: every case fails whose process sends others."""
        self._known[scenario, SCENARIOS[scenario].batches[0]] = tuple(commands)

    def cases(self, scenario: str, batch: int, ways: tuple[Way, ...], *, suite: bool = False) -> Iterator[Case]:
        """Return every case of a scenario; ``suite``: those that the suite runs."""
        commands = self.commands(scenario, batch)
        one = SCENARIOS[scenario]
        smallest = one.batches[0]
        chosen: Iterable[int] = range(1, len(commands) + 1)
        if suite:
            chosen = folded(commands, whole=one.whole and batch == smallest)
        if suite and batch != smallest:
            known = Counter(self.commands(scenario, smallest))
            more = Counter(commands)
            chosen = [at for at in chosen if more[commands[at - 1]] > known[commands[at - 1]]]
        for at in chosen:
            for way in ways:
                yield Case(scenario, batch, Fault(at, way))

    def run_case(self, case: Case) -> Verdict:
        """Run one case from its start to its verdict."""
        environment, scenario = self._environment, SCENARIOS[case.scenario]
        environment.clear(SHARDS if scenario.crosses or scenario.shares_limits else SHARDS[:1])
        scenario.prepare(environment, case.batch)
        checks = CaseChecks(environment, scenario.expected_end)
        run_case = partial(_run_steps, environment, scenario, case.batch)
        killed = self._run(checks, case.fault, run_case, greetings=scenario.greetings)
        sent = tuple(note.words for note in environment.notes.read() if note.kind == "sent")
        checks.check("after the process", deaths=killed)
        self._check_reached(checks, case, sent)
        recoverer = self._recover(checks, case, sent, killed=killed)
        checks.finish()
        notes = environment.notes.read()
        runs = count(notes, "begun")
        extra = sum(runs.values()) - len(runs) - sum(count(notes, "failed").values())
        problems = tuple(checks.problems)
        return Verdict(
            case, problems, sent, recoverer, max(0, extra), tuple(environment.warnings()) if problems else ()
        )

    def _recover(self, checks: CaseChecks, case: Case, sent: tuple[str, ...], *, killed: bool) -> tuple[str, ...]:
        """Recover with other processes until no job is left; return the commands of the first one."""
        environment, scenario = self._environment, SCENARIOS[case.scenario]
        dead = [NAME] if killed else []
        first: tuple[str, ...] = ()
        for number in range(_MOST_RECOVERERS):
            # Jobs that have ended wait for the operator, and keep no process running.
            repeats = scenario.repeated and killed and number == 0
            if not repeats and not environment.left() and not environment.registered():
                break
            name = f"recoverer-{number}"
            fault = case.second if number == 0 else None
            faulted = self._run(checks, fault, partial(_recover, environment, scenario, name, tuple(dead)))
            first = first or tuple(note.words for note in environment.notes.read() if note.kind == "sent")[len(sent) :]
            checks.check(f"after {name}", deaths=faulted)
            if faulted:
                dead += [name, f"{name}-{SECOND}"]
        return first

    def _run(
        self, checks: CaseChecks, fault: Fault | None, act: Callable[[Line], None], *, greetings: bool = False
    ) -> bool:
        """Let a forked process act; return whether it was killed as planned."""
        child = os.fork()
        if not child:
            _be_the_child(self._environment, fault, act, greetings=greetings)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        planned = fault is not None and fault.kills
        if status not in ((-signal.SIGKILL,) if planned else (0,)):
            checks.problems.append(f"the process ended with {status}")
        deadline = time.monotonic() + _GONE_S
        while self._environment.connected():
            if time.monotonic() > deadline:
                checks.problems.append("the server still knows connections of a process that is gone")
                break
        return status < 0

    def _check_reached(self, checks: CaseChecks, case: Case, sent: tuple[str, ...]) -> None:
        """Check that the fault came where it was planned: until then the commands are always the same."""
        if case.fault is None:
            return
        known = self.commands(case.scenario, case.batch)
        if sent[: case.fault.at] != known[: case.fault.at]:
            checks.problems.append(f"it sent {sent[: case.fault.at]}, not {known[: case.fault.at]}")


def _be_the_child(
    environment: CaseEnvironment, fault: Fault | None, act: Callable[[Line], None], *, greetings: bool
) -> None:
    status = 1
    try:
        signal.alarm(_HUNG_S)
        environment.enter()
        move_clock_by_steps()
        line = Line(
            fault,
            lambda number, name: environment.notes.note("sent", number, name),
            lambda: any(map(environment.blocked_calls, environment.clients)),
            greetings=greetings,
        )
        install(line)
        act(line)
        environment.leave()
        status = 0
    except BaseException:  # noqa: BLE001 - whatever it is, the parent must know
        with suppress(OSError):
            environment.notes.note("wrong", 0, traceback.format_exc(limit=-2))
    finally:
        os._exit(status)


def _run_steps(environment: CaseEnvironment, scenario: Scenario, batch: int, line: Line) -> None:
    """Act; after surviving the fault, finish the remaining work and leave."""
    _set_up(environment, scenario)
    worker = SteppedWorker(environment, NAME)
    scenario.act(environment, worker, batch)
    line.end()
    if worker.left:
        return
    workers = [worker, *_beyond(environment, scenario, NAME)]
    for one in workers:
        one.heartbeat()
    settle(environment, workers)
    for one in workers:
        one.leave()


def _recover(environment: CaseEnvironment, scenario: Scenario, name: str, dead: tuple[str, ...], _line: Line) -> None:
    """Act as a supervisor and its new process: killed processes are marked dead, the leases of the others expire."""
    _set_up(environment, scenario)
    workers = [SteppedWorker(environment, name), *_beyond(environment, scenario, name)]
    gone = [identity for identity in environment.registered() if identity.rpartition(":")[2] not in (name, *dead, DEAD)]
    for worker in workers:
        worker.heartbeat()
        for one in dead:
            worker.mark_dead(f"points:1:{one}")
    if scenario.repeated:
        scenario.act(environment, workers[0], 0)
    environment.age(gone)
    settle(environment, workers)
    environment.age([*gone, *(f"points:1:{one}" for one in dead), DEAD])
    for worker in workers:
        worker.sweep()
        worker.leave()


def _set_up(environment: CaseEnvironment, scenario: Scenario) -> None:
    if scenario.shares_limits:
        environment.share_limits()
    if scenario.fair:
        declare_fair()
    if scenario.refuses:
        middleware.client.allow_changes()
        middleware.client.add(_Refusal)


class _Refusal:
    """A client middleware that rejects every job."""

    def call(self, *_facts: Any) -> Iterator[None]:
        yield from ()


def _beyond(environment: CaseEnvironment, scenario: Scenario, name: str) -> list[SteppedWorker]:
    return [SteppedWorker(environment, f"{name}-{SECOND}", shard=SECOND)] if scenario.crosses else []


def folded(commands: tuple[str, ...], *, whole: bool) -> list[int]:
    """Return the first and last of each command, and without ``whole`` none of the commands that move no job."""
    faulted = [(at, name) for at, name in enumerate(commands, 1) if whole or name not in QUIET]
    first = {name: at for at, name in reversed(faulted)}
    last = {name: at for at, name in faulted}
    return sorted({*first.values(), *last.values()})
