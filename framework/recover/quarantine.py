"""Name the counter of quarantined jobs: those that moved to the dead or the interrupted set although no run of them had failed.

The script that moves the job counts it (``JobResources.counter``). A process would lose what it has counted since its last heartbeat
when it dies, and a quarantined job is often the one that kills it.
"""

from framework.declare import registry
from framework.telemetry.counters import series_name

QUARANTINED_JOBS = "sidekiq_jobs_quarantined_total"


def quarantine_counter(worker: object, cause: str) -> str:
    """Return the series of a class and a cause; a class that this process does not know, as a foreign program may write, is ""."""
    name = str(worker)
    return series_name(QUARANTINED_JOBS, {"worker": "" if registry.find(name) is None else name, "cause": cause})
