"""Make jobs as all kinds of producers write them, and malformed bytes."""

import json
import time
from collections.abc import Callable
from typing import Any


def _plain(jid: str, queue: str, **more: Any) -> bytes:
    now = round(time.time(), 3) + 0.000001
    fields = {"class": "Proof", "args": [1], "queue": queue, "jid": jid, "retry": True, "created_at": now}
    return json.dumps({**fields, "enqueued_at": now, **more}, separators=(",", ":"), ensure_ascii=False).encode()


def _ruby(jid: str, queue: str) -> bytes:
    """Return a job of Sidekiq 8, with fields of its extensions, and spaces."""
    head = f'{{"retry": true, "queue": "{queue}", "bid": "b-{jid}", "args": [1.0, "\\u00e9", null], "class": "Proof", '
    tail = (
        f'"jid": "{jid}", "cattr": {{"x": [{{"y": 1e2}}]}}, "created_at": 1750000000123, "enqueued_at": 1750000000456}}'
    )
    return (head + tail).encode()


KINDS: dict[str, Callable[[str, str], bytes]] = {
    "plain": _plain,
    "foreign text": lambda jid, queue: _plain(
        jid, queue, args=['ü \u2028 \\ " 😀', {"é": [None, -0.5]}], extra={"z": 1}
    ),
    "large numbers": lambda jid, queue: _plain(jid, queue, args=[2**80, -(2**63) - 1, 0.1]),
    "ruby": _ruby,
    "cannot be written again": lambda jid, queue: _plain(jid, queue, extra=5).replace(b'"extra":5', b'"extra":1e999'),
    "tracked": lambda jid, queue: _plain(jid, queue, status_expiration=60),
    "one retry": lambda jid, queue: _plain(jid, queue, retry=1),
    "no retry": lambda jid, queue: _plain(jid, queue, retry=False),
    "unknown class": lambda jid, queue: _plain(jid, queue, **{"class": "Unknown"}),
    "retired class": lambda jid, queue: _plain(jid, queue, **{"class": "Gone"}),
    "for another shard": lambda jid, queue: _plain(jid, queue, aw_shard="second"),
    "limited": lambda jid, queue: _plain(jid, queue, **{"class": "Limited"}),
    "suspect": lambda jid, queue: _plain(jid, queue, aw_suspect=True, aw_death_count=2),
    "stopped twice": lambda jid, queue: _plain(jid, queue, interrupted_count=2),
}

GARBAGE: tuple[Callable[[int], bytes], ...] = (
    lambda number: b"\x00\xff\r\n not json %d" % number,
    lambda number: b"[%d]" % number,
    lambda number: b'{"class":"Proof","args":[%d' % number,
    lambda number: b'{"args":[],"jid":"without-a-class-%d","queue":"a"}' % number,
    lambda number: b'{"class":"Proof","args":[],"jid":"without-a-queue-%d"}' % number,
)
