"""Hold one fetched job: its bytes, the queue they came from, and the facts of its run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

from framework.store.script import Script
from framework.types import Payload
from framework.wire.resources import JobResources, Lock, Slot
from framework.wire.status_key import LastStatus, TrackedJob

FIRST_ASYNC_RUN_ID = 1 << 40
"""The first run id of async jobs: above every thread identifier."""


ADMITTED, FENCED = 1, -1
"""States of an ``Admission``: the job may start; another process owns it."""


class Admission(NamedTuple):
    """The answer of ``admit.lua`` for one job: its state, the slots taken, the limit, and the waiting jobs of its scope."""

    state: int
    taken: int
    limit: int
    waiting: int


@dataclass(slots=True)
class Preparation:
    """The decisions about a buffered job before it starts, made for several jobs at once (``execute/policy_decision.py``)."""

    payload: Payload
    admission: Admission | None = None
    """The answer for all remote policies of its class; ``None``: the job is to be asked for alone."""
    starts: bool = False
    """Whether the job starts without another question: it is admitted, and no policy has more to do."""
    local_outcome: object | None = None
    """The outcome that a local policy has decided. The policy is asked once."""
    moved: bool = False
    """Whether the job has left the working list: it is held or lost, and waits only for a thread that writes its line."""

    def note_moved(self, outcome: object) -> None:
        """Note the outcome of a job that a local policy has moved out of the working list."""
        self.local_outcome, self.moved = outcome, True


class ReleasedOnAck(NamedTuple):
    """What the acknowledgement of a job releases and writes: ``fetch.lua`` does it in one pass for many jobs."""

    slots: Sequence[Slot] = ()
    status: LastStatus | None = None
    lock: Lock | None = None
    fields: dict[str, Any] | None = None
    """All of it for a job that has more (``parts/release.lua``); ``None`` for most jobs."""


@dataclass(slots=True, eq=False)
class Move:
    """The move of an ended job to its next place. One call of ``script`` makes it with those of other jobs (``FetchPipeline``).

    The script gets ``names`` as keys, then ``shared``, and for each job its payload as fetched and ``arguments``. It replies with
    pairs of a position and a word, mostly with none. With the position of a job, from 1: 0 it was not found, 1 it stays in the
    working list, and is settled alone. With the position below 0 the job has moved, and an error text says what else has failed.
    With position 0 the number is for ``noted``.
    """

    script: Script
    names: tuple[str, ...]
    shared: tuple[str | int | float, ...]
    arguments: tuple[str | int | bytes, ...]
    sent: bool = False
    """Whether a call was sent before: after a lost reply the job may have moved, so that a later call does not find it."""
    settle_alone: Callable[[], object] | None = None
    """Settles the job by a call of its own, in another thread."""

    def note_sent(self) -> bool:
        """Note that a call is about to be sent; return whether one was sent before."""
        before, self.sent = self.sent, True
        return before

    def moved(self) -> None:
        """Redis has moved the job."""

    def noted(self, number: int) -> None:
        """Receive the number that the script returns for all jobs of the call."""

    def stays(self) -> None:
        """The script has left the job in the working list, and it has left its place in this process."""
        if self.settle_alone is not None:
            self.settle_alone()

    def refused(self, error: Exception) -> None:
        """Redis has refused the call: the job is in the working list, and has left its place in this process."""
        if self.settle_alone is None:
            raise error
        self.settle_alone()


@dataclass(slots=True, eq=False)
class UnitOfWork:
    """One fetched job. ``data`` never changes: LREM finds the job in the working list by exactly these bytes.

    ``InFlight`` notes the start. From then on only the thread of the job changes the unit; other threads read each field once.
    """

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
    running_status: tuple[str, str] | None = None
    """The status key and its seconds of a tracked job that runs: its state is to be ``running`` (``InFlight.unshown``)."""
    released_on_ack: ReleasedOnAck | None = None
    """The resources and the state that its acknowledgement releases and writes; ``None`` for none."""
    move: Move | None = None
    """The move of its end, which the next call makes; ``None`` for a job that is acknowledged, or has moved."""
    extra_fields: Payload | None = None
    """Fields that a policy adds to the payload if the job is delayed or retried."""

    granted: Slot | None = None
    """The slot with which the job came: it has waited at a limit, and the end of another job has given it this slot."""
    prepared: Preparation | None = None
    """The decisions about the job before its start; ``None`` for a job that is decoded when it starts."""
    payload_without_args: Payload | None = None
    """The decoded fields of a large running job, so that a reader of running jobs need not decode them again."""

    @classmethod
    def with_slot(cls, queue: str, data: bytes, fetched_at: float, slot: Slot) -> Self:
        """Return the unit of a job that came with its slot, which it releases wherever it goes."""
        return cls(queue, data, fetched_at, granted=slot, resources=JobResources(None, [slot]))

    def note_resources(self, named: JobResources | None) -> None:
        """Note the resources that the payload names. A job that came with a slot keeps it, and no other one is reserved for it."""
        if self.granted is not None:
            named = replace(named or JobResources(), slots=[self.granted])
        self.resources = named

    @property
    def run_id(self) -> int:
        """The key of its run in the process record: its thread, or for an async job a number that no thread has."""
        return self.thread or FIRST_ASYNC_RUN_ID + self.run_index

    def resources_on_requeue(self, *, stays_without_lock: bool = False, ran: TrackedJob | None = None) -> str:
        """Return the script argument for its resources when it returns to its queue; empty for none.

        ``stays_without_lock``: the job does not return if another job has its lock meanwhile. ``ran``: the tracked job, if it ran.
        """
        # Read once: the thread of the job may release them meanwhile.
        released, resources = self.released_lock, self.resources
        status = None if ran is None else ran.queued_command(None)
        if released is not None:
            resources = JobResources(released, resources.slots if resources is not None else [])
        if resources is None:
            return JobResources().on_requeue(status) if status is not None else ""
        return resources.on_requeue(status, stays_without_lock=stays_without_lock)

    @property
    def has_moved(self) -> bool:
        """Whether the job has left the working list before a thread was free for it."""
        return self.prepared is not None and self.prepared.moved

    @property
    def acknowledged_with_others(self) -> bool:
        """Whether its acknowledgement may wait for those of others: no duplicate may cause one more run, and nothing follows it."""
        resources = self.resources
        return resources is None or (resources.next_run is None and resources.on_removed is None)

    @property
    def lock_with_rerun(self) -> Lock | None:
        """The lock of a job that runs once more if a duplicate came, and whose removal nothing follows; ``None`` for most jobs."""
        resources = self.resources
        if resources is None or resources.next_run is None or resources.on_removed is not None:
            return None
        return resources.lock

    @property
    def admission(self) -> Admission | None:
        """The answer of the script that has asked for this job and others; ``None`` if the job needs a call of its own."""
        return None if self.prepared is None else self.prepared.admission

    def forget_move(self) -> None:
        """Note that the job is not moved with others: it is settled alone."""
        self.move = None

    def mark_stale(self) -> None:
        """Let the job start only after the fetcher has seen that the lease is held."""
        self.fetched_at = 0.0

    def note_running(self, status: tuple[str, str]) -> None:
        """Note that the state of the job, with this key and its seconds, is to be ``running``."""
        self.running_status = status

    def leave_thread(self) -> None:
        """Note that the job continues without a thread of its own: its run id becomes that of an async run."""
        self.thread = 0

    def end_perform(self) -> None:
        """Note that the job's own code has returned: a stop does not interrupt it any more."""
        self.performing_since = 0.0

    def show_payload(self, payload: Payload) -> None:
        """Keep the decoded fields without the arguments, for readers of running jobs."""
        self.payload_without_args = {name: value for name, value in payload.items() if name != "args"}

    def add_fields(self, fields: Payload) -> None:
        """Add these fields to the payload if the job is delayed or retried."""
        self.extra_fields = fields

    def keep_blob(self) -> None:
        """Let the end of the job delete nothing: another job may have its offloaded arguments."""
        if self.resources is not None:
            self.resources.on_removed = None

    def own_resources(self) -> JobResources:
        """Return the resources of the job, to which the caller adds some."""
        if self.resources is None:
            self.resources = JobResources()
        return self.resources

    def release_on_ack(self, status: LastStatus | None) -> None:
        """Let the acknowledgement release the resources of the job, and write ``status``: key, state and seconds."""
        resources = self.resources
        if resources is None:
            self.released_on_ack = ReleasedOnAck((), status)
        elif resources.is_simple:
            self.released_on_ack = ReleasedOnAck(resources.slots, status, resources.lock)
        else:
            self.released_on_ack = ReleasedOnAck(fields=resources.end_fields(status))

    def release_lock(self, lock: Lock) -> None:
        """Note that the job has released its lock. Without other resources it then ends without releasing anything."""
        self.released_lock = lock
        self.leave_lock()

    def leave_lock(self) -> None:
        """Forget the lock: no later step of the job releases or renews it."""
        if self.resources is not None:
            self.resources.lock = None
            if not (
                self.resources.slots or self.resources.awaited is not None or self.resources.on_removed is not None
            ):
                self.resources = None
