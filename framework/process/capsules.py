"""The capsules of one process: each fetches from its queues and runs its jobs."""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from redis.exceptions import RedisError

from framework.errors import PayloadError
from framework.execute.processor import Processor
from framework.fetch.fetcher import Fetcher
from framework.fetch.unit_of_work import UnitOfWork
from framework.process.own_queues import CapsulePlan
from framework.wire.job import decode

# A process has one capsule, ``default``, unless it is given others. They share the identity, the lease, the record and the stop.


@dataclass(frozen=True, slots=True)
class Capsule:
    """One capsule: its plan, and the parts that fetch and run its jobs."""

    plan: CapsulePlan
    fetcher: Fetcher
    processor: Processor


class Capsules:
    """All capsules of a process, at least one. Each method acts on all of them."""

    def __init__(self, capsules: Sequence[Capsule]) -> None:
        self._capsules = tuple(capsules)
        self.first = self._capsules[0]

    def __iter__(self) -> Iterator[Capsule]:
        return iter(self._capsules)

    def start(self) -> None:
        for one in self:
            one.processor.start()

    def ensure_fetching(self) -> None:
        """Start the threads that the system could not start earlier."""
        for one in self:
            one.processor.ensure_fetching()

    def running(self) -> list[UnitOfWork]:
        """Return the units whose jobs run, by capsule, oldest first."""
        return [unit for one in self for unit in one.fetcher.in_flight.running()]

    def async_stacks(self) -> list[tuple[str, list[str]]]:
        """Return (jid, lines) of every async job: all capsules share the event loop."""
        return self.first.processor.async_stacks()

    @property
    def fetching(self) -> bool:
        return all(one.fetcher.fetching for one in self)

    @property
    def active_at(self) -> float:
        """When the capsule that has been idle for longest last led, acknowledged or started a job, in monotonic seconds."""
        return min(one.fetcher.active_at for one in self)

    @property
    def connection_lost_at(self) -> float | None:
        """When a blocking call was last closed without an answer (monotonic seconds); ``None``: never."""
        lost = [at for one in self if (at := one.fetcher.connection_lost_at) is not None]
        return max(lost, default=None)

    def pause(self, queues: Collection[str]) -> None:
        """Skip exactly these queues from now on."""
        for one in self:
            one.fetcher.pause(queues)

    def reconcile(self) -> None:
        """Return the jobs of lost replies to their queues. Raises redis errors."""
        self._each(lambda one: one.fetcher.reconcile())

    def quiet(self) -> None:
        """Fetch no more jobs, and continue to acknowledge those in flight until ``stop``."""
        for one in self:
            one.fetcher.quiet()

    def stop(self) -> None:
        """Fetch no more jobs; each thread ends after its job."""
        for one in self:
            one.processor.stop()

    def return_buffered(self, timeout_s: float) -> None:
        """After ``stop``: end the calls under way, and return the jobs that have not started. Raises redis errors."""
        deadline = time.monotonic() + timeout_s
        self._each(lambda one: one.fetcher.shutdown(max(0.0, deadline - time.monotonic())))

    def acknowledge_all(self) -> None:
        """Wait until every ended unit is acknowledged and confirmed. Raises redis errors."""
        self._each(lambda one: one.fetcher.acknowledge_all())

    def join(self, timeout_s: float) -> bool:
        """Wait at most ``timeout_s`` for a thread to end; return whether every job has ended."""
        for one in self:
            if not one.processor.join(0):
                return one.processor.join(timeout_s) and self.join(0)
        return True

    def cancel_async(self, timeout_s: float) -> None:
        """Cancel the async jobs and give them ``timeout_s`` to clean up."""
        self.first.processor.cancel_async(timeout_s)

    def stop_settling(self) -> None:
        """Settle no further job: the launcher returns the jobs in flight to their queues."""
        for one in self:
            one.processor.stop_settling()

    def close(self) -> None:
        """End the threads and close the connections, after ``join``."""
        for one in self:
            one.processor.close()
            one.fetcher.close()

    def _each(self, step: Callable[[Capsule], None]) -> None:
        """Take a step for every capsule; a refusal for one must not keep the jobs of another. Raises the first refusal."""
        refusal: RedisError | OSError | None = None
        for one in self:
            try:
                step(one)
            except (RedisError, OSError) as error:
                refusal = refusal or error
        if refusal is not None:
            raise refusal


def payload_field(unit: UnitOfWork, name: str) -> str | None:
    """Return a field of the payload as text, ``None`` for a malformed payload."""
    try:
        payload = decode(unit.data) if unit.payload_without_args is None else unit.payload_without_args
    except PayloadError:
        return None
    return str(payload.get(name))
