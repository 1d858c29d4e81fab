"""The components of one worker process, which ``framework.wiring`` builds and the launcher runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from framework.process.blocking_queues import BlockingQueues
from framework.process.capsules import Capsules
from framework.process.events import ProcessEvents
from framework.process.heartbeat import ProcessLease
from framework.process.metrics import SidekiqMetrics
from framework.process.push_back import PushBack
from framework.process.record import ProcessRecord
from framework.process.shared_state import SharedState
from framework.process.title import Title
from framework.process.unserved import UnservedWatch
from framework.process.worker_parts import ProcessContext, WorkerParts
from framework.recover.reaper import Reaper
from framework.schedule.poller import Poller
from framework.timings import Timings


class Closeable(Protocol):
    """A client or a pool of channels."""

    def close(self) -> None:
        """Close the connections."""


@dataclass
class ProcessComponents:
    """The components of one process, built by ``framework.wiring``."""

    process: ProcessContext
    capsules: Capsules
    blocking: BlockingQueues
    lease: ProcessLease
    record: ProcessRecord
    metrics: SidekiqMetrics
    title: Title
    poller: Poller
    reaper: Reaper
    parts: WorkerParts
    """What is read again and done every few seconds, by features and the core."""
    push_back: PushBack
    poll_interval_s: float
    timeout_s: float
    supervisor: int | None
    """The process id of the supervisor, ``None`` without one."""
    shared_state: SharedState
    unserved: UnservedWatch
    connections: Sequence[Closeable] = ()
    """The clients and channels of the components."""

    @property
    def events(self) -> ProcessEvents:
        return self.process.events

    @property
    def timings(self) -> Timings:
        return self.process.timings

    def close(self) -> None:
        """Close every connection, after the end of all threads. A process of its own ends instead."""
        self.capsules.close()
        for one in self.connections:
            one.close()
