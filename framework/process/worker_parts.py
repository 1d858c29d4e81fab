"""What features do in a worker process: a part of each, made once from the core's objects, and all of them joined."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import redis

from framework.execute.admission import AdmissionChain, StagedPolicy
from framework.feature import Late, features
from framework.payloads.protection import PayloadProtection
from framework.process.events import ProcessEvents
from framework.settings.model import CoreSettings
from framework.shard.shard import Shard
from framework.store.absent_keys import AbsentKeys
from framework.timings import Timings

T = TypeVar("T")


class ProcessContext:
    """The core's objects of one worker process, from which each feature makes its part."""

    def __init__(
        self,
        settings: CoreSettings,
        shard: Shard,
        upkeep: "redis.Redis",
        events: ProcessEvents,
        absent: AbsentKeys,
        timings: Timings,
        protection: PayloadProtection,
    ) -> None:
        self.settings = settings
        self.shard = shard
        """The shard that the process serves; its client is safe from any thread."""
        self.upkeep = upkeep
        """The client of the periodic work."""
        self.events = events
        self.absent = absent
        self.timings = timings
        self.protection = protection
        self._chains: list[AdmissionChain] = []
        self._services: dict[Late[Any], Any] = {}

    def service(self, kind: "Late[Callable[[ProcessContext], T]]") -> T:
        """Return the one object of its kind in this process, for features that share it; made at the first call."""
        if kind not in self._services:
            self._services[kind] = kind.load()(self)
        return cast("T", self._services[kind])

    def invalidate(self) -> None:
        """Ask every policy about every class again, in all capsules."""
        for chain in self._chains:
            chain.invalidate()

    def add(self, chain: AdmissionChain) -> AdmissionChain:
        """Return the chain, which ``invalidate`` concerns from now on."""
        self._chains.append(chain)
        return chain


class WorkerPart(NamedTuple):
    """What one feature does in a worker process. A Redis error of its steps ends the round; the next round tries again."""

    policies: Sequence[StagedPolicy] = ()
    """Its policies, the same for every capsule."""
    of_capsule: Callable[[str], Sequence[StagedPolicy]] | None = None
    """Returns its policies for the capsule whose working list has this owner: those that write to the list."""
    refresh: Callable[[], None] | None = None
    """Reads its state, before the first job and every few seconds, before the periodic work."""
    periodic: Sequence[Callable[[], None]] = ()
    """Its work every few seconds."""
    serve: Callable[[], None] | None = None
    """Lets the application's questions be answered from this part, in a process that is there only for jobs."""


class WorkerParts:
    """The parts of all features in one worker process, in the order of the features."""

    def __init__(self, process: ProcessContext) -> None:
        self._process = process
        self._parts: list[WorkerPart] = [one.worker.load()(process) for one in features() if one.worker is not None]
        self.periodic = tuple(step for part in self._parts for step in part.periodic)

    def chain(self, owner: str) -> AdmissionChain:
        """Return the policies of the capsule whose working list has this owner."""
        found = [one for part in self._parts for one in (*part.policies, *(part.of_capsule or _no_policies)(owner))]
        return self._process.add(AdmissionChain.of(found))

    def refresh(self) -> None:
        """Read the state of all features. Raises redis errors."""
        for part in self._parts:
            if part.refresh is not None:
                part.refresh()

    def serve(self) -> None:
        """Answer the application's questions from these parts."""
        for part in self._parts:
            if part.serve is not None:
                part.serve()


def _no_policies(_owner: str) -> Sequence[StagedPolicy]:
    return ()
