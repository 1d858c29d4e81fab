"""Say what a job costs Redis: its processor time, its traffic, and the memory of a waiting job.

The times are those of docs/internals/performance.md (Redis 7.0, jobs of 400 bytes, groups as a busy worker makes them), so they
say how loaded a Redis is, and not when each command ends.
"""

from typing import NamedTuple

from framework.declare.declaration import Declaration

_RUN_US, _LIMITED_US, _LOCKED_US, _STATE_US = 4.0, 5.1, 4.3, 3.1
_FAIR_US = 13.2
_PUSH_US, _PUSH_LOCKED_US, _PUSH_STATE_US = 9.9, 25.3, 3.1
"""Of one push a call: most of it is the call."""
_BULK_US, _BULK_LOCKED_US, _BULK_STATE_US = 0.5, 5.6, 1.8
"""Of a push in calls of 1,000."""
_BULK = 1_000
HELD_US = 30.0
"""What a job costs that waits for a slot of a full limit, beside its run."""
RETRY_US = 18.3
"""What a failed run costs, beside its fetch."""

_US_PER_KB = 0.6
"""Redis copies and hashes what it stores: some 1.2 ns a byte on the way in and out, half of it for each."""

QUEUE_BYTES, HELD_BYTES, RETRY_BYTES, LOCK_BYTES, STATE_BYTES = 14, 235, 345, 385, 186
"""Beside the payload (docs/operate/scaling.md)."""
_CALL_BYTES = 250
"""Arguments and answers beside the payload of a push, and of a fetch with its acknowledgement."""


class StoreCost(NamedTuple):
    """What the jobs of one class cost the Redis of their shard."""

    push_us: float
    run_us: float
    waiting_bytes: int
    traffic_bytes: int
    """In and out, for a job that is pushed and runs."""


def cost_of(declaration: Declaration, size: int, pushed_together: int, *, limited: bool, fair: bool) -> StoreCost:
    """Return the costs of a class whose payloads have ``size`` bytes, pushed by calls with so many jobs."""
    tracked = declaration.status_expiration is not None
    locked = declaration.idempotent
    run = _RUN_US + limited * _LIMITED_US + locked * _LOCKED_US + tracked * _STATE_US + fair * _FAIR_US
    single = _PUSH_US + locked * _PUSH_LOCKED_US + tracked * _PUSH_STATE_US
    bulk = _BULK_US + locked * _BULK_LOCKED_US + tracked * _BULK_STATE_US
    # The cost of a call is shared by its jobs.
    push = bulk + (single - bulk) / min(pushed_together, _BULK)
    bytes_us = max(0, size - 400) / 1_000 * _US_PER_KB
    waiting = size + QUEUE_BYTES + locked * LOCK_BYTES + tracked * STATE_BYTES
    return StoreCost(push + bytes_us, run + bytes_us, waiting, 2 * size + 2 * _CALL_BYTES)
