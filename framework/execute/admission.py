"""Ask the policies of a class before its job runs. A policy may hold, defer or drop the job."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from framework.declare.declaration import Declaration
from framework.declare.per_class import PerClass
from framework.fetch.unit_of_work import UnitOfWork
from framework.finish.outcome import RunOutcome
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

    def admit(self, request: AdmissionRequest) -> RunOutcome | None:
        """Return ``None`` to admit the job, or its outcome.

        May raise redis errors: the job is in the working list, and the policy is asked again when Redis answers. The policy
        handles its other errors, so that jobs run.
        """
        ...


class AdmissionChain:
    """The policies in their order. A job pays only for those that concern its class."""

    def __init__(self, policies: Sequence[AdmissionPolicy] = ()) -> None:
        self._policies = tuple(policies)
        self._by_class = PerClass[tuple[AdmissionPolicy, ...]](self._select)

    def policies_for(self, declaration: Declaration) -> tuple[AdmissionPolicy, ...]:
        """Return the policies that concern the class."""
        return self._by_class.get(declaration)

    def invalidate(self) -> None:
        """Ask every policy about every class again, after a change (a flag was set)."""
        self._by_class.clear()

    def _select(self, declaration: Declaration) -> tuple[AdmissionPolicy, ...]:
        return tuple(policy for policy in self._policies if policy.applies_to(declaration))
