"""Run the demo once, from an empty folder to the summary."""

import os
import sys
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from demo.activity import Activity, activity_of
from demo.dashboard import DemoDashboard
from demo.folder import RunFolder
from demo.logs import last_words
from demo.processes import DemoProcesses
from demo.progress import Display, display
from demo.report_section import strip, style
from demo.stop import StopSignal
from demo.summary import print_summary, shown_path
from framework.errors import FrameworkError
from workers.atomic_write import write_atomically
from workers.code_index.build_report_worker import BuildReportWorker
from workers.code_index.database import database_url, process_engine
from workers.code_index.index import RunProgress, this_process_index
from workers.code_index.index_file_worker import IndexFileWorker
from workers.code_index.report.page import render
from workers.code_index.run_statistics import RunStatistics, read_run_statistics
from workers.code_index.scan_tree_worker import ScanTreeWorker

LOOK_EVERY_S = 0.2
LAST_WORDS = 5
DONE, FAILED, INTERRUPTED = 0, 1, 130
INTERRUPTION = "Interrupted. Workers and stores are stopped; run it again whenever you like."


def run(
    root: Path, roots: list[str], *, stop: StopSignal, dashboard: DemoDashboard, plain: bool, patience_s: float
) -> int:
    """Index the files below ``roots`` and return the exit status; no process of the demo is left afterwards."""
    here = Path.cwd()
    folder = RunFolder.under(Path(os.environ.get("FRAMEWORK_VAR_DIR") or root / "var"))
    processes = DemoProcesses(root, folder.path, [ScanTreeWorker, IndexFileWorker, BuildReportWorker])
    try:
        outcome = IndexRun(processes, folder.run_id, stop, dashboard, patience_s).watch(roots, plain=plain)
    except (FrameworkError, SQLAlchemyError) as error:
        outcome = outcome_of(error, stop)
    os.chdir(here)
    if outcome == DONE:
        _conclude(processes, folder.run_id)
    elif outcome == INTERRUPTED:
        print(INTERRUPTION)
    return outcome


def outcome_of(error: Exception, stop: StopSignal) -> int:
    """Print the failure. Ctrl-C reaches a starting server as well: its failure then is no failure."""
    if stop.asked:
        return INTERRUPTED
    print(f"scripts/demo: {error}", file=sys.stderr)
    return FAILED


def source_roots(root: Path, paths: Sequence[Path], *, packages: bool) -> list[str]:
    """Return the folders and files to index. Without ``paths``: the standard library and the broken samples."""
    chosen = paths or [Path(sysconfig.get_path("stdlib")), root / "workers" / "code_index" / "samples"]
    installed = [sysconfig.get_path("purelib")] if packages else []
    return [*(str(path.resolve()) for path in chosen), *installed]


class IndexRun:
    """One run: its processes, and what ends it."""

    def __init__(
        self, processes: DemoProcesses, run_id: str, stop: StopSignal, dashboard: DemoDashboard, patience_s: float
    ) -> None:
        self._processes, self._run_id, self._stop = processes, run_id, stop
        self._dashboard, self._patience_s = dashboard, patience_s

    def watch(self, roots: list[str], *, plain: bool) -> int:
        """Start the processes, index the files and show how far it is; return the exit status."""
        print("Input      ", "\n           ".join(roots), sep="", flush=True)
        with self._processes as processes:
            stores = ", ".join(f"{shard} (pid {store.pid})" for shard, store in processes.stores.items())
            print(f"Stores     {stores}\nWorkers    {', '.join(processes.workers)}", flush=True)
            if self._stop.asked:
                return INTERRUPTED
            with self._dashboard.beside(processes.folder):
                ScanTreeWorker.perform_async(self._run_id, roots)
                with display(plain=plain) as shown:
                    outcome = self._wait(shown)
                if outcome == DONE:
                    self._dashboard.stay()
        if outcome == FAILED:
            explain_standstill(processes, self._patience_s)
        return outcome

    def _wait(self, shown: Display) -> int:
        """Show the run until it is finished, the user stops it, or nothing changed for the patience."""
        index = this_process_index()
        last: RunProgress | None = None
        changed = time.monotonic()
        while not self._stop.wait(LOOK_EVERY_S):
            while self._processes.events:
                event = self._processes.events.popleft()
                if event.kind == "died":
                    shown.say(f"Worker {event.name} (pid {event.pid}) {ending(event.status)}; another one takes over.")
            state = index.state(self._run_id)
            shown.show(state)
            if state != last:
                last, changed = state, time.monotonic()
            if state is not None and state.finished:
                return DONE
            if time.monotonic() - changed > self._patience_s:
                return FAILED
        return INTERRUPTED


def _conclude(processes: DemoProcesses, run_id: str) -> None:
    figures = read_run_statistics(process_engine(), run_id)
    logs = [*processes.logs, processes.supervisor_log]
    activity = activity_of(logs)
    database = database_url()
    places = [
        ("Report", shown_path(show_jobs(figures, activity) or processes.folder)),
        ("JSON logs", ", ".join(shown_path(log) for log in logs)),
        ("Database", shown_path(Path(database.database or "")) if database.database else str(database)),
    ]
    print_summary(figures, activity, places=places)


def show_jobs(figures: RunStatistics, activity: Activity) -> Path | None:
    """Write the report of the run again, with the work of the worker processes; return its path.

    The job that wrote it first cannot know it all: its own end, and the ends of the processes, come after it.
    """
    state = this_process_index().state(figures.run_id)
    if state is None or state.report is None:
        return None
    report, whole = Path(state.report), state.done == state.files_total
    proof = _proof(figures.totals.files, activity) if activity.deaths and whole else ""
    write_atomically(report, render(figures, section=strip(activity, proof), style=style()))
    return report


def _proof(files: int, activity: Activity) -> str:
    """Return the sentence that every file has its result, with the number of jobs without an end line."""
    name = IndexFileWorker.declaration().wire_name
    missing = files - sum(one.jobs_done for one in activity.classes if one.name == name)
    silent = f"; {missing:,} of the jobs have no end line, which died with their process" if missing > 0 else ""
    return f"No job was lost: the index holds a result for each of the {files:,} files{silent}."


def explain_standstill(processes: DemoProcesses, patience_s: float) -> None:
    """Print that no job ends any more, and the last lines of each log."""
    print(
        f"\nscripts/demo: nothing has happened for {patience_s:g} s, so something is wrong. The logs:", file=sys.stderr
    )
    for log in processes.logs:
        lines = [f"  {line}" for line in last_words(log, LAST_WORDS)]
        print(f"\n{log.stem}: {shown_path(log)}", *lines, sep="\n", file=sys.stderr)


def ending(status: int | None) -> str:
    if status is not None and status < 0:
        return f"was killed by signal {-status}"
    return f"ended with status {status}"
