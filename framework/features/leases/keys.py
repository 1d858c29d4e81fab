"""Name the keys of exclusive leases."""

EXCLUSIVE_LEASES = "aw:exclusive_leases"
"""ZSET of the names of the exclusive leases of the application; score: when each ends, in seconds of Redis's clock."""


def exclusive_lease(name: str) -> str:
    """HASH with a TTL: the token and the holder of an exclusive lease (``framework.lease``)."""
    return f"aw:exclusive_lease:{name}"
