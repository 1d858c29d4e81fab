"""Servers that speak Redis and hold no jobs for us: a node of a Redis Cluster, and a Sentinel.

The greeting tells: HELLO, which begins each RESP3 connection, names the server's mode, and no ACL can refuse it. So the question
costs no push a round trip and needs no right. Behind a proxy that has no HELLO, the refusals of a cluster tell.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from redis.exceptions import ResponseError

CLUSTER = (
    "this Redis is a node of a Redis Cluster, which is not supported yet: take a Redis without cluster mode "
    "(cluster-enabled no), or one that Sentinels keep"
)
SENTINEL = (
    "this is a Sentinel, which holds no jobs: write redis+sentinel://HOST:PORT/NAME/DB, or use the setting sentinels"
)

_BY_MODE = {b"cluster": CLUSTER, b"sentinel": SENTINEL}
_CLUSTER_ERRORS = ("MOVED", "ASK", "CROSSSLOT", "CLUSTERDOWN", "TRYAGAIN")


class UnsupportedServerError(ResponseError):
    """The server answers, and is of a kind that cannot hold jobs; the message says what to take instead."""


def refuse_unsupported_mode(hello_reply: object) -> None:
    """Raise UnsupportedServerError when a server's reply to HELLO, a mapping or its flat form, names a mode that cannot serve."""
    told = _BY_MODE.get(_mode(hello_reply))
    if told is not None:
        raise UnsupportedServerError(told)


def cluster_advice(word: str) -> str | None:
    """Return what to say of a refusal that begins with this word, ``None`` when it is none of a cluster's."""
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
