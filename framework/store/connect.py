"""Open Redis clients, without the defaults of redis-py that lose or repeat jobs.

redis-py 8 retries each command ten times by default: one LPUSH whose reply was lost left three copies, and one BRPOP lost a
job. So these clients never retry (decision 15). redis-py also ends reads after 5 s, so a blocking read needs its own deadline.
"""

import contextlib
import logging
import ssl
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.connection import Connection, ConnectionPool, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError, RedisError, ResponseError
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry

from framework.settings.urls import shown_url
from framework.store.cluster_slot import (
    ClusterConnection,
    ClusterSSLConnection,
    SlotMovedError,
    cluster_client,
    cluster_slot,
)
from framework.store.deadline import use_deadlines
from framework.store.key_prefix import SLOT, key_prefix
from framework.store.sentinels import SentinelConnection, Sentinels, SentinelSSLConnection, master_watch

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
    cluster: tuple[tuple[str, int], ...] = ()
    """Nodes of the cluster that holds the shard; they replace the URL's host."""
    tag: str = ""
    """The hash tag of the shard's keys on its cluster."""
    source: str = field(default="config/redis.yml", compare=False)
    """The file to change, for messages."""

    @property
    def shown(self) -> str:
        """The address without credentials, for messages; with sentinels, the master's name and their addresses."""
        if self.sentinels:
            return f"{self.sentinel_name} of the sentinels {_shown_places(self.sentinels)}"
        if self.cluster:
            return f"{self.prefix}* of the cluster {_shown_places(self.cluster)}"
        return shown_url(self.url)

    @property
    def prefix(self) -> str:
        """What stands before each key of the shard; empty without a cluster."""
        return key_prefix(self.tag) if self.cluster else ""

    @property
    def user(self) -> str:
        return str(dict(self.options).get("username") or unquote(urlsplit(self.url).username or "") or "default")


def _shown_places(places: tuple[tuple[str, int], ...]) -> str:
    return ", ".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in places)


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
    if endpoint.cluster:
        return _open_cluster_client(endpoint, settings)
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


def cluster_handshake(connection: Any) -> None:
    """Log in to a node of a cluster as ``handshake`` does, and ask it whether it holds the slot of the shard.

    Raises:
        UnsupportedServerError: the server is no node of a cluster.
        SlotMovedError: another node holds the slot, or it is on its way to another one.
    """
    _explain_disconnect(connection, _log_in)
    mode = _mode(connection.handshake_metadata)
    if mode is not None and mode != b"cluster":
        raise UnsupportedServerError(_BY_MODE.get(mode, NO_CLUSTER))
    connection.slot.ask(connection)


def certificate_end(client: "redis.Redis") -> float | None:
    """Return when the certificate of the server ends (epoch seconds); ``None`` without TLS, or if certificates are not checked.

    It is that of a connection of the pool, as the server showed it when the connection was opened.
    """
    pool: Any = client.connection_pool
    connection = pool.get_connection()
    try:
        show = getattr(connection._sock, "getpeercert", None)
        certificate: Mapping[str, Any] = (show() if show is not None else None) or {}
    finally:
        pool.release(connection)
    ends: str | None = certificate.get("notAfter")
    return None if ends is None else float(ssl.cert_time_to_seconds(ends))


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


def _open_cluster_client(endpoint: Endpoint, settings: dict[str, Any]) -> "redis.Redis":
    """Return a client of the node that holds the shard's slot."""
    slot = cluster_slot(endpoint.cluster, endpoint.tag)
    kind = ClusterSSLConnection if settings.pop("ssl", False) else ClusterConnection
    host, port = endpoint.cluster[0]
    settings |= {SLOT: slot, "redis_connect_func": cluster_handshake, "host": host, "port": port}
    return cluster_client(ConnectionPool(connection_class=kind, **settings), slot)


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


# The reply to HELLO, with which each RESP3 connection starts, names the server's mode, and no ACL can refuse HELLO. So the check
# costs no round trip and needs no right. Behind a proxy without HELLO, the errors of a cluster show the mode.

CLUSTER = (
    "this Redis is a node of a cluster, which places keys by their slots: write redis+cluster://HOST:PORT,HOST:PORT (with TLS "
    "rediss+cluster://), or use a Redis without cluster mode (cluster-enabled no)"
)
NO_CLUSTER = "this Redis is no node of a cluster: write redis:// (with TLS rediss://) in the place of redis+cluster://"
SENTINEL = (
    "this is a Sentinel, which holds no jobs: write redis+sentinel://HOST:PORT/NAME/DB, or use the setting sentinels"
)

_BY_MODE = {b"cluster": CLUSTER, b"sentinel": SENTINEL}
_CLUSTER_ERRORS = ("MOVED", "ASK", "CROSSSLOT", "CLUSTERDOWN", "TRYAGAIN")
_KEY_BY_KEY = (
    "the slot of the shard is on its way to another node, key by key, and no script may run meanwhile; wait until it is there "
    "(`redis-cli --cluster check`)"
)
_CLUSTER_STATES: Mapping[str, str] = {
    "MOVED": "the nodes of the cluster do not agree yet which one holds the slot of the shard; push again in a moment",
    "ASK": _KEY_BY_KEY,
    "TRYAGAIN": _KEY_BY_KEY,
    "CLUSTERDOWN": "no node of the cluster holds the slot of the shard; look at the state of its nodes (CLUSTER NODES)",
}


