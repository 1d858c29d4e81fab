"""Jobs with results, for real worker processes and for fakes."""

from datetime import timedelta
from typing import Any

from framework import ApplicationWorker, Discard


class AddWorker(ApplicationWorker, abstract=True):
    """Share the attributes."""

    feature_category = "not_owned"
    queue = "default"
    retry = False


class SumWorker(AddWorker):
    """Return the sum of its arguments."""

    def perform(self, first: int, second: int) -> dict[str, int]:
        return {"sum": first + second}


class AsyncSumWorker(AddWorker):
    """Return a text, on the event loop."""

    ack = "sync"

    async def perform(self, first: int) -> str:
        return "é" * first


class TimedSumWorker(AddWorker):
    """Return a number within a timeout, tracked and isolated from duplicates."""

    timeout = 20
    idempotent = True
    status_expiration = 60

    def perform(self, number: int) -> int:
        return number + 1


class IsolatedSumWorker(AddWorker):
    """Return a list from a process of its own."""

    isolation = "process"

    def perform(self, number: int) -> list[int]:
        return [number, number]


class RetriedWorker(AddWorker):
    """Succeed in the second run."""

    retry = 1

    @classmethod
    def retry_in(cls, count: int, error: Exception, job: Any) -> float:
        del count, error, job
        return 0.2

    def perform(self) -> int:
        count = (self._aw_job or {}).get("retry_count")
        if count is None:
            raise ValueError("not yet")
        return 7


class FailingWorker(AddWorker):
    """Fail, discard itself, or return what cannot be stored."""

    def perform(self, how: str) -> Any:
        match how:
            case "discard":
                raise Discard("no such row")
            case "tuple":
                return {"rows": (1, 2)}
            case "large":
                return "x" * 300_000
            case _:
                raise LookupError("no row")


class DyingWorker(FailingWorker):
    """Go to the dead set at the first failure."""

    retry = 0


class LateWorker(AddWorker):
    """End without a run."""

    expires_in = timedelta(milliseconds=1)

    def perform(self) -> None:
        raise AssertionError("it has expired")


class KeptWorker(AddWorker):
    """Keep each result for a minute."""

    keep_result = 60

    def perform(self, number: int) -> list[int]:
        return [number]


class KeptSyncWorker(KeptWorker):
    """Be acknowledged alone, and fail at once."""

    ack = "sync"

    def perform(self, number: int) -> list[int]:
        if number < 0:
            raise LookupError("no row")
        return [number]


class KeptLateWorker(AddWorker):
    """End without a run, and keep that."""

    expires_in = timedelta(milliseconds=1)
    keep_result = timedelta(minutes=1)

    def perform(self) -> None:
        raise AssertionError("it has expired")
