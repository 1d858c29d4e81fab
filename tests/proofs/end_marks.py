"""End marks: what a job writes into the Redis it came from as its last act, past every proxy, so that the server's own history
says whether its acknowledgement came after its end (``scripts/prove history``).
"""

import os
import time
from functools import cache
from typing import Final

from redis import Redis
from redis.exceptions import RedisError

from framework.store.connect import Endpoint, open_client

STORES = "CHAOS_STORES"
"""The environment variable with the URLs of the servers themselves, one for each shard, as NAME=URL with spaces between."""

_PATIENCE_S: Final = 60.0
_PAUSE_S: Final = 0.02

# A removal first: a full server allows it, and then the rest of the script. One last, so that it is nobody's leak.
_MARK = """
redis.call('UNLINK', KEYS[1])
redis.call('SET', KEYS[1], ARGV[1])
redis.call('UNLINK', KEYS[1])
"""


# In the same Redis, so that one order of commands has both. A file of the job would carry another clock.
def mark(jid: str, shard: str = "main") -> None:
    """Say in the history of ``shard`` that this job has ended. It is there when this returns; a server that is away is waited for.

    Nothing is said where the environment names no server, as its history would not keep it.

    Raises:
        RedisError: it stayed away for a minute.
    """
    if STORES not in os.environ:
        return
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            _store(shard).eval(_MARK, 1, "proof:ended", jid)
        except RedisError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_S)
        else:
            return


@cache
def _store(shard: str) -> "Redis":
    stores = dict(entry.split("=", 1) for entry in os.environ[STORES].split())
    return open_client(Endpoint(stores[shard]), name="marks")