class UnsupportedServerError(ResponseError):
    """The server cannot hold jobs because of its mode; the message names the remedy."""


def refuse_unsupported_mode(hello_reply: object) -> None:
    """Raise UnsupportedServerError when the reply to HELLO, a mapping or a flat list, names an unsupported mode."""
    message = _BY_MODE.get(_mode(hello_reply))
    if message is not None:
        raise UnsupportedServerError(message)


def cluster_advice(error: RedisError, word: str) -> str | None:
    """Return the advice for an error that begins with this word, or ``None`` when it is not a cluster's error."""
    if isinstance(error, SlotMovedError):
        return _CLUSTER_STATES.get(word)
    return CLUSTER if word in _CLUSTER_ERRORS else None


def _mode(hello_reply: object) -> Any:
    if isinstance(hello_reply, Mapping):
        known = cast("Mapping[Any, Any]", hello_reply)
        return known.get(b"mode")
    if isinstance(hello_reply, list | tuple):
        return dict(_pairs(cast("Iterable[Any]", hello_reply))).get(b"mode")
    return None


def _pairs(flat: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    steps = iter(flat)
    return ((name, value) for name, value in zip(steps, steps, strict=False) if isinstance(name, bytes))


_NO_TLS = "the server does not speak TLS at this port: use its TLS port, or write redis:// and remove tls"
_ENDED = "TLS: the connection ended after the client's handshake and before any answer,"
_ENDED_PLAIN = "the connection, which has no SSL or TLS, ended before any answer"
_ENDED_WITHOUT_CERTIFICATE = f"{_ENDED} without a client certificate"
_ENDED_WITH_CERTIFICATE = f"{_ENDED} with a client certificate"
_ADVICE = (
    (("certificate has expired",), "its certificate has expired: renew it on the server"),
    (("certificate is not yet valid",), "its certificate is not valid yet: check the clocks of both hosts"),
    (
        ("Hostname mismatch", "IP address mismatch", "doesn't match"),
        "its certificate names another host: connect by a name that it has, or set tls.check_hostname: false",
    ),
    (
        ("CERTIFICATE_VERIFY_FAILED",),
        "its certificate is not signed by a trusted authority: set tls.ca_file to the authority's certificate",
    ),
    (
        ("CERTIFICATE_REQUIRED", "certificate required", "HANDSHAKE_FAILURE", "handshake failure"),
        "the server demands a client certificate: set tls.cert_file and tls.key_file (on the server: tls-auth-clients)",
    ),
    (
        ("UNKNOWN_CA", "unknown ca", "BAD_CERTIFICATE", "CERTIFICATE_EXPIRED"),
        "the server refuses the client certificate: tls.cert_file must be valid and signed by its tls-ca-cert-file",
    ),
    (
        (_ENDED_PLAIN,),
        "the server ended the connection before any answer: if this is its TLS port, write rediss:// or set tls: true",
    ),
    (
        (_ENDED_WITHOUT_CERTIFICATE,),
        "the server ended the connection, as if it demanded a client certificate: set tls.cert_file and tls.key_file",
    ),
    (
        (_ENDED_WITH_CERTIFICATE,),
        "the server ended the connection, as if it refused tls.cert_file: that must be valid and signed by its tls-ca-cert-file",
    ),
    (
        (
            "WRONG_VERSION_NUMBER",
            "RECORD_LAYER_FAILURE",
            "record layer failure",
            "UNEXPECTED_EOF_WHILE_READING",
            "_PROTOCOL]",
        ),
        _NO_TLS,
    ),
    (
        ("UNSUPPORTED_PROTOCOL", "PROTOCOL_VERSION", "NO_SHARED_CIPHER"),
        "client and server share no version of TLS or no cipher",
    ),
)


def tls_advice(error: BaseException | None) -> str | None:
    """Return the advice for a TLS error, or ``None`` for another error."""
    while error is not None:
        # A Redis without TLS takes the handshake for the start of a command and waits for the rest.
        if isinstance(error, TimeoutError) and _in_handshake(error):
            return _NO_TLS
        text = str(error)
        for words, advice in _ADVICE:
            if ("SSL" in text or "certificate" in text) and any(word in text for word in words):
                return advice
        error = error.__cause__ or error.__context__
    return None


def ended_unanswered(*, secure: bool, certified: bool) -> str:
    """Return the marker for ``tls_advice`` of a connection that the server ended before it answered.

    In TLS 1.3 the client's side of the handshake ends before the server checks the client's certificate. The refusal is an alert at
    the first read or, if the server has already closed the connection, only an end or a reset at the first read or write.
    """
    if not secure:
        return _ENDED_PLAIN
    return _ENDED_WITH_CERTIFICATE if certified else _ENDED_WITHOUT_CERTIFICATE


def _in_handshake(error: BaseException) -> bool:
    return any(frame.f_code.co_name == "do_handshake" for frame, _ in traceback.walk_tb(error.__traceback__))


def server_time(client: "redis.Redis") -> float:
    """Return the time of a server's clock, which decides what is due and what has expired. Raises redis errors."""
    return epoch_s(client.time())


def epoch_s(time_reply: Iterable[int]) -> float:
    """Return the reply of TIME (seconds and microseconds) as epoch seconds."""
    seconds, microseconds = time_reply
    return seconds + microseconds / 1_000_000
