"""Hold one fetched job: its bytes, the queue they came from, and the facts of its run."""

from dataclasses import dataclass

from framework.types import Payload
from framework.wire.resources import JobResources, Lock

FIRST_ASYNC_RUN_ID = 1 << 40
"""The first run id of async jobs: above every thread identifier."""


@dataclass(slots=True, eq=False)
class UnitOfWork:
    """One fetched job. ``data`` never changes: LREM finds the job in the working list by these very bytes."""

    queue: str
    data: bytes
    fetched_at: float = 0.0
    """When the fetch was sent, in seconds of the fetcher's clock: the fetch renewed the lease then or later."""
    run_index: int = -1
    """Its place among the running jobs of the process, from 0."""
    started_at: float = 0.0
    """Epoch seconds; 0 until it runs."""
    thread: int = 0
    """Identifier of the thread that runs it."""
    performing_since: float = 0.0
    """When ``perform`` began (``time.perf_counter``); 0 while the job waits for a policy or its turn, and after it has ended."""
    resources: JobResources | None = None
    """Its lock and slots; ``None`` for most jobs, which have neither."""
    released_lock: Lock | None = None
    """The lock that was released at its start; if the job returns to its queue, it takes the lock again if that is free."""
    extra_fields: Payload | None = None
    """Fields that a policy adds to the payload if the job is delayed or retried."""

    payload_without_args: Payload | None = None
    """The decoded fields of a large running job, so that a reader of running jobs need not decode them again."""

    @property
    def run_id(self) -> int:
        """The key of its run in the process record: its thread, or for an async job a number that no thread has."""
        return self.thread or FIRST_ASYNC_RUN_ID + self.run_index

    def resources_on_requeue(self) -> str:
        """Return the script argument for its resources when it returns to its queue; empty for none."""
        # Read once: the thread of the job may release them meanwhile.
        released, resources = self.released_lock, self.resources
        if released is not None:
            return JobResources(released, resources.slots if resources is not None else []).on_requeue()
        return resources.on_requeue() if resources is not None else ""
