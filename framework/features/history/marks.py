"""Write and read the marks of deploys, in the keys that Sidekiq's Metrics page reads: functions of a shard's client."""

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta

import redis

from framework.features.history.keys import MARK_TTL_S, deploy_marks
from framework.store.hashes import read_hashes
from framework.store.script import write_when_full
from framework.text import decode_escaped

MOST_DAYS = 90
_MOST_LABEL = 200


def mark_deploy(client: "redis.Redis", label: str, now: float) -> bool:
    """Mark the deploy in the minute of ``now``; return false if it is the last mark of the shard already. Raises redis errors.

    Every process of a release may mark it: the first one writes. A minute has one mark, as in Sidekiq: the last label stays.
    A crash before the expiry is set leaves a mark without an end, until the next mark of its day.
    """
    at = datetime.fromtimestamp(now, UTC).replace(second=0, microsecond=0)
    last = max(read_marks(client, at.date(), MOST_DAYS).items(), default=None)
    if last is not None and last[1] == label:
        return False
    key = deploy_marks(at.date())
    # A deploy is also marked on a full server: the release that empties it, above all.
    write_when_full(client, ("HSET", key, f"{at:%Y-%m-%dT%H:%M:%SZ}", label))
    client.expire(key, MARK_TTL_S)
    return True


def read_marks(client: "redis.Redis", last: date, days: int) -> Mapping[float, str]:
    """Return the labels of the marks of ``days`` days by their times, in epoch seconds, also those of Ruby. Raises redis errors."""
    found: dict[float, str] = {}
    for marks in read_hashes(client, [deploy_marks(last - timedelta(days=back)) for back in range(days)]):
        for stamp, label in marks.items():
            at = _epoch(decode_escaped(stamp))
            if at is not None:
                found[at] = decode_escaped(label)[:_MOST_LABEL]
    return found


def _epoch(stamp: str) -> float | None:
    try:
        at = datetime.fromisoformat(stamp)
    except ValueError:
        return None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
