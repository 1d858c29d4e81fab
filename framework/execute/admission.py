"""Ask the policies of a class before its job runs. A policy may hold, defer or drop the job, or take slots of a limit for it."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, Self, TypeAlias, runtime_checkable

import redis

from framework.declare.declaration import Declaration, PerClass
from framework.errors import StoredBlocksError
from framework.execute.next_jobs import NextJobs
from framework.fetch.held_blocks import packed_held, unpack_next
from framework.fetch.unit_of_work import UnitOfWork
from framework.finish.outcome import NotAdmitted
from framework.store.connect import server_time
from framework.store.script import RELEASE_WAITING, RENEW_SLOTS, TAKE_SLOT
from framework.store.steps import BoundedSteps
from framework.timings import STANDARD, Timings
from framework.types import Payload
from framework.wire import keys
from framework.wire.job import BUFFERED_AT, timestamp
from framework.wire.resources import Slot, reservations, slot_id, slot_member
from framework.wire.sub_queues import start_queue


@dataclass(slots=True)
class AdmissionRequest:
    """The job that a policy is asked about: its unit, its payload with decompressed arguments, and its class."""

    unit: UnitOfWork
    payload: Payload
    declaration: Declaration
    worker: Any
    next_jobs: NextJobs | None = None
    """The jobs that start next, if the policy may answer for those of the class too."""


class AdmissionPolicy(Protocol):
    """One policy. Safe from any thread."""

    def applies_to(self, declaration: Declaration) -> bool:
        """Return whether this policy concerns the class. Asked once per class, until ``AdmissionChain.invalidate``."""
        ...

    def admit(self, request: AdmissionRequest) -> NotAdmitted | None:
        """Return ``None`` to admit the job; else its outcome, or ``Lost`` if another process owns it.

        May raise redis errors: the job is in the working list, and the policy is asked again when Redis answers. The policy
        handles its other errors, so that jobs run.
        """
        ...


@runtime_checkable
class RememberedPolicy(Protocol):
    """A local policy that may know one answer for all jobs of a class, so that it need not be asked for each job."""

    def admits_all(self, declaration: Declaration) -> bool:
        """Return whether it admits every job of the class now. Reads only memory."""
        ...


EncodedTerms: TypeAlias = tuple[str, ...]
"""What the jobs of one class share, as arguments of ``admit.lua``."""


@dataclass(slots=True, eq=False)
class ClassTerms:
    """Hold what the policies of a class ask of ``admit.lua`` for each of its jobs from one queue."""

    declaration: Declaration
    queue: str
    owner: str = ""
    """The owner of the working list, of which the slots have their names."""
    base: str = ""
    """The key of the limit of which each job takes a slot; empty for none."""
    limit: str = "0"
    """The limit, as scripts take it (``parts/slots.lua``)."""
    share: int = 0
    """The most slots of one scope; 0 for no maximum."""
    slot_ttl_s: int = 0
    may_wait: bool = True
    """Whether a job waits for a slot if none is free; else it is refused."""
    scope_of: Callable[[Payload], str] | None = None
    """Returns the scope of a job; ``None`` if the jobs have none."""
    has_lock: bool = False
    """Whether the locks of the jobs are released or renewed when they start."""
    keeps_lock: bool = False
    keeps_period: bool = False
    """Whether a lock that is kept lasts for its time whatever becomes of the job."""
    acts_after: bool = False
    """Whether a policy has more to do when a job is admitted: then its ``admit`` is called."""
    alone: bool = False
    """Whether each policy is to be asked about each job alone: it needs two slots."""
    lasting: bool = True
    """Whether the terms stay the same until ``AdmissionChain.invalidate``: no function of the application has a part in them."""
    encoded: dict[tuple[float, bool, str], EncodedTerms] = field(
        default_factory=dict[tuple[float, bool, str], EncodedTerms]
    )
    """The terms as arguments of the script, by what jobs of one class may differ in (``GroupAdmission``)."""

    def ask_slot(self, base: str, owner: str, limit: str, ttl_s: int) -> bool:
        """Ask for a slot; return ``False`` if the jobs ask for another one already: then they are asked for alone."""
        if self.base:
            self.alone = True
            return False
        self.base, self.owner, self.limit, self.slot_ttl_s = base, owner, limit, ttl_s
        return True


@runtime_checkable
class GroupedPolicy(Protocol):
    """A policy whose question one script can answer for many jobs at once (``GroupAdmission``).

    Its ``admit`` reads the answer in ``request.unit.admission``, and asks for the job alone if there is none. Once the job is
    admitted, it is called only if ``prepare`` has set ``acts_after``, or if the job has waited for a slot.
    """

    def may_wait(self, declaration: Declaration) -> bool:
        """Return whether ``prepare`` runs code of the application for this class."""
        ...

    def prepare(self, terms: ClassTerms) -> None:
        """Add to ``terms`` what this policy asks for each job of the class. May raise redis errors."""
        ...


class ClassPolicies(NamedTuple):
    """The policies that concern one class, in their order."""

    local: tuple[AdmissionPolicy, ...]
    """Those that answer from the memory of the process."""
    remote: tuple[AdmissionPolicy, ...]
    """Those that ask Redis."""
    grouped: tuple[GroupedPolicy, ...]
    """The remote policies that one script can answer for many jobs at once."""
    may_wait: bool
    """Whether the question runs code of the application, which may be slow."""
    remembered: tuple[RememberedPolicy, ...] | None
    """The local policies, if each may know its answer for the whole class; ``None`` if one must see each job."""
    terms: dict[str, ClassTerms]
    """The lasting terms of the class by queue. Two threads may compute the same."""

    def local_admit_all(self, declaration: Declaration) -> bool:
        """Return whether the local policies admit every job of the class now."""
        if self.remembered is None:
            return False
        # A loop, not `all`: a generator costs more than the checks.
        for policy in self.remembered:  # noqa: SIM110
            if not policy.admits_all(declaration):
                return False
        return True

    def terms_of(self, declaration: Declaration, queue: str) -> ClassTerms:
        """Return the terms of the grouped policies for each job of the class from ``queue``. May raise redis errors."""
        known = self.terms.get(queue)
        if known is None:
            known = ClassTerms(declaration, queue)
            for policy in self.grouped:
                policy.prepare(known)
            if known.lasting:
                self.terms[queue] = known
        return known

    @property
    def can_group(self) -> bool:
        return len(self.grouped) == len(self.remote)


AdmissionStage: TypeAlias = Literal["end", "hold", "queue_slot", "class_slot", "check", "lock"]

LOCAL_STAGES: Sequence[AdmissionStage] = ("end", "hold")
"""The stages of policies that answer from the memory of the process.

