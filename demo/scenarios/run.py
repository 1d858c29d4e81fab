"""Run one scenario from an empty folder to its summary."""

import csv
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from demo.dashboard import DemoDashboard
from demo.folder import RunFolder
from demo.logs import count_ends, otherwise
from demo.processes import DemoProcesses
from demo.run import DONE, FAILED, INTERRUPTED, INTERRUPTION, LOOK_EVERY_S, ending, explain_standstill, outcome_of
from demo.scenarios.enrol import Enrol
from demo.scenarios.export import Export
from demo.scenarios.peak_memory import PeakMemory
from demo.scenarios.product_import import ProductImport
from demo.scenarios.scenario import Figure, Scenario
from demo.scenarios.view import TaskView, task_view
from demo.stop import StopSignal
from demo.summary import heading, shown_path
from framework.errors import FrameworkError
from framework.features.tasks.database import TaskDatabase
from framework.tasks import JobEvent, Task, TaskProgress

SCENARIOS: Mapping[str, type[Scenario]] = {"enrol": Enrol, "import": ProductImport, "export": Export}
WORKER_PROCESSES = 2
LISTED = 12
_PAGE = 1_000


def run_scenario(
    root: Path,
    name: str,
    *,
    size: int | None,
    kind: str | None,
    postgres: str | None,
    stop: StopSignal,
    dashboard: DemoDashboard,
    plain: bool,
    patience_s: float,
) -> int:
    """Run the scenario and return the exit status; no process of it is left afterwards."""
    here = Path.cwd()
    folder = RunFolder.under(Path(os.environ.get("FRAMEWORK_VAR_DIR") or root / "var"))
    chosen = SCENARIOS[name]
    scenario = chosen(folder.path, size or chosen.default_size, kind or chosen.formats[0])
    processes = DemoProcesses(root, folder.path, scenario.workers, only_main=WORKER_PROCESSES)
    heading(scenario.title)
    try:
        if postgres is not None:
            os.environ["FRAMEWORK_TASKS__URL"] = postgres
            _migrate(postgres)
        run = ScenarioRun(scenario, processes, stop, dashboard, patience_s)
        outcome = run.watch(plain=plain)
        os.chdir(here)
        if outcome == DONE:
            run.conclude()
    except (FrameworkError, SQLAlchemyError) as error:
        outcome = outcome_of(error, stop)
    if outcome == INTERRUPTED:
        print(INTERRUPTION)
    return outcome


def _migrate(url: str) -> None:
    database = TaskDatabase(url)
    try:
        database.migrate()
    finally:
        database.dispose()


