"""Connect to PostgreSQL so that no statement waits without a deadline of this process.

``statement_timeout`` is kept by the server. A server that is suspended, and a host that still acknowledges packets, keep none.
"""

import time
from collections.abc import Generator
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psycopg

# How often a wait for the server checks its deadline.
_POLL_S = 0.1
_NO_DEADLINE = float("inf")


@cache
def bounded_connection() -> "type[psycopg.Connection[Any]]":
    """Return a connection class whose waits raise TimeoutError after its ``deadline`` (monotonic clock). Raises ImportError."""
    import psycopg  # noqa: PLC0415 - loaded only where a database is configured

    class BoundedConnection(psycopg.Connection[Any]):
        deadline = _NO_DEADLINE

        def wait(self, gen: Any, interval: float = _POLL_S, timeout: float | None = None) -> Any:
            # The driver has a timeout of its own since 3.3.
            del timeout
            return super().wait(_run_until(gen, self.deadline), min(interval, _POLL_S))

    return BoundedConnection


def _run_until(work: Generator[Any, Any, Any], deadline: float) -> Generator[Any, Any, Any]:
    """Run the driver's generator, which is resumed every ``_POLL_S``, until the deadline."""
    try:
        wanted = next(work)
        while True:
            ready = yield wanted
            if time.monotonic() > deadline:
                raise TimeoutError("the database did not answer in time")
            wanted = work.send(ready)
    except StopIteration as end:
        return end.value
