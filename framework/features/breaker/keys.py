"""Name the keys of breakers."""

BREAKERS = "aw:breakers"
"""SET of the wire names of the classes whose breaker has state on this shard."""


def breaker(worker: str) -> str:
    """HASH with a TTL of a class's breaker: ``state``, ``until``, ``wait``, ``cause``, ``reason``, ``probe``, and the counts of runs.

    ``:owners`` (ZSET) has the processes that run the class, ``:deaths`` (ZSET) those that died while they did.
    """
    return f"aw:breaker:{worker}"
