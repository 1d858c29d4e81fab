"""Set a whole queue aside by one RENAME, for work on each of its jobs.

A Redis list is cheap at its ends only; removing a job from the middle walks through the list. So the queue becomes the working
list of an identity that belongs to the queue, and its jobs are worked on in pages from there. Like every working list it
has a lease: if the command dies, the reapers of the shard's processes put the rest back in order (``restore``). The same command,
run again or at the same time, uses the same list and continues.
"""

import time

import redis
from redis.exceptions import ResponseError

from framework.process.heartbeat import ProcessLease
from framework.recover.failure_detector import FailureDetector
from framework.timings import Timings
from framework.wire import keys


# The queue is renamed first, one step for any length: a removal in the middle of a list walks through it, and a rotation that is
# interrupted leaves the youngest jobs in front.
class QueueAside:
    """One queue of a shard, set aside; ``key`` is the list with its jobs, ``lease_key`` its lease."""

    def __init__(self, client: "redis.Redis", queue: str, timings: Timings) -> None:
        self.queue = queue
        self._client = client
        self._timings = timings
        identity = keys.migration_identity(queue)
        self.key = keys.working(identity)
        self.lease_key = keys.lease(identity)
        detector = FailureDetector(timings.lease_s, timings.heartbeat_period_s)
        self._lease = ProcessLease(client, identity, 0, detector, timings)
        self._renewed_at = 0.0

    def take(self) -> bool:
        """Set the queue aside; return false if jobs of it are set aside already, which come first. Raises redis errors."""
        # Registered before the rename: if this process dies in between, only an empty identity is left, which others
        # unregister.
        self.renew()
        try:
            return bool(self._client.renamenx(keys.queue(self.queue), self.key))
        except ResponseError as error:
            if "no such key" not in str(error):
                raise
            return not self._client.exists(self.key)

    def renew(self) -> None:
        """Renew the lease. Raises redis errors."""
        self._lease.renew()
        self._renewed_at = time.monotonic()

    def renew_when_due(self) -> None:
        """Renew the lease once in each period of the heartbeat. Raises redis errors."""
        if time.monotonic() - self._renewed_at > self._timings.heartbeat_period_s:
            self.renew()

    def release(self) -> None:
        """End the lease: no job is left. Raises redis errors."""
        self._lease.release()
