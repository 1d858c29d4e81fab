"""Name the keys of batches."""

BATCHES = "aw:batches"
"""ZSET of the ids of batches; score: about when they expire, in seconds of Redis's clock."""

BATCH_EVENTS = "aw:batch_events"
"""LIST of the events of batches that no process has logged yet, as JSON; the last 1,000."""


def batch(bid: str) -> str:
    """HASH with a TTL: the counts, events and callbacks of a batch, and prefix of its sets ``:failed``, ``:dead``, ``:children``,
    and of the HASH ``:results``."""
    return f"aw:batch:{bid}"
