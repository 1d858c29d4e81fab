"""A shard that swallows what is sent to it: who pushes is told at once, and few have to find out whether it is back.

A dead server refuses connections, which costs a caller nothing. One that is frozen, or behind a network that drops packets, costs
each caller seconds until a deadline has passed; with a thread for each request, an application stands still in no time.
"""

from time import monotonic

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.sentinel import MasterNotFoundError

from framework.telemetry import logs

SLOW_FAILURE_S = 0.25
"""A failure that comes sooner costs its caller nothing, so nobody else needs to be spared it."""

PROBE_PERIOD_S = 2.0
"""While the circuit is open, one call in this time is let through; it closes so much later than the shard is back, at most."""

_NO_REPLY_ERRORS = (RedisConnectionError, RedisTimeoutError, MasterNotFoundError)
"""Exactly these: redis-py derives refusals (LOADING, wrong passwords, too many clients) from the first, and they are answers."""


# Decision 71: a push to a silent shard fails at once, except for one in two seconds.
class CircuitBreaker:
    """Of one shard, for any number of threads, without a lock: a race lets one call more through, and nothing else.

    It opens when a call has failed slowly and in silence while no other was answered. Any answer closes it, be it a refusal,
    and however slow.
    """

    def __init__(self, shard: str) -> None:
        self.open = False
        self._shard = shard
        self._opened_at = 0.0
        self._probe_at = 0.0

    def rejects(self, now: float) -> bool:
        """Whether a call is to fail at once, asked while the circuit is open; the one that is told no finds out for all."""
        if now < self._probe_at:
            return True
        self._probe_at = now + PROBE_PERIOD_S
        return False

    @property
    def open_s(self) -> float:
        """Return for how long it has been open."""
        return monotonic() - self._opened_at

    def record_failure(self, error: BaseException | None, began: float, last_reply_at: float) -> None:
        """A call that ``began`` then has failed; some call was last answered at ``last_reply_at`` (all monotonic)."""
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
                f"a shard does not answer; one push in {PROBE_PERIOD_S:g} s is sent there, all others fail at once",
                event_name="shard.circuit_open",
                error=error if isinstance(error, RedisError) else None,
            )

    def record_reply(self) -> None:
        """The shard answers."""
        if self.open:
            self.open = False
            logs.logger(shard=self._shard).info(
                "a shard answers again", event_name="shard.circuit_closed", open_s=round(self.open_s, 3)
            )
