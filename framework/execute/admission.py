"""What stands between a fetched job and its ``perform``: policies that may send it away. Known here by this protocol alone."""

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
    """A job at the door: its unit, its payload with decompressed arguments, and its class."""

    unit: UnitOfWork
    payload: Payload
    declaration: Declaration
    worker: Any


class AdmissionPolicy(Protocol):
    """One policy. Safe to call from any thread."""

    def applies_to(self, declaration: Declaration) -> bool:
        """Whether jobs of this class are to be asked about: answered once per class, until ``AdmissionChain.reopen``."""
        ...

    def admit(self, request: AdmissionRequest) -> RunOutcome | None:
        """Return ``None`` to let the job go on, or what becomes of it instead.

        May raise redis errors: the job is in the working list, and is asked about again when Redis answers. What else goes
        wrong is the gate's own to handle, so that work goes on.
        """
        ...


class AdmissionChain:
    """The policies in their order. A class pays for those that concern it."""

    def __init__(self, policies: Sequence[AdmissionPolicy] = ()) -> None:
        self._policies = tuple(policies)
        self._by_class = PerClass[tuple[AdmissionPolicy, ...]](self._select)

    def policies_for(self, declaration: Declaration) -> tuple[AdmissionPolicy, ...]:
        """Return those that jobs of the class have to pass."""
        return self._by_class.get(declaration)

    def invalidate(self) -> None:
        """What a gate concerns has changed (a flag was set): every class is asked about anew."""
        self._by_class.clear()

    def _select(self, declaration: Declaration) -> tuple[AdmissionPolicy, ...]:
        return tuple(policy for policy in self._policies if policy.applies_to(declaration))
