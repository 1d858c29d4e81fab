"""Define what may limit the runs of a class, for its declaration and for the code that calls ``perform``. Pure."""

from typing import Protocol

from framework.types import Payload


class JobPermit(Protocol):
    """The admission of one run."""

    def release(self) -> None:
        """End the run of the job."""
        ...


class JobLimiter(Protocol):
    """What admits the runs of a class."""

    def admit_job(self, payload: Payload, meta_prefix: str) -> JobPermit | None:
        """Admit one job without a wait. Raises OverLimit."""
        ...
