"""The one place where Redis clients are made, with every default of redis-py that loses or repeats jobs set aside.

redis-py 8 retries each command ten times by default: one LPUSH whose reply was lost left three copies, one BRPOP lost a
job. So: no retries at all. It also times out reads after 5 s, so a blocking read brings its own deadline.
"""

from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.connection import Connection, ConnectionPool, SSLConnection, UnixDomainSocketConnection
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry

from framework.store.sentinels import Followed, FollowedSSL, Sentinels, watch

COMMAND_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 2.0

_SENTINEL_TIMEOUT_S = 1.0
_CREDENTIALS = ("username", "password")

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
        """The address without credentials, for messages; of a master that Sentinel keeps, its name and who knows it."""
        if self.sentinels:
            places = ", ".join(f"{host}:{port}" for host, port in self.sentinels)
            return f"{self.sentinel_name} of the sentinels {places}"
        scheme, separator, rest = self.url.partition("://")
        return f"{scheme}{separator}{rest.rpartition('@')[2]}"

    @property
    def user(self) -> str:
        """Who we are to its ACL."""
        return str(dict(self.options).get("username") or unquote(urlsplit(self.url).username or "") or "default")


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
        return _follow(endpoint, settings)
    # The client owns its pool: closing it closes the connections.
    return redis.Redis.from_pool(ConnectionPool.from_url(endpoint.url, **settings))


def _follow(endpoint: Endpoint, settings: dict[str, Any]) -> "redis.Redis":
    """Return a client of whoever is the master, whose connections end when that changes."""
    found = _find(endpoint)
    settings["connection_class"] = FollowedSSL if settings.pop("ssl", False) else Followed
    settings["watch"] = watch(found, endpoint.sentinels, endpoint.sentinel_name)
    return cast("redis.Redis", found.master_for(endpoint.sentinel_name, **settings))  # type: ignore[no-untyped-call]


def _find(endpoint: Endpoint) -> Sentinels:
    """Return the sentinels, which are reached as the Redis itself is: with its TLS options, and with its credentials.

    A sentinel without a password refuses one, and that is common; so each is asked with and then without.
    """
    common: dict[str, Any] = {
        "socket_timeout": _SENTINEL_TIMEOUT_S,
        "socket_connect_timeout": _SENTINEL_TIMEOUT_S,
        "retry": Retry(NoBackoff(), 0),
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
    }
    common |= {name: value for name, value in endpoint.options if name.startswith("ssl") or name == "protocol"}
    secret = {name: value for name, value in endpoint.options if name in _CREDENTIALS}
    kinds = ({**common, **secret}, common) if secret else (common,)
    return Sentinels(redis.Redis(host, port, **kind) for kind in kinds for host, port in endpoint.sentinels)
