"""Explain for ``jobs explain`` that a job ends without a run: it was cancelled, or its ``expires_in`` has passed."""

from framework.admin.explain_reader import Blocker
from framework.admin.search import JobLocation
from framework.admin.snapshot import ShardSnapshot
from framework.text import format_duration
from framework.wire.batch_fields import bid_of
from framework.wire.job import expiry_of

_WAITING = frozenset[str]({"scheduled", "retry", "queue", "waiting", "paused"})
"""The kinds of places whose jobs run by themselves."""
_REMEDY = "the process that fetches it, which ends it without running"
_RUBY_REMEDY = (
    "the process that runs it: an iterable job ends before its next item; any other runs, and may read `self.cancelled`"
)


def early_end_blockers(location: JobLocation, snapshot: ShardSnapshot) -> list[Blocker]:
    """Return why the job at this place will not run, or is to end. Raises redis errors."""
    kind, payload = location.store.kind, location.payload
    if kind not in (*_WAITING, "in flight", "running"):
        return []
    blockers: list[Blocker] = []
    since, what = snapshot.cancelled_since(str(payload.get("jid"))), "it"
    sees = "the job itself, when it reads self.cancelled; the task of an async job is cancelled within five seconds"
    if since is None and (bid := bid_of(payload)):
        since, what, sees = snapshot.cancelled_since(bid), "its batch", "the job itself, when it reads self.cancelled"
    if kind == "running":
        sees = "the job itself, if it includes Sidekiq::IterableJob or reads `cancelled?`; any other job of Ruby runs to its end"
    if since is not None:
        why = f"{what} was cancelled {format_duration(max(0.0, snapshot.now - since))} ago"
        blockers.append(Blocker("cancelled", why, _REMEDY if kind in _WAITING else sees))
    elif (marked := snapshot.marked_by_ruby_since(str(payload.get("jid")))) is not None:
        why = f"Sidekiq's cancel! has marked it {format_duration(max(0.0, snapshot.now - marked))} ago"
        blockers.append(Blocker("cancelled_by_ruby", why, _RUBY_REMEDY))
    expiry = expiry_of(payload, location.score if kind == "scheduled" else None)
    if kind in _WAITING and expiry is not None and expiry <= snapshot.now:
        why = f"it expired {format_duration(snapshot.now - expiry)} ago: it was to begin earlier (expires_in)"
        blockers.append(Blocker("expired", why, _REMEDY))
    return blockers
