"""Keep the state of rate limiters on their shards. Each call is one script, which reads the clock of Redis."""

from collections.abc import Iterator
from typing import Any, cast

import redis

from framework.errors import ShardUnavailableError
from framework.features.limiters import keys
from framework.features.limiters.limiter import LimiterRule, Take
from framework.push.client import Client
from framework.shard.shard import Shard
from framework.store.connect import server_time
from framework.store.script import Script
from framework.telemetry.context import job_fields
from framework.telemetry.logs import LogRateLimit

TAKE = Script("limiters/take", "time", "limiters/limiter")
LOCK = Script("limiters/lock", "time", "limiters/limiter")
UNLOCK = Script("limiters/unlock")
READ = Script("limiters/read", "time", "limiters/limiter")

KEPT_S = 90 * 86_400
"""How long the facts of an unused limiter are kept: its counts, and the limit that operators have set (Sidekiq's number)."""

_LOG_INTERVAL_S = 60.0
_PAGE = 1_000
_NEVER = 1e15


class LimiterStore:
    """The state of the rate limiters, on the shards of the client. Opens no socket; safe from any thread."""

    def __init__(self, client: Client) -> None:
        self._shards = client.shards
        self._fleet_shard = client.settings.fleet_shard
        self._log_limit = LogRateLimit(_LOG_INTERVAL_S)

    def take(
        self, rule: LimiterRule, key: str, amount: float, token: str, *, waited: bool, left_s: float = 0.0
    ) -> Take:
        """Take an amount if it is within the limit; ``left_s`` is how long the caller still waits. One round trip.

        Raises:
            ShardUnavailableError: the shard does not answer or refuses, and the limiter does not let calls proceed without it. A take
                whose reply is lost counts.
            UnknownShardError: the configuration has no such shard.
        """
        try:
            return self._take(rule, key, amount, token, waited=waited, left_s=left_s)
        except ShardUnavailableError as error:
            if rule.without_shard == "raise":
                raise
            self._log_limit.warning(
                f"{rule.name} uncounted",
                f"the shard of the limiter {rule.name} does not answer, so calls are admitted and not counted. Look at the error",
                "limiter.shard_away",
                limiter=rule.name,
                shard=self._shard(rule).name,
                error=error,
            )
            return Take(admitted=True, retry_after_s=None, used=0.0, limit=rule.limit)

    def _take(self, rule: LimiterRule, key: str, amount: float, token: str, *, waited: bool, left_s: float) -> Take:
        names = [keys.limiter(rule.name), keys.state(rule.name, key), keys.NAMES]
        shard, after = self._shard(rule), ("1" if waited else "", KEPT_S)
        if rule.kind == "concurrent":
            admitted, retry_after_s, used, limit = shard.run_script(LOCK, names, (rule.name, rule.wire, token, *after))
            return Take(bool(admitted), _seconds(retry_after_s), float(used), float(limit))
        # A caller that is no job gets the time until there is room, and takes no turn of a job.
        is_job = rule.policy == "reschedule" and rule.backoff is None and bool(job_fields())
        arguments = (rule.name, rule.wire, repr(amount), token, *after, "", repr(left_s) if is_job else "")
        admitted, retry_after_s, used, limit, turn_s = shard.run_script(TAKE, names, arguments)
        return Take(bool(admitted), _seconds(retry_after_s), float(used), float(limit), _seconds(turn_s))

    def give_back(self, rule: LimiterRule, key: str, token: str) -> None:
        """Release the lock that ``take`` gave to ``token``. An error is logged: the lock ends by itself."""
        try:
            self._shard(rule).run_script(UNLOCK, [keys.state(rule.name, key)], (token,))
        except ShardUnavailableError as error:
            self._log_limit.warning(
                rule.name,
                f"Redis did not take back a lock of the limiter {rule.name}: it is free after lock_timeout, {rule.lock_s:g} s.",
                "limiter.release_failed",
                limiter=rule.name,
                shard=self._shard(rule).name,
                error=error,
            )

    def correct(self, rule: LimiterRule, key: str, amount: float, token: str) -> None:
        """Add to what is used, whatever the limit. Raises as ``take``."""
        names = [keys.limiter(rule.name), keys.state(rule.name, key), keys.NAMES]
        arguments = (rule.name, rule.wire, repr(amount), token, "", KEPT_S, "correct", "")
        try:
            self._shard(rule).run_script(TAKE, names, arguments)
        except ShardUnavailableError:
            if rule.without_shard == "raise":
                raise

    def used(self, rule: LimiterRule, key: str) -> float:
        names = [keys.limiter(rule.name), keys.state(rule.name, key)]
        return float(self._shard(rule).run_script(READ, names, (rule.wire,))[0])

    def resize(self, rule: LimiterRule, limit: float | None, duration_s: float | None) -> None:
        """Set another limit than that of the rule, for a duration or (``None``) for ever; the limit ``None`` removes it.

        Raises as ``take``.
        """
        shard = self._shard(rule)
        with shard.reading():
            resize_limiter(shard.client, rule.name, limit, duration_s)

    def reset(self, rule: LimiterRule, key: str | None) -> None:
        """Set what is used of one key, or (``None``) of all, to zero. Raises as ``take``."""
        shard = self._shard(rule)
        with shard.reading():
            reset_limiter(shard.client, rule.name, key)

    def _shard(self, rule: LimiterRule) -> Shard:
        return self._shards[rule.shard or self._fleet_shard]


def _seconds(reply: bytes) -> float | None:
    return float(reply) if reply else None


def resize_limiter(
    client: "redis.Redis", name: str, limit: float | None, duration_s: float | None, by: str = "", reason: str = ""
) -> bool:
    """Set another limit for all processes; ``None`` lets that of the code hold again. Return whether one was set before.

    Raises redis errors.
    """
    if limit is None:
        return bool(client.hdel(keys.limiter(name), "resized", "resized_by", "resized_reason"))
    ends = _NEVER if duration_s is None else server_time(client) + duration_s
    facts = {"resized": f"{limit:.17g} {ends:.6f}", "resized_by": by, "resized_reason": reason}
    added = int(cast("Any", client.hset(keys.limiter(name), mapping=cast("Any", facts))))
    client.expire(keys.limiter(name), KEPT_S)
    return added == 0


def reset_limiter(client: "redis.Redis", name: str, key: str | None) -> int:
    """Set what is used of one key, or (``None``) of all, to zero; return the number of keys. Raises redis errors."""
    if key is not None:
        return int(cast("Any", client.unlink(keys.state(name, key))))
    found = list(cast("Iterator[bytes]", client.scan_iter(match=keys.state(name, "*"), count=_PAGE)))
    return sum(int(cast("Any", client.unlink(*found[at : at + _PAGE]))) for at in range(0, len(found), _PAGE))
