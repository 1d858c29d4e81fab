"""Release jobs that wait at limits in the cases where no ending job does: a raised limit, a dead holder, a removed class."""

import time
from collections.abc import Callable
from typing import Any, cast

import redis
from redis.exceptions import ResponseError

from framework.declare import registry
from framework.execute.admission import RELEASED_AT_ONCE, unpack_waiting
from framework.features.concurrency.limits import QUEUE_PREFIX, Limits
from framework.process_clock import process_clock
from framework.store.absent_keys import AbsentKeys
from framework.store.script import RELEASE_WAITING, is_lasting
from framework.store.steps import SHARE, BoundedSteps, share_of_process
from framework.telemetry.logs import LogRateLimit, logger
from framework.text import decode_escaped, decode_name, format_count
from framework.wire import keys

FORGET_AFTER_S = 60
"""If no process has known a limit for this long, its class or setting is gone: the waiting jobs return to their queues."""

_KEY_PREFIX = keys.limit("")
# Clocks of hosts differ. Redis checks the exact end of an override for each job.
_CLOCK_TOLERANCE_S = 60.0
# The longest time for one limit, so that the others are swept too.
_MAX_PER_LIMIT_S = 2.0
_LOG_INTERVAL_S = 60.0


class LimitSweeper:
    """Sweep the limits of a shard. Any number of processes may do so at the same time.

    ``on_operator_limits`` is called when the set of limits that only operators define has changed.
    """

    def __init__(
        self,
        client: "redis.Redis",
        limits: Limits,
        on_operator_limits: Callable[[], None],
        absent: AbsentKeys | None = None,
    ) -> None:
        self._client = client
        self._absent = absent or AbsentKeys()
        self._limits = limits
        self._on_operator_limits = on_operator_limits
        self._log_limit = LogRateLimit(_LOG_INTERVAL_S)

    def sweep(self) -> None:
        """Release every job that may run: its slot's holder is gone, or its limit was raised or removed. Raises redis errors.

        Without waiting jobs it costs one command, without limits none. A limit with unusable keys does not block the others.
        """
        read = self._read_sets()
        if keys.LIMITS in read:
            self._update_operator_limits(sorted(map(_limit_name, read[keys.LIMITS])))
        waiting = sorted(read.get(keys.LIMITS_WAITING, ()))
        own_share = share_of_process(self._client) if waiting else SHARE
        for base in waiting:
            name = decode_name(base)
            # The member is the name of a key: no other program may choose a key for the script.
            if name is None or not name.startswith(_KEY_PREFIX):
                self._log_foreign(base)
                continue
            try:
                self._sweep_limit(name, own_share)
            except ResponseError as error:
                self._log_unusable(_limit_name(base), error)

    def _log_foreign(self, member: bytes) -> None:
        self._log_limit.error(
            f"member {member[:100]!r}",
            f"a member of {keys.LIMITS_WAITING} is no key of a concurrency limit, and is passed over. Remove it with SREM",
            "concurrency_limit.unusable",
            limit=decode_escaped(member[:100]),
        )

    def _read_sets(self) -> "dict[str, set[bytes]]":
        """Read the sets of known limits and of those with waiting jobs, as far as they may exist, in one round trip."""
        names = [name for name in (keys.LIMITS, keys.LIMITS_WAITING) if self._absent.may_exist(name)]
        if not names:
            return {}
        pipeline: Any = self._client.pipeline(transaction=False)
        for name in names:
            pipeline.smembers(name)
        replies: list[set[bytes] | Exception] = pipeline.execute(raise_on_error=False)
        read = dict(zip(names, map(self._read_names, replies), strict=True))
        for name, reply in zip(names, replies, strict=True):
            # An empty set may be a refused one, which exists.
            self._absent.note(name, found=reply != set())
        return read

    def _read_names(self, reply: "set[bytes] | Exception") -> "set[bytes]":
        if isinstance(reply, ResponseError):
            self._log_unusable("", reply)
            return set()
        if isinstance(reply, Exception):
            raise reply
        return reply

    def _log_unusable(self, name: str, error: ResponseError) -> None:
        """Log an error about keys that cannot be used, of one limit or of all; raise errors that may be temporary."""
        if not is_lasting(error):
            raise error
        self._log_limit.error(
            name,
            "keys of a concurrency limit have the wrong type, or Redis refuses them; jobs that wait at the limit may stay "
            f"there. Look at the error, then at the keys {_KEY_PREFIX}{name}*",
            "concurrency_limit.unusable",
            error=error,
            **({"limit": name} if name else {}),
        )

    def _update_operator_limits(self, names: list[str]) -> None:
        """Find the limits that only operators define. Their values stay in Redis, where the script for each job reads them."""
        undeclared = [name for name in names if not self._is_declared(name)]
        active = frozenset[str]()
        if undeclared:
            pipeline: Any = self._client.pipeline(transaction=False)
            for name in undeclared:
                pipeline.hmget(keys.limit(name), "override", "override_until")
            replies: list[Any] = pipeline.execute(raise_on_error=False)
            overrides = [
                cast("list[bytes | None]", reply) if isinstance(reply, list) else [None, None] for reply in replies
            ]
            active = frozenset(
                name for name, reply in zip(undeclared, overrides, strict=True) if _may_be_active(*reply)
            )
        if active != self._limits.operator_limits:
            self._limits.operator_limits = active
            self._on_operator_limits()

    def _is_declared(self, name: str) -> bool:
        if name.startswith(QUEUE_PREFIX):
            return (
                name not in self._limits.operator_limits
                and self._limits.queue_limit(name.removeprefix(QUEUE_PREFIX)) is not None
            )
        worker = registry.find(name)
        return worker is not None and self._limits.declares_limit(worker.declaration())

    def _sweep_limit(self, base: str, own_share: float) -> None:
        name = base.removeprefix(_KEY_PREFIX)
        known = self._limit_and_share(name)
        limit, share = ("", 0) if known is None else known
        deadline = time.monotonic() + _MAX_PER_LIMIT_S
        resumed = 0
        steps = BoundedSteps(*RELEASED_AT_ONCE, share=own_share)
        while True:
            with steps.step() as jobs:
                reply: Any = RELEASE_WAITING(self._client, [base], [limit, share, jobs, FORGET_AFTER_S])
            released, taken, current_limit, waiting = reply
            resumed += released
            if (
                not waiting
                or time.monotonic() > deadline
                or (released < jobs and not unpack_waiting(self._client, name))
            ):
                break
        if resumed:
            logger(**{"class": name}).info(
                f"{format_count(resumed, 'waiting job')} of {name} {'has a slot' if resumed == 1 else 'have slots'} now",
                event_name="concurrency_limit.resumed",
                job_status="resumed",
                resumed_job_count=resumed,
                concurrency_limit=int(current_limit or 0),
                current_concurrency=taken,
                unknown=known is None,
            )

    def _limit_and_share(self, name: str) -> tuple[str, int] | None:
        """Return the limit, as scripts take it, and the share of one scope; ``None`` if this process does not know the limit."""
        if name.startswith(QUEUE_PREFIX):
            limit = self._limits.queue_limit(name.removeprefix(QUEUE_PREFIX))
            return None if limit is None else (str(limit), 0)
        worker = registry.find(name)
        if worker is None:
            return None
        if worker.declaration().wire_name != name:
            # An alias: its waiting jobs return to their queues, and then wait under the new name.
            return "0", 0
        declaration = worker.declaration()
        limit = self._limits.class_limit(declaration)
        return self._limits.stated(declaration, limit), self._limits.scope_share(declaration, limit)


def _limit_name(base: bytes) -> str:
    return decode_escaped(base).removeprefix(_KEY_PREFIX)


def _may_be_active(limit: bytes | None, until: bytes | None) -> bool:
    try:
        return limit is not None and (not until or float(until) > process_clock.now() - _CLOCK_TOLERANCE_S)
    except ValueError:
        return True
