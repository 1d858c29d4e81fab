"""A job in custody: its bytes as fetched and the queue they came from, and, once it runs, since when and where."""

from dataclasses import dataclass

from framework.types import Payload
from framework.wire.resources import JobResources, Lock

FIRST_ASYNC_RUN_ID = 1 << 40
"""Where the numbers of async runs begin, which no thread has."""


@dataclass(slots=True, eq=False)
class UnitOfWork:
    """One fetched job. ``data`` is never changed: the working list is searched for these very bytes."""

    queue: str
    data: bytes
    fetched_at: float = 0.0
    """Seconds of the fetcher's clock, when it was asked for: our lease was renewed then or later."""
    run_index: int = -1
    """The slot that it occupies while it runs."""
    started_at: float = 0.0
    """Epoch seconds; 0 until it runs."""
    thread: int = 0
    """Identifier of the thread that runs it."""
    performing_since: float = 0.0
    """When the code of its class began to run (``time.perf_counter``); 0 before, while it waits at a gate or for its turn, and once
    it has ended or given way."""
    resources: JobResources | None = None
    """Its lock and its slots; ``None`` for most jobs, which have neither."""
    released_lock: Lock | None = None
    """The lock that it let go of as it began: should it go back to its queue, it takes it again if it is free."""
    extra_fields: Payload | None = None
    """Fields that a policy has found out before its run: its payload has them when it waits for another."""

    payload_without_args: Payload | None = None
    """Its fields but for the arguments, of a large one that runs: what shows it need not decode it once more."""

    @property
    def run_id(self) -> int:
        """What its run is told apart by in the process record: its thread; of an async job, which has none, a number by its slot."""
        return self.thread or FIRST_ASYNC_RUN_ID + self.run_index

    def resources_on_requeue(self) -> str:
        """Return what a script is told of what it holds when it goes back to its queue; empty for nothing."""
        gave, holds = (
            self.released_lock,
            self.resources,
        )  # read once: the thread of the job may let go of them meanwhile
        if gave is not None:
            return JobResources(gave, holds.slots if holds is not None else []).on_requeue()
        return holds.on_requeue() if holds is not None else ""
