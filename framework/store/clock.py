"""Read the clock of a Redis server."""

from collections.abc import Iterable

import redis


def server_time(client: "redis.Redis") -> float:
    """Return the time of a server's clock, which decides what is due and what has expired. Raises redis errors."""
    return epoch_s(client.time())


def epoch_s(time_reply: Iterable[int]) -> float:
    """Return the reply of TIME (seconds and microseconds) as epoch seconds."""
    seconds, microseconds = time_reply
    return seconds + microseconds / 1_000_000
