"""Count the ends of runs of the classes with a breaker, in each process."""

import threading
import time
from collections.abc import Collection

from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.errors import BusinessError, JobStoppedError
from framework.features.breaker.ended_runs import EndedRuns, ProbeEnd
from framework.fetch.unit_of_work import UnitOfWork
from framework.finish.outcome import Cancelled, Failed, Held, Interrupted, Lost
from framework.settings.base import SettingsBase
from framework.telemetry.job_events import JobObserver, RunOfJob
from framework.typeguards import has_type
from framework.types import Jid

_STARTS_WITHIN_S = 1.0


class BrokenRuns:
    """The ended runs of the classes with a breaker in this process, and the probes that run. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended: dict[str, EndedRuns] = {}
        self._probes = set[Jid]()
        self._begun: dict[str, list[tuple[UnitOfWork, float]]] = {}

    def begin(self, worker: str, unit: UnitOfWork) -> None:
        """Note that a job of the class starts."""
        with self._lock:
            self._begun.setdefault(worker, []).append((unit, time.monotonic()))

    def running(self, units: Collection[UnitOfWork]) -> set[str]:
        """Return the classes of the started jobs that run; ``units`` are the running ones of the process."""
        now, found = time.monotonic(), set(map(id, units))
        with self._lock:
            for worker, begun in list(self._begun.items()):
                # A job may be asked for a little before it starts.
                begun[:] = [one for one in begun if id(one[0]) in found or now - one[1] < _STARTS_WITHIN_S]
                if not begun:
                    del self._begun[worker]
            return set(self._begun)

    def add(self, worker: str, jid: Jid, end: ProbeEnd) -> None:
        """Count a run, unless it is undecided, and note the end if it was the probe."""
        with self._lock:
            if end == "undecided" and jid not in self._probes:
                return
            ended = self._ended.setdefault(worker, EndedRuns())
            ended.runs += end != "undecided"
            ended.failures += end == "failed"
            if jid in self._probes:
                self._probes.discard(jid)
                ended.probe, ended.probe_end = jid, end

    def take(self, worker: str) -> EndedRuns:
        """Return the runs since the last call, without the end of a probe, which ``take_all`` has."""
        with self._lock:
            ended = self._ended.get(worker)
            if ended is None:
                return EndedRuns()
            taken = EndedRuns(ended.runs, ended.failures)
            ended.runs = ended.failures = 0
            return taken

    def take_all(self, worker: str) -> EndedRuns:
        with self._lock:
            return self._ended.pop(worker, EndedRuns())

    def put_back_probe(self, worker: str, taken: EndedRuns) -> None:
        """Tell the end of a probe again, whose call has failed. The runs of the call may be counted, so they are not sent again."""
        if taken.probe:
            with self._lock:
                ended = self._ended.setdefault(worker, EndedRuns())
                ended.probe, ended.probe_end = taken.probe, taken.probe_end

    def note_probe(self, jid: Jid) -> None:
        with self._lock:
            self._probes.add(jid)


broken_runs = BrokenRuns()
"""Those of this process: the observer of its runs writes them, its policies read them."""


class BreakerObserver(JobObserver):
    """Count the ends of runs of classes with a breaker."""

    def ended(self, run: RunOfJob) -> None:
        declaration = run.declaration
        if declaration is None or declaration.facts["break_after"] is None:
            return
        outcome, error = run.outcome, run.error
        # The job comes back as the probe, or another process has it. One that waits for a slot takes one slot, as the probe.
        if isinstance(outcome, Interrupted | Held | Lost):
            return
        end: ProbeEnd = "succeeded"
        if (
            not run.admitted
            or isinstance(outcome, Cancelled)
            or (error is not None and has_type(error, JobStoppedError))
        ):
            end = "undecided"
        elif isinstance(outcome, Failed) and not has_type(outcome.error, BusinessError):
            end = "failed"
        broken_runs.add(declaration.wire_name, str((run.payload or {}).get("jid")), end)


def observer(settings: SettingsBase) -> JobObserver | None:
    """Return the observer if a class of this process has a breaker."""
    del settings
    return BreakerObserver() if broken_classes() else None


def broken_classes() -> list[Declaration]:
    found = (worker.declaration() for worker in registry.workers())
    return [one for one in found if one.facts["break_after"] is not None]
