"""Decode payloads whose signatures are checked before anything reads their arguments."""

from collections.abc import Callable

from framework.execute.decoding import MemoryReservation, PayloadDecoder
from framework.execute.stats import RunningJobs
from framework.fetch.unit_of_work import UnitOfWork
from framework.payloads.signatures import PayloadSignatures
from framework.types import Payload
from framework.wire.memory_budget import MemoryBudget
from framework.wire.protected import ProtectedArguments


# A class of its own: a process without signatures pays for no check.
class VerifyingDecoder(PayloadDecoder):
    """Check signatures, for all runs of one process. Safe from any thread."""

    def __init__(
        self,
        running_jobs: RunningJobs,
        decompressed_limit: int,
        decoded_limit: int,
        budget: MemoryBudget | None,
        protected: ProtectedArguments | None,
        delete_blob: Callable[[str], None] | None = None,
        *,
        signatures: PayloadSignatures,
    ) -> None:
        super().__init__(running_jobs, decompressed_limit, decoded_limit, budget, protected, delete_blob)
        self._signatures = signatures

    def decompress(
        self, payload: Payload, unit: UnitOfWork, run: MemoryReservation, ensure_fetching: Callable[[], None]
    ) -> None:
        """See ``PayloadDecoder``.

        Raises:
            PayloadError: the signature is wrong, or missing and required.
            MissingKeyError: this process lacks the key of the signature.
        """
        self._signatures.check(payload, unit.queue)
        super().decompress(payload, unit, run, ensure_fetching)
