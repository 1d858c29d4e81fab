"""Decide whether a job ends without running, because it is too old. Asked before its policies: it takes no slot."""

import time
from collections.abc import Callable

from framework.finish.outcome import Expired
from framework.types import Payload
from framework.wire.job import expiry_of


def early_end(payload: Payload, clock: Callable[[], float] = time.time) -> Expired | None:
    """Return the outcome of a job with ``expires_in`` that is too old, ``None`` if it may run."""
    expiry = expiry_of(payload)
    late_s = 0.0 if expiry is None else clock() - expiry
    return Expired(expiry, late_s) if expiry is not None and late_s > 0 else None
