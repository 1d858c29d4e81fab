"""Detect servers that speak the Redis protocol but cannot hold jobs: nodes of a Redis Cluster, and Sentinels.

The reply to HELLO, with which each RESP3 connection starts, names the server's mode, and no ACL can refuse HELLO. So the check
costs no round trip and needs no right. Behind a proxy without HELLO, the errors of a cluster show the mode.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from redis.exceptions import ResponseError

CLUSTER = (
    "this Redis is a node of a Redis Cluster, which is not supported yet: use a Redis without cluster mode "
    "(cluster-enabled no), or a master with Sentinels"
)
SENTINEL = (
    "this is a Sentinel, which holds no jobs: write redis+sentinel://HOST:PORT/NAME/DB, or use the setting sentinels"
)

_BY_MODE = {b"cluster": CLUSTER, b"sentinel": SENTINEL}
_CLUSTER_ERRORS = ("MOVED", "ASK", "CROSSSLOT", "CLUSTERDOWN", "TRYAGAIN")


class UnsupportedServerError(ResponseError):
    """The server cannot hold jobs because of its mode; the message names the remedy."""


def refuse_unsupported_mode(hello_reply: object) -> None:
    """Raise UnsupportedServerError when the reply to HELLO, a mapping or a flat list, names an unsupported mode."""
    message = _BY_MODE.get(_mode(hello_reply))
    if message is not None:
        raise UnsupportedServerError(message)


def cluster_advice(word: str) -> str | None:
    """Return the advice for an error that begins with this word, or ``None`` when it is not a cluster's error."""
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
