"""Say of a waiting job that it ends without running when its turn comes."""

from framework.admin.search import JobLocation
from framework.execute.blocker import Blocker
from framework.text import format_duration
from framework.wire import keys
from framework.wire.job import expiry_of

_REMEDY = "the process that fetches it, which ends it without running"


def early_end_blockers(location: JobLocation, now: float) -> list[Blocker]:
    """Return why the job at this place will not run, although it waits; ``now`` is the time of the shard's clock."""
    due = location.score if location.store.key == keys.SCHEDULE.encode() else None
    expiry = expiry_of(location.payload, due)
    if expiry is None or expiry > now:
        return []
    why = f"it expired {format_duration(now - expiry)} ago: it was to begin earlier (expires_in)"
    return [Blocker("expired", why, _REMEDY)]
