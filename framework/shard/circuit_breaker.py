"""Fail pushes to a silent shard at once, and let one call per period probe whether it answers again.

A stopped server refuses connections, which costs a caller no time. A frozen server, or a network that drops packets, costs
each caller a whole timeout; an application with one thread per request would soon have no free thread.
"""

from time import monotonic

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.sentinel import MasterNotFoundError

from framework.telemetry import logs

SLOW_FAILURE_S = 0.25
"""A faster failure costs its caller no time and does not open the circuit."""

PROBE_PERIOD_S = 2.0
"""While the circuit is open, one call per period is sent. The circuit closes at most this long after the shard answers again."""

_NO_REPLY_ERRORS = (RedisConnectionError, RedisTimeoutError, MasterNotFoundError)
"""Compared by exact type: redis-py derives refusals (LOADING, wrong password, too many clients) from the first class, and a
refusal is a reply."""


# A push to a silent shard fails at once, except for one in two seconds: else each thread of a web server waits 5 s for it.
class CircuitBreaker:
    """Hold the state of one shard's circuit. Used by any number of threads without a lock: a race only sends one call more.

    The circuit opens when a call failed slowly and without a reply while no other call got one. Any reply closes it, also a
    refusal or a slow one.
    """

    def __init__(self, shard: str) -> None:
        self.open = False
        self._shard = shard
        self._opened_at = 0.0
        self._probe_at = 0.0

    def rejects(self, now: float) -> bool:
        """Return whether a call must fail at once; asked only while the circuit is open. One call per period is the probe."""
        if now < self._probe_at:
            return True
        self._probe_at = now + PROBE_PERIOD_S
        return False

    @property
    def open_s(self) -> float:
        """Return the seconds since the circuit opened."""
        return monotonic() - self._opened_at

    def record_failure(self, error: BaseException | None, began: float, last_reply_at: float) -> None:
        """Record a failed call that began at ``began``; the shard's last reply was at ``last_reply_at`` (monotonic seconds)."""
        if type(error) not in _NO_REPLY_ERRORS:
            self.record_reply()
            return
        now = monotonic()
        if now - began < SLOW_FAILURE_S or last_reply_at >= began:
            return
        self._probe_at = now + PROBE_PERIOD_S
        if not self.open:
            self._opened_at, self.open = now, True
            logs.logger(shard=self._shard).error(
                f"the shard does not answer: one push per {PROBE_PERIOD_S:g} s tests it, and all others fail at once. "
                "Check its Redis and the network.",
                event_name="shard.circuit_open",
                error=error if isinstance(error, RedisError) else None,
            )

    def record_reply(self) -> None:
        """Record a reply: close the circuit."""
        if self.open:
            self.open = False
            logs.logger(shard=self._shard).info(
                "the shard answers again; pushes are accepted",
                event_name="shard.circuit_closed",
                open_s=round(self.open_s, 3),
            )
