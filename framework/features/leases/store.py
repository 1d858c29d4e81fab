"""Keep exclusive leases on their shards. Each call is one script, which compares the token of the holder."""

import os
import socket
from typing import Any, NamedTuple, cast

import redis

from framework.errors import ShardUnavailableError
from framework.features.leases import keys
from framework.features.leases.lease import LeaseHolder
from framework.push.client import Client
from framework.store.connect import server_time
from framework.store.script import Script
from framework.telemetry import context
from framework.telemetry.logs import LogRateLimit
from framework.text import decode_escaped
from framework.wire.json import stored_time

OBTAIN = Script("leases/obtain", "time")
RENEW = Script("leases/renew", "time")
_LOG_INTERVAL_S = 60.0


class LeaseState(NamedTuple):
    """One lease that is held, for operators. Times are epoch seconds of Redis's clock."""

    name: str
    holder: str
    token: str
    since: float
    left_s: float


class Leases:
    """The exclusive leases of the application. Those that name no shard are on that of the fleet. Safe from any thread."""

    def __init__(self, client: Client) -> None:
        self._shards = client.shards
        self._fleet_shard = client.settings.fleet_shard
        self._log_limit = LogRateLimit(_LOG_INTERVAL_S)

    def obtain(self, shard: str | None, name: str, token: str, timeout_s: float) -> LeaseHolder | None:
        """Obtain the lease for ``token``; return its holder if another has it, else ``None``. One round trip.

        Raises:
            ShardUnavailableError: the shard does not answer or refuses. A lease whose reply is lost ends by itself.
            UnknownShardError: the configuration has no such shard.
        """
        arguments = (token, current_holder(), _milliseconds(timeout_s))
        obtained, holder, left_ms = self._run(OBTAIN, shard, name, arguments)
        return None if obtained else LeaseHolder(holder.decode(errors="replace"), max(0, int(left_ms)) / 1000)

    def renew(self, shard: str | None, name: str, token: str, timeout_s: float) -> bool:
        """Let the lease end ``timeout_s`` from now on, 0 for at once; return false if ``token`` has it no more.

        Raises as ``obtain``, but not for the end of a lease, which comes by itself too.
        """
        try:
            return bool(self._run(RENEW, shard, name, (token, _milliseconds(timeout_s))))
        except ShardUnavailableError as error:
            if timeout_s:
                raise
            self._log_limit.warning(
                name,
                f"Redis did not end the lease {name}: the lease ends by itself at the end of its timeout.",
                "lease.end_failed",
                lease=name,
                shard=shard or self._fleet_shard,
                error=error,
            )
            return True

    def holder(self, shard: str | None, name: str) -> LeaseHolder | None:
        """Return the holder of the lease, ``None`` if it is free. Raises as ``obtain``."""
        on = self._shards[shard or self._fleet_shard]
        with on.reading():
            found = read_lease(on.client, name)
        return None if found is None else LeaseHolder(found.holder, found.left_s)

    def _run(self, script: Script, shard: str | None, name: str, arguments: tuple[Any, ...]) -> Any:
        return self._shards[shard or self._fleet_shard].run_script(script, _names(name), (name, *arguments))


def current_holder() -> str:
    """Return the code that runs here, for readers: the job with its class, else the process."""
    found: Any = context.context_source()
    job = found.job if isinstance(found, context.BoundContext) else found
    here = f"{socket.gethostname()}:{os.getpid()}"
    return f"{job['class']} {job['jid']} {here}" if job is not None else here


def read_lease(client: "redis.Redis", name: str) -> LeaseState | None:
    """Return a lease; ``None`` if it is free. Raises redis errors."""
    fields = cast("dict[bytes, bytes]", client.hgetall(keys.exclusive_lease(name)))
    left_ms = int(cast("Any", client.pttl(keys.exclusive_lease(name))))
    # Below zero: it has ended between the two calls.
    if not fields or left_ms < 0:
        return None
    texts = {decode_escaped(field): decode_escaped(value) for field, value in fields.items()}
    since = stored_time(texts.get("since")) or 0.0
    return LeaseState(name, texts.get("holder", ""), texts.get("token", ""), since, left_ms / 1000)


def read_leases(client: "redis.Redis") -> list[LeaseState]:
    """Return the leases that are held, by name. Raises redis errors."""
    names = cast("list[bytes]", client.zrangebyscore(keys.EXCLUSIVE_LEASES, server_time(client), "+inf"))
    found = [read_lease(client, name.decode(errors="replace")) for name in sorted(names)]
    return [one for one in found if one is not None]


def end_lease(client: "redis.Redis", held: LeaseState) -> bool:
    """End a lease for its holder, which then loses it; return false if it has ended meanwhile. Raises redis errors."""
    return bool(RENEW(client, _names(held.name), [held.name, held.token, 0]))


def _names(name: str) -> list[str]:
    return [keys.exclusive_lease(name), keys.EXCLUSIVE_LEASES]


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
