"""The life of a job: what has happened to it, each with its time and its source, and its runs that have failed or go on."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from framework.admin.explain import Explanation
from framework.admin.job_record import JobRecord
from framework.pages.view import Facts
from framework.text import Sentence

_SAME_S = 1.0
"""Two sources may write one event with times that differ by less."""

PAYLOAD, PLACE, PROCESS = Sentence("the payload"), Sentence("its place in Redis"), Sentence("its process")
"""The sources that each job has."""

_REACHED = {
    "dead": Sentence("died"),
    "interrupted": Sentence("set aside, interrupted too often"),
    "waiting": Sentence("held at a limit"),
    "paused": Sentence("held by a pause"),
}
"""What has happened to a job when it came to a place whose entry has that time."""
_COMES = {"scheduled": Sentence("is due"), "retry": Sentence("runs again")}


class JobMoment(NamedTuple):
    """One thing that has happened to a job, or is due."""

    at: float
    """Epoch seconds."""
    what: str
    """Such as ``enqueued``: a sentence of the framework, or what the job itself has recorded."""
    source: str


class FailedRun(NamedTuple):
    """A run that has failed, as a feature has recorded it."""

    at: float
    error_class: str
    error_message: str


@dataclass(frozen=True, slots=True)
class RecordedStory:
    """What a feature has recorded of a job."""

    moments: Sequence[JobMoment] = ()
    failures: Sequence[FailedRun] = ()
    problem: str = ""
    """Why it could not be read; empty if it could."""


class ShownPlace(NamedTuple):
    """A job at one place, with the process that has it there."""

    explanation: Explanation
    process: str = ""
    running_since: float | None = None


def moments_of(job: JobRecord, place: ShownPlace) -> list[JobMoment]:
    """Return what the payload and the place of a job tell."""
    found = place.explanation
    kind, score = found.location.store.kind, found.location.score
    last_error = f"{job.error_class}: {job.error_message}" if job.error_class else ""
    failed = Sentence("failed: {error}", error=last_error) if last_error else Sentence("failed")
    times: list[tuple[float | None, str, str]] = [
        (job.created_at, Sentence("pushed"), PAYLOAD),
        (job.enqueued_at, Sentence("entered the queue {queue}", queue=job.queue), PAYLOAD),
        (job.failed_at, failed if job.retried_at is None else Sentence("failed for the first time"), PAYLOAD),
        (job.retried_at, failed, PAYLOAD),
        (place.running_since, Sentence("started in {process}", process=place.process), PROCESS),
        (score if kind in _REACHED else None, _REACHED.get(kind, ""), PLACE),
        (found.due, _COMES.get(kind, ""), PLACE),
    ]
    return [JobMoment(at, what, source) for at, what, source in times if at is not None]


def timeline(moments: Iterable[JobMoment]) -> list[Facts]:
    """Return the moments as JSON, the oldest first: one that several sources tell, once."""
    found: list[Facts] = []
    for one in sorted(moments, key=lambda each: each.at):
        same = next((each for each in found if each["what"] == one.what and one.at - each["at"] < _SAME_S), None)
        if same is None:
            found.append({"at": one.at, "what": one.what, "sources": [one.source]})
        elif one.source not in same["sources"]:
            same["sources"].append(one.source)
    return found


def attempts_of(job: JobRecord | None, place: ShownPlace | None, recorded: Sequence[FailedRun]) -> list[Facts]:
    """Return the runs of a job as JSON, the first one first: those that have failed, and the one that goes on.

    The payload has the number of the failures, the times of the first and the last one, and the last error. What no source has is
    ``None``.
    """
    failures = sorted(recorded)
    count = 0 if job is None or job.retry_count is None else job.retry_count + 1
    runs: list[FailedRun | None] = [*failures] if len(failures) >= count else [None] * count
    if job is not None and count > len(failures):
        _fill(runs, job, failures)
    found = [_attempt(number, run) for number, run in enumerate(runs, 1)]
    if place is not None and place.running_since is not None:
        found.append({**_attempt(len(found) + 1, None), "started_at": place.running_since, "process": place.process})
    return found


def _fill(runs: list[FailedRun | None], job: JobRecord, recorded: Sequence[FailedRun]) -> None:
    """Put the failures that are known at their places: the first, the last, and before it those that were recorded."""
    last_at = job.failed_at if job.retried_at is None else job.retried_at
    is_known = bool(recorded) and last_at is not None and abs(recorded[-1].at - last_at) < _SAME_S
    others = (
        [*recorded]
        if is_known or last_at is None
        else [*recorded, FailedRun(last_at, job.error_class, job.error_message)]
    )
    if others:
        runs[-len(others[-len(runs) :]) :] = others[-len(runs) :]
    if runs[0] is None and job.failed_at is not None:
        runs[0] = FailedRun(job.failed_at, "", "")


def _attempt(number: int, run: FailedRun | None) -> Facts:
    return {
        "number": number,
        "started_at": None,
        "failed_at": None if run is None else run.at,
        "error_class": None if run is None else run.error_class or None,
        "error_message": "" if run is None else run.error_message,
        "process": "",
    }
