"""Looks after limits that jobs wait at, for the case that nobody else does: no job of theirs ends, or nobody knows them any more."""

import time
from collections.abc import Callable
from typing import Any, cast

import redis
from redis.exceptions import ResponseError

from framework.declare import registry
from framework.policies.concurrency.limits import QUEUE_PREFIX, Limits
from framework.store.script import RELEASE_WAITING, is_lasting
from framework.telemetry.logs import logger
from framework.telemetry.rate_limit import LogRateLimit
from framework.wire import keys

FORGET_AFTER_S = 60
"""When no process has known a limit for so long, its class is gone, or the setting: what waits goes back to its queue."""

_KEY_PREFIX = keys.limit("")
_CLOCK_TOLERANCE_S = 60.0  # the clocks of two hosts differ; whether it still holds is asked of Redis for each job
_PAGE = 100  # jobs of one step: a few milliseconds of Redis's time
_MAX_PER_LIMIT_S = 2.0  # for one limit, then the others have theirs
_LOG_INTERVAL_S = 60.0


class LimitSweeper:
    """One process's look at the limits of a shard. Any number of processes may look at once.

    ``on_operator_limits`` is called when the operators have limited what nobody else limits, or do no longer.
    """

    def __init__(self, client: "redis.Redis", limits: Limits, on_operator_limits: Callable[[], None]) -> None:
        self._client = client
        self._limits = limits
        self._on_operator_limits = on_operator_limits
        self._log_limit = LogRateLimit(_LOG_INTERVAL_S)

    def sweep(self) -> None:
        """Hand over whatever may run: a slot whose holder is gone, a limit that was raised or lifted. Raises redis errors.

        Costs one round trip of two commands when nobody waits. A limit whose keys cannot be used keeps no other from its turn.
        """
        pipeline: Any = self._client.pipeline(transaction=False)
        pipeline.smembers(keys.LIMITS).smembers(keys.LIMITS_WAITING)
        replies: list[set[bytes] | Exception] = pipeline.execute(raise_on_error=False)
        known, waiting = map(self._read_names, replies)
        self._update_operator_limits(sorted(map(_limit_name, known)))
        for base in sorted(waiting):
            try:
                self._sweep_limit(base.decode(errors="backslashreplace"))
            except ResponseError as error:
                self._log_unusable(_limit_name(base), error)

    def _read_names(self, reply: "set[bytes] | Exception") -> "set[bytes]":
        if isinstance(reply, ResponseError):
            self._log_unusable("", reply)
            return set()
        if isinstance(reply, Exception):
            raise reply
        return reply

    def _log_unusable(self, name: str, error: ResponseError) -> None:
        """Tell of keys that cannot be used, of one limit or of all; raise what may pass."""
        if not is_lasting(error):
            raise error
        self._log_limit.error(
            name,
            "the keys of limits cannot be used, so what waits there may wait until they can",
            "concurrency_limit.unusable",
            limit=name or None,
            error=error,
        )

    def _update_operator_limits(self, names: list[str]) -> None:
        """See which limits are the operators' alone: their word stands in the limit's own key, where each job's step reads it."""
        undeclared = [name for name in names if not self._is_declared(name)]
        imposed = frozenset[str]()
        if undeclared:
            pipeline: Any = self._client.pipeline(transaction=False)
            for name in undeclared:
                pipeline.hmget(keys.limit(name), "override", "override_until")
            replies: list[Any] = pipeline.execute(raise_on_error=False)
            said = [cast("list[bytes | None]", reply) if isinstance(reply, list) else [None, None] for reply in replies]
            imposed = frozenset(name for name, reply in zip(undeclared, said, strict=True) if _may_be_active(*reply))
        if imposed != self._limits.operator_limits:
            self._limits.operator_limits = imposed
            self._on_operator_limits()

    def _is_declared(self, name: str) -> bool:
        if name.startswith(QUEUE_PREFIX):
            return (
                name not in self._limits.operator_limits
                and self._limits.queue_limit(name.removeprefix(QUEUE_PREFIX)) is not None
            )
        worker = registry.find(name)
        return worker is not None and self._limits.declares_limit(worker.declaration())

    def _sweep_limit(self, base: str) -> None:
        name = base.removeprefix(_KEY_PREFIX)
        known = self._limit_and_share(name)
        limit, share = ("", 0) if known is None else known
        deadline = time.monotonic() + _MAX_PER_LIMIT_S
        resumed = 0
        while True:
            reply: Any = RELEASE_WAITING(self._client, [base], [limit, share, _PAGE, FORGET_AFTER_S])
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

    def _limit_and_share(self, name: str) -> tuple[int, int] | None:
        """Return limit and share of a scope as this process knows them; ``None`` when it does not."""
        if name.startswith(QUEUE_PREFIX):
            limit = self._limits.queue_limit(name.removeprefix(QUEUE_PREFIX))
            return None if limit is None else (limit, 0)
        worker = registry.find(name)
        if worker is None:
            return None
        if worker.declaration().wire_name != name:
            return 0, 0  # a former name: what waits under it is to wait under the new one
        limit = self._limits.class_limit(worker.declaration())
        return limit, self._limits.scope_share(worker.declaration(), limit)


def _limit_name(base: bytes) -> str:
    return base.decode(errors="backslashreplace").removeprefix(_KEY_PREFIX)


def _may_be_active(limit: bytes | None, until: bytes | None) -> bool:
    """Whether the operators have said something that may still hold."""
    try:
        return limit is not None and (not until or float(until) > time.time() - _CLOCK_TOLERANCE_S)
    except ValueError:
        return True
