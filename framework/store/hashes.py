"""Read many hashes of Redis with few commands."""

from collections.abc import Sequence

import redis

from framework.store.script import READ_HASHES

_AT_ONCE = 100
"""The hashes of one command: Redis serves other clients in between."""


def read_hashes(client: "redis.Redis", names: Sequence[str], fields: Sequence[str] = ()) -> list[dict[bytes, bytes]]:
    """Return these fields of each hash, or all, as far as it has them; a key of another type has none. Raises redis errors."""
    words = [one.encode() for one in fields]
    found: list[dict[bytes, bytes]] = []
    for at in range(0, len(names), _AT_ONCE):
        replies: list[list[bytes | None]] = READ_HASHES(client, names[at : at + _AT_ONCE], list(words))
        found += [_fields(words, one) for one in replies]
    return found


def _fields(words: Sequence[bytes], reply: Sequence[bytes | None]) -> dict[bytes, bytes]:
    pairs = zip(words, reply, strict=False) if words else zip(reply[::2], reply[1::2], strict=True)
    return {name: value for name, value in pairs if name is not None and value is not None}