class ScenarioRun:
    """One run: its task, and what was measured."""

    def __init__(
        self,
        scenario: Scenario,
        processes: DemoProcesses,
        stop: StopSignal,
        dashboard: DemoDashboard,
        patience_s: float,
    ) -> None:
        self._scenario = scenario
        self._processes = processes
        self._stop = stop
        self._dashboard = dashboard
        self._patience_s = patience_s
        self._memory = PeakMemory()
        self._task: Task | None = None

    def watch(self, *, plain: bool) -> int:
        """Start the processes, run the scenario and show its task; return the exit status."""
        with self._processes as processes, self._dashboard.beside(self._processes.folder):
            stores = ", ".join(f"{shard} (pid {store.pid})" for shard, store in processes.stores.items())
            print(f"Stores     {stores}\nWorkers    {', '.join(processes.workers)}", flush=True)
            began = time.monotonic()
            made = self._scenario.prepare(lambda: self._stop.asked)
            if self._stop.asked:
                return INTERRUPTED
            print(f"Input      {made}, made in {time.monotonic() - began:.1f} s", flush=True)
            self._wait_for_workers()
            self._task = task = self._scenario.begin()
            print(f"Task       {task.id}", flush=True)
            with task_view(plain=plain) as view:
                outcome = self._wait(task, view)
            if outcome == DONE:
                self._dashboard.stay()
            if outcome == FAILED:
                explain_standstill(processes, self._patience_s)
            return outcome

    def _wait_for_workers(self) -> None:
        """Wait until the processes are there, so that the time of the task is that of its jobs."""
        deadline = time.monotonic() + self._patience_s
        while not self._processes.are_ready and time.monotonic() < deadline and not self._stop.wait(LOOK_EVERY_S):
            pass

    def _wait(self, task: Task, view: TaskView) -> int:
        """Show the task until it is complete, the user stops it, or nothing has changed for the patience."""
        last: object = None
        changed = time.monotonic()
        while not self._stop.wait(LOOK_EVERY_S):
            while self._processes.events:
                event = self._processes.events.popleft()
                if event.kind == "died":
                    view.say(f"Worker {event.name} (pid {event.pid}) {ending(event.status)}; another one takes over.")
            self._memory.look(self._processes.pids)
            progress = task.progress()
            view.show(progress)
            if progress.is_complete and self._scenario.is_settled():
                return DONE
            if progress.counts != last:
                last, changed = progress.counts, time.monotonic()
            if time.monotonic() - changed > self._patience_s:
                return FAILED
        return INTERRUPTED

    def conclude(self) -> None:
        """Print the summary, and write all failures to a file."""
        assert self._task is not None  # noqa: S101 - a run that is done has its task
        progress = self._task.progress()
        table = self._scenario.folder / "failures.csv"
        shown = _write_failures(table, failures_of(self._task))
        heading(f"Done: {progress.total:,} jobs in {progress.elapsed_s:.1f} s, {progress.rate:,.1f} per second.")
        for figure in (
            *self._scenario.figures(),
            *_counts(progress),
            Figure("memory", str(self._memory), "the peak of a worker process"),
        ):
            print(f"  {figure.name:<10}{figure.value:>12}   {figure.note}".rstrip())
        heading("Runs by class")
        for name, ends in sorted(count_ends(self._processes.logs).items()):
            print(f"  {name:<44}{ends['done']:>8,} done   {otherwise(ends)}".rstrip())
        if shown:
            heading(f"Failures ({progress.failed:,})")
            print("\n".join(f"  {line}" for line in shown))
            if progress.failed > len(shown):
                print(f"  ... and {progress.failed - len(shown):,} more")
        print()
        database = os.environ.get("FRAMEWORK_TASKS__URL") or self._scenario.folder / "tasks.db"
        places = [*self._scenario.files(), *([("Failures", table)] if shown else [])]
        for name, path in places:
            print(f"{name:<10} {shown_path(path)}")
        print(
            f"{'Events':<10} {shown_path(database) if isinstance(database, Path) else 'the table aw_events in PostgreSQL'}"
        )
        print(f"{'JSON logs':<10} {', '.join(shown_path(log) for log in self._processes.logs)}")


def failures_of(task: Task) -> Iterator[JobEvent]:
    """Yield all failures of a task, page by page."""
    after = 0
    while page := task.failures(after=after, limit=_PAGE):
        yield from page
        after = page[-1].id


def _counts(progress: TaskProgress) -> Iterator[Figure]:
    notes = {
        "finish": "jobs did their work",
        "failed": "jobs ended with a reason of the business (BusinessError)",
        "error": "jobs ended with an error of the system",
    }
    for status, note in notes.items():
        yield Figure(status, f"{progress.counts[status]:,}", note)  # type: ignore[index]


def _write_failures(path: Path, failures: Iterator[JobEvent]) -> list[str]:
    """Write one row for each failure; return the reasons of the first."""
    shown: list[str] = []
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["jid", "class", "status", "state", "reason", "arguments", "messages"])
        for event in failures:
            texts = " | ".join(message.text for message in event.messages)
            writer.writerow(
                [event.jid, event.worker, event.status, event.state, event.reason, json.dumps(event.params), texts]
            )
            if len(shown) < LISTED:
                shown.append(event.reason or event.state)
    return shown
