"""Open Redis clients, without the defaults of redis-py that lose or repeat jobs.

redis-py 8 retries each command ten times by default: one LPUSH whose reply was lost left three copies, and one BRPOP lost a
job. So these clients never retry (decision 15). redis-py also ends reads after 5 s, so a blocking read needs its own deadline.
"""

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.connection import Connection, ConnectionPool, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError, ResponseError
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry

from framework.settings.shown_url import shown_url
from framework.store.deadline import use_deadlines
from framework.store.modes import refuse_unsupported_mode
from framework.store.sentinels import SentinelConnection, Sentinels, SentinelSSLConnection, master_watch
from framework.store.tls import ended_unanswered

COMMAND_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 2.0

_SENTINEL_TIMEOUT_S = 1.0
_CREDENTIALS = ("username", "password")

__all__ = ["Connection", "ConnectionPool", "Endpoint", "SSLConnection", "UnixDomainSocketConnection", "open_client"]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address and options of one Redis; with ``sentinels`` (host, port) the master's name replaces the URL's host."""

    url: str
    sentinels: tuple[tuple[str, int], ...] = ()
    sentinel_name: str = ""
    options: tuple[tuple[str, Any], ...] = ()
    """Further redis-py connection options: credentials, TLS, protocol."""
    sentinel_options: tuple[tuple[str, Any], ...] = ()
    """The options that differ for the sentinels: their own credentials, their own TLS (``ssl`` false: none)."""
    source: str = field(default="config/redis.yml", compare=False)
    """The file to change, for messages."""

    @property
    def shown(self) -> str:
        """The address without credentials, for messages; with sentinels, the master's name and their addresses."""
        if self.sentinels:
            places = ", ".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.sentinels)
            return f"{self.sentinel_name} of the sentinels {places}"
        return shown_url(self.url)

    @property
    def user(self) -> str:
        """The user of the ACL."""
        return str(dict(self.options).get("username") or unquote(urlsplit(self.url).username or "") or "default")


# Decision 15: the Redis client never repeats a command by itself.
def open_client(endpoint: Endpoint, *, name: str, read_timeout_s: float = COMMAND_TIMEOUT_S) -> "redis.Redis":
    """Return a client that connects at its first command and never retries; each call has ``read_timeout_s``."""
    settings: dict[str, Any] = {
        **dict(endpoint.options),
        "client_name": name,
        # An ACL of a Redis before 7.2 cannot grant its command, CLIENT SETINFO, and no program reads the value.
        "driver_info": None,
        "redis_connect_func": handshake,
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
        return _open_sentinel_client(endpoint, settings)
    # The client owns its pool: closing it closes the connections.
    pool = ConnectionPool.from_url(endpoint.url, **settings)
    use_deadlines(pool)
    return redis.Redis.from_pool(pool)


def handshake(connection: Any) -> None:
    """Log in and select the database as redis-py does; a connection whose name is refused goes on without a name.

    The name is for readers of CLIENT LIST, so an ACL without CLIENT SETNAME must not end the boot.
    """
    _explain_disconnect(connection, _log_in)
    refuse_unsupported_mode(connection.handshake_metadata)


def sentinel_handshake(connection: Any) -> None:
    """Log in to a sentinel as redis-py does."""
    _explain_disconnect(connection, lambda one: one.on_connect())


def _explain_disconnect(connection: Any, step: Callable[[Any], None]) -> None:
    """Run a step of the handshake; when the connection ends before any answer, say so, as TLS may be the cause."""
    opened = connection._sock
    try:
        step(connection)
    except RedisConnectionError as error:
        if type(error) is not RedisConnectionError or opened.answered:
            raise
        certificate = getattr(connection, "certfile", None) if opened.unanswered_tls else None
        more = ended_unanswered(secure=opened.unanswered_tls, certified=certificate is not None)
        raise RedisConnectionError(f"{error} ({more})") from error


def _log_in(connection: Any) -> None:
    name, connection.client_name = connection.client_name, None
    try:
        connection.on_connect()
    finally:
        connection.client_name = name
    by_hello = bool(connection.handshake_metadata)
    # No reply is read before HELLO is sent too: both cost one round trip.
    connection.send_command("CLIENT", "SETNAME", name, check_health=False)
    # RESP2 connections start without HELLO, whose reply names the mode of the server.
    if not by_hello:
        connection.send_command("HELLO", check_health=False)
    try:
        connection.read_response()
    except NoPermissionError as error:
        logging.getLogger("framework").debug("connections to Redis stay without a name: %s", error)
    if not by_hello:
        # Redis before 6.2 and some proxies refuse the command.
        with contextlib.suppress(ResponseError):
            connection.handshake_metadata = connection.read_response()


def _open_sentinel_client(endpoint: Endpoint, settings: dict[str, Any]) -> "redis.Redis":
    """Return a client of the current master; its connections end when the master changes."""
    found = _open_sentinels(endpoint)
    settings["connection_class"] = SentinelSSLConnection if settings.pop("ssl", False) else SentinelConnection
    settings["watch"] = master_watch(found, endpoint.sentinels, endpoint.sentinel_name)
    return cast("redis.Redis", found.master_for(endpoint.sentinel_name, **settings))  # type: ignore[no-untyped-call]


def _open_sentinels(endpoint: Endpoint) -> Sentinels:
    """Return the sentinels with the options of the Redis, except for ``sentinel_options``.

    Sentinels often have no password and then refuse one, so each is asked with the credentials of the Redis and then without.
    With credentials of its own a sentinel is asked with these only.
    """
    own = dict(endpoint.sentinel_options)
    common: dict[str, Any] = {
        "driver_info": None,
        "redis_connect_func": sentinel_handshake,
        "socket_timeout": _SENTINEL_TIMEOUT_S,
        "socket_connect_timeout": _SENTINEL_TIMEOUT_S,
        "retry": Retry(NoBackoff(), 0),
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
    }
    transport = own if "ssl" in own else dict(endpoint.options)
    common |= {name: value for name, value in transport.items() if name.startswith("ssl")}
    common |= {name: value for name, value in endpoint.options if name == "protocol"}
    secret = {
        name: value
        for name, value in (own if "password" in own else dict(endpoint.options)).items()
        if name in _CREDENTIALS
    }
    kinds = ({**common, **secret}, common) if secret and "password" not in own else ({**common, **secret},)
    clients = [redis.Redis(host, port, **kind) for kind in kinds for host, port in endpoint.sentinels]
    for client in clients:
        use_deadlines(client.connection_pool)
    return Sentinels(clients)
