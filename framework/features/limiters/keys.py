"""Name the keys of rate limiters."""

NAMES = "aw:limiters"
"""ZSET of the names of the rate limiters in use; score: when their facts expire, in seconds of Redis's clock."""


def limiter(name: str) -> str:
    """HASH with a TTL: the rule of a rate limiter, the limit that operators have set, and its counts."""
    return f"aw:limiter:{name}"


def state(name: str, key: str) -> str:
    """ZSET of holders of a concurrent limiter, else HASH, with a TTL: what is used for one key (``scripts/parts/limiter.lua``)."""
    return f"aw:limiter:{name}:{key}"
