"""Run awaited pushes in threads. Each shard has its own: a silent shard stops no push to another."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from framework.call_threads import CallThreads
from framework.declare import port
from framework.declare.declaration import Declaration

R = TypeVar("R")

_MAX_THREADS, _MAX_BULK_THREADS = 12, 4
"""Together as many as a shard keeps idle connections: no thread needs a connection for one push only."""

# A single push never waits behind a bulk. The first push of the process builds the client, which takes some 100 ms.
_building = CallThreads(1)
_threads: dict[tuple[str, bool], CallThreads] = {}


# An awaited push is a push in a thread of its shard: the same code, and no second client to prove.
async def run(declaration: Declaration, options: Mapping[str, Any], push: Callable[[], R], *, is_bulk: bool) -> R:
    """Call ``push`` in a thread of the shard of the class with these options; return its result or raise its error."""
    client = port.client.bound
    if client is None:
        client = await _building.run(port.current)
    shard = options.get("shard") or client.route(declaration).shard
    threads = _threads.get((shard, is_bulk))
    if threads is None:
        made = CallThreads(_MAX_BULK_THREADS if is_bulk else _MAX_THREADS)
        # Two event loops may ask at once: both use the threads that are in the dict.
        threads = _threads.setdefault((shard, is_bulk), made)
    return await threads.run(push)
