"""Write end marks: the last act of a job, into the Redis it came from, past every proxy.

The server's own history then shows whether an acknowledgement came after the end of its job (``scripts/prove
history``).
"""

import os
import time
from functools import cache
from typing import Final

from redis import Redis
from redis.exceptions import RedisError

from framework.store.connect import Endpoint, open_client

STORES = "CHAOS_STORES"
"""The environment variable with the URLs of the servers, one for each shard, as NAME=URL with spaces between."""

_PATIENCE_S: Final = 60.0
_PAUSE_S: Final = 0.02

# A removal comes first: a full server accepts it, and then the rest of the script. One comes last, so that no key
# stays.
_MARK = """
redis.call('UNLINK', KEYS[1])
redis.call('SET', KEYS[1], ARGV[1])
redis.call('UNLINK', KEYS[1])
"""


# In the same Redis, so that one order of commands has both. A file of the job would use another clock.
def mark(jid: str, shard: str = "main") -> None:
    """Write into the history of ``shard`` that this job has ended; wait for a server that is away.

    Do nothing where the environment names no server, since no history keeps the mark.

    Raises:
        RedisError: the server stayed away for a minute.
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
