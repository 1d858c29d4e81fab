"""Read the clock of a Redis server."""

import redis


def server_time(client: "redis.Redis") -> float:
    """Return the time of a server's clock, which decides what is due and what has expired. Raises redis errors."""
    seconds, microseconds = client.time()
    return seconds + microseconds / 1_000_000
