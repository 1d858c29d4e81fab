"""The one place where Redis clients are made, with every default of redis-py that loses or repeats jobs set aside.

redis-py 8 retries each command ten times by default: one LPUSH whose reply was lost left three copies, one BRPOP lost a
job. So: no retries at all. It also times out reads after 5 s, so a blocking read brings its own deadline.
"""

from dataclasses import dataclass
from typing import Any, cast

import redis
from redis.backoff import NoBackoff
from redis.connection import Connection, ConnectionPool, SSLConnection, UnixDomainSocketConnection
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry
from redis.sentinel import Sentinel

COMMAND_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 2.0

__all__ = ["Connection", "ConnectionPool", "Endpoint", "SSLConnection", "UnixDomainSocketConnection", "open_client"]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where one Redis is and how to talk to it; ``sentinels`` (host, port) replace the URL's host by a failover name."""

    url: str
    sentinels: tuple[tuple[str, int], ...] = ()
    sentinel_name: str = ""
    options: tuple[tuple[str, Any], ...] = ()
    """Further redis-py connection options: credentials, TLS, protocol."""

    @property
    def shown(self) -> str:
        """The address without credentials, for messages."""
        scheme, separator, rest = self.url.partition("://")
        return f"{scheme}{separator}{rest.rpartition('@')[2]}"


def open_client(endpoint: Endpoint, *, name: str, read_timeout_s: float = COMMAND_TIMEOUT_S) -> "redis.Redis":
    """Return a client that connects at its first command, never retries, and waits at most ``read_timeout_s`` for a reply."""
    settings: dict[str, Any] = {
        **dict(endpoint.options),
        "client_name": name,
        "decode_responses": False,
        "socket_timeout": read_timeout_s,
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        "retry": Retry(NoBackoff(), 0),
        "health_check_interval": 0,
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
    }
    if endpoint.url.startswith("unix"):
        settings.pop("maint_notifications_config")
    else:
        settings["socket_keepalive"] = True
    if endpoint.sentinels:
        open_sentinel: Any = Sentinel
        sentinel = open_sentinel(list(endpoint.sentinels), sentinel_kwargs={"socket_timeout": 1.0})
        return cast("redis.Redis", sentinel.master_for(endpoint.sentinel_name, **settings))
    # The client owns its pool: closing it closes the connections.
    return redis.Redis.from_pool(ConnectionPool.from_url(endpoint.url, **settings))
