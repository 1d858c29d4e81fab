"""Ask the policies of a class before its job runs. A policy may hold, defer or drop the job."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, Self, TypeAlias, runtime_checkable

from framework.declare.declaration import Declaration, PerClass
from framework.fetch.unit_of_work import UnitOfWork
from framework.finish.outcome import NotAdmitted
from framework.types import Payload


@dataclass(slots=True)
class AdmissionRequest:
    """The job that a policy is asked about: its unit, its payload with decompressed arguments, and its class."""

    unit: UnitOfWork
    payload: Payload
    declaration: Declaration
    worker: Any


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


@dataclass(slots=True, eq=False)
class ClassTerms:
    """Hold what the policies of a class ask of ``admit.lua`` for each of its jobs from one queue."""

    declaration: Declaration
    queue: str
    owner: str = ""
    """The owner of the working list, of which the slots have their names."""
    base: str = ""
    """The key of the limit of which each job takes a slot; empty for none."""
    limit: int = 0
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
    encoded: dict[tuple[float, int, bool, str], str] = field(default_factory=dict[tuple[float, int, bool, str], str])
    """The terms as JSON, by what jobs of one class may differ in (``GroupAdmission``)."""

    def ask_slot(self, base: str, owner: str, limit: int, ttl_s: int) -> bool:
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
        """Return whether one script can answer all remote policies."""
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
