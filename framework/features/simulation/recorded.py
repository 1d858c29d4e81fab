"""Read the jobs of a time from the log lines of worker processes, to run them again in a simulation."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from framework.errors import ConfigurationError, ConfigurationProblem
from framework.terminal.log_files import LogFiles
from framework.types import Payload


class RecordedJob(NamedTuple):
    """One run: when its job came, in seconds since the first one, and what it took."""

    at: float
    name: str
    duration: float
    processor: float
    bytes: int
    waited: float
    """The seconds that the job really waited."""


def read_jobs(names: Sequence[str]) -> list[RecordedJob]:
    """Return the ended runs in the files, in the order in which their jobs came.

    Raises:
        click.UsageError: a file cannot be read.
        ConfigurationError: no line tells how long a job waited and ran.
    """
    with LogFiles(names) as files:
        # Only lines of an end have a duration, and each of them has the wait.
        found = [one for line in files.lines_with(b'"duration_s"') if (one := _job(line)) is not None]
    if not found:
        message = "has no line of an ended job with class, enqueued_at, duration_s and scheduling_latency_s"
        raise ConfigurationError([ConfigurationProblem(name, "", message) for name in names])
    first = min(one.at for one in found)
    return sorted(one._replace(at=one.at - first) for one in found)


def _job(line: Payload) -> RecordedJob | None:
    name, enqueued = line.get("class"), line.get("enqueued_at")
    duration, waited = line.get("duration_s"), line.get("scheduling_latency_s")
    if not isinstance(name, str) or not isinstance(duration, int | float) or not isinstance(waited, int | float):
        return None
    try:
        at = datetime.fromisoformat(str(enqueued)).timestamp()
    except ValueError:
        return None
    processor, size = line.get("cpu_s"), line.get("job_size_bytes")
    return RecordedJob(
        at,
        name,
        float(duration),
        min(float(processor), float(duration)) if isinstance(processor, int | float) else 0.0,
        size if isinstance(size, int) else 0,
        float(waited),
    )