First those that end the job: a job that an operator drops is not held before. Then those that hold or delay it and acquire nothing.
"""

REMOTE_STAGES: Sequence[AdmissionStage] = ("queue_slot", "class_slot", "check", "lock")
"""The stages of policies that ask Redis.

A queue's slot comes before a class's: a job that waits for a slot of its class releases the slot of its queue. A check may send
the job away once more. The lock comes last: a job that was sent away earlier still owns it.
"""


class StagedPolicy(NamedTuple):
    """A policy and its stage."""

    stage: AdmissionStage
    policy: AdmissionPolicy


class AdmissionChain:
    """Hold the policies in their order: first the ``local`` ones, then the ``remote`` ones, which ask Redis.

    A job pays only for the policies that concern its class.
    """

    @classmethod
    def of(cls, admissions: Sequence[StagedPolicy]) -> Self:
        """Return the chain of these policies by stage; those of one stage keep their order."""
        remote, local = (
            [one.policy for stage in stages for one in admissions if one.stage == stage]
            for stages in (REMOTE_STAGES, LOCAL_STAGES)
        )
        return cls(remote, local)

    def __init__(self, remote: Sequence[AdmissionPolicy] = (), local: Sequence[AdmissionPolicy] = ()) -> None:
        self._local = tuple(local)
        self._remote = tuple(remote)
        self._by_class = PerClass[ClassPolicies](self._select)
        self.policies_for: Callable[[Declaration], ClassPolicies] = self._by_class.get
        """Returns the policies that concern the class."""

    def invalidate(self) -> None:
        """Ask every policy about every class again, after a change (a flag was set)."""
        self._by_class.clear()

    def _select(self, declaration: Declaration) -> ClassPolicies:
        local = tuple(policy for policy in self._local if policy.applies_to(declaration))
        remote = tuple(policy for policy in self._remote if policy.applies_to(declaration))
        grouped = tuple(policy for policy in remote if isinstance(policy, GroupedPolicy))
        may_wait = bool(local) or any(policy.may_wait(declaration) for policy in grouped)
        remembered = tuple(policy for policy in local if isinstance(policy, RememberedPolicy))
        all_remembered = remembered if len(remembered) == len(local) else None
        return ClassPolicies(local, remote, grouped, may_wait, all_remembered, {})


SlotState: TypeAlias = Literal["taken", "waits", "refused", "fenced"]
_FORGET_AFTER_S = 365 * 86_400
"""Sweeps by an operator never make a shard forget a limit that no process knows."""

RELEASED_AT_ONCE = (20, 500)
"""The fewest and the most waiting jobs that one step releases: a job takes 6 us of Redis, or more."""

_FREED_AT_ONCE = 100
_STATES: dict[int, SlotState] = {1: "taken", 0: "waits", 2: "refused", -1: "fenced"}


class SlotResult(NamedTuple):
    """The result of a request for a slot: slots taken, the limit that applies, and the waiting jobs of the same scope."""

    state: SlotState
    taken: int
    limit: int
    waiting: int

    @classmethod
    def of(cls, state: int, counts: Iterable[int]) -> "SlotResult":
        """Return the result for a state of the scripts and their three counts."""
        return cls(_STATES[state], *counts)


# Decision 126: slots are work-conserving, first-come first-served, and leased.
class LimitSlots:
    """Take slots for the jobs of one process. Safe to call from any thread; raises redis errors."""

    def __init__(self, client: "redis.Redis", identity: str, timings: Timings = STANDARD) -> None:
        self._client = client
        self.owner = identity
        """The owner of the working list of the jobs."""
        self.ttl_s = timings.slot_ttl_s
        """A slot that is not renewed for this long is free. Slots of a dead process are freed much earlier, with its jobs."""

    def slot_of(self, unit: UnitOfWork, payload: Payload, name: str) -> Slot:
        """Return the slot that a job of this process takes of the limit ``name``."""
        return Slot(keys.limit(name), slot_member(self.owner, slot_id(payload, unit.data)))

    def record(self, unit: UnitOfWork, slot: Slot) -> None:
        """Add a slot to the unit's resources, before it is requested.

        So the slot is released even if the reply is lost, or if another thread returns the job meanwhile.
        """
        resources = unit.own_resources()
        if slot not in resources.slots:
            resources.slots.append(slot)

    def take(
        self,
        unit: UnitOfWork,
        payload: Payload,
        name: str,
        limit: str,
        *,
        scope: str = "",
        share: int = 0,
        may_wait: bool = True,
    ) -> SlotResult:
        """Take a slot of the limit ``name`` (a class's wire name, or ``queue/NAME``) for a job in flight, in one round trip.

        ``limit`` is 0 for no limit and negative for a pause; with a ``+`` before it, it holds on all shards together. ``share``
        is the maximum of slots for one ``scope``, 0 for no maximum. Without a free slot, the job leaves the working list and
        waits; with ``may_wait=False`` it is refused and nothing changes. The unit holds a slot that was taken, and releases it
        with its other resources.
        """
        resources = unit.own_resources()
        slot, jid = self.slot_of(unit, payload, name), slot_id(payload, unit.data)
        base = slot.base
        others = resources.on_hold() if resources.lock is not None or resources.slots else ""
        since = timestamp(payload.get(BUFFERED_AT))
        waiting_since = "" if since is None else f"{since:.6f}"
        mode = "wait" if may_wait else "refuse"
        arguments = [
            unit.data,
            slot.member,
            jid,
            start_queue(unit.queue, payload),
            limit,
            self.ttl_s,
            waiting_since,
            scope,
            share,
            mode,
            others,
        ]
        self.record(unit, slot)
        reply: Any = TAKE_SLOT(self._client, [keys.working(self.owner), base], arguments)
        state, *counts = reply
        result = SlotResult.of(state, counts)
        resources.note_answer(slot, jid, taken=result.state == "taken")
        return result


def release_reservation(unit: UnitOfWork, payload: Payload, name: str) -> None:
    """Add to the unit's resources a slot that may be reserved for the job, so that the end of the job releases it."""
    unit.own_resources().slots += reservations(payload, unit.data, (name,))


def renew_slots(client: "redis.Redis", units: Iterable[UnitOfWork], ttl_s: int) -> None:
    """Renew the slots that these jobs hold for ``ttl_s``; send nothing if they hold none. Raises redis errors."""
    # Each attribute is read once: the thread of the job may replace it at any time.
    held = [slot for unit in units if (resources := unit.resources) is not None for slot in tuple(resources.slots)]
    if held:
        RENEW_SLOTS(client, [f"{slot.base}:running" for slot in held], [ttl_s, *(slot.member for slot in held)])


def assign_free_slots(client: "redis.Redis", name: str, rate: float | None = None) -> tuple[int, int]:
    """Free slots that are not renewed, and release waiting jobs; return the jobs released and the slots freed.

    It releases only what the limit allows, as the end of a job and the sweep of a process do. After an outage no slot
    counts as expired until heartbeats have arrived for a while. ``rate`` is that of ``BoundedSteps``. Raises redis errors;
    jobs released until then are in their queues.
    """
    released = freed = 0
    running = keys.limit(name) + ":running"
    steps = BoundedSteps(*RELEASED_AT_ONCE, rate=rate)
    while True:
        now = server_time(client)
        stale: Any = client.zcount(running, "-inf", now)
        with steps.step() as jobs:
            reply: Any = RELEASE_WAITING(client, [keys.limit(name)], ["", "0", jobs, _FORGET_AFTER_S])
        left: Any = client.zcount(running, "-inf", now)
        released += int(reply[0])
        freed += max(0, stale - left)
        if int(reply[0]) < jobs and stale - left < _FREED_AT_ONCE and not unpack_waiting(client, name):
            return released, freed


def unpack_waiting(client: "redis.Redis", name: str) -> bool:
    """Unpack the blocks that are next of those that wait at a limit; return whether one was. Raises redis errors."""
    prefix = f"{keys.limit(name)}:waiting:".encode()
    # While the payload store cannot be read, the jobs in its blocks stay held. A log line tells.
    with suppress(StoredBlocksError):
        return any(unpack_next(client, key) for key in packed_held(client) if key.startswith(prefix))
    return False
