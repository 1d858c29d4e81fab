"""Looks after limits that jobs wait at, for the case that nobody else does: no job of theirs ends, or nobody knows them any more."""

import time
from collections.abc import Mapping
from typing import Any, cast

import redis

from framework.declare import registry
from framework.policies.concurrency.limits import Limits
from framework.store.script import RESUME
from framework.telemetry.logs import logger
from framework.wire import keys

UNKNOWN_S = 60
"""When no process has known a limit for so long, its class is gone, or the setting: what waits goes back to its queue."""

_PAGE = 500  # jobs of one step: some milliseconds of Redis's time
_TURN_S = 2.0  # for one limit, then the others have theirs


class Keeper:
    """One process's look at the limits of a shard. Any number of processes may look at once."""

    def __init__(self, client: "redis.Redis", limits: Limits, queues: Mapping[str, int]) -> None:
        self._client = client
        self._limits = limits
        self._queues = queues

    def look(self) -> None:
        """Hand over whatever may run: a slot whose holder is gone, a limit that was raised or lifted. Raises redis errors.

        Costs one command when nobody waits.
        """
        waiting = cast("set[bytes]", self._client.smembers(keys.LIMITS_WAITING))
        for base in sorted(waiting):
            self._attend(base.decode(errors="backslashreplace"))

    def _attend(self, base: str) -> None:
        name = base.removeprefix(keys.limit(""))
        known = self._known(name)
        limit, share = ("", 0) if known is None else known
        deadline = time.monotonic() + _TURN_S
        resumed = 0
        while True:
            reply: Any = RESUME(self._client, [base], [limit, share, _PAGE, UNKNOWN_S])
            handed, taken, holds, waits = reply
            resumed += handed
            if handed < _PAGE or not waits or time.monotonic() > deadline:
                break
        if resumed:
            logger(**{"class": name}).info(
                f"{name}: resumed: {resumed} jobs",
                event_name="concurrency_limit.resumed",
                job_status="resumed",
                resumed_job_count=resumed,
                concurrency_limit=int(holds or 0),
                current_concurrency=taken,
                unknown=known is None,
            )

    def _known(self, name: str) -> tuple[int, int] | None:
        """Return limit and share of a scope as this process knows them; ``None`` when it does not."""
        if name.startswith("queue/"):
            limit = self._queues.get(name.removeprefix("queue/"))
            return None if limit is None else (limit, 0)
        worker = registry.find(name)
        if worker is None:
            return None
        if worker.declaration().wire_name != name:
            return 0, 0  # a former name: what waits under it is to wait under the new one
        limit = self._limits.of(worker.declaration())
        return limit, self._limits.share_of_scope(worker.declaration(), limit)
