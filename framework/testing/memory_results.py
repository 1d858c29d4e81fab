"""Answer calls of jobs from the memory of a test: a job that has not run has no result, and no call waits."""

from collections.abc import Mapping
from concurrent.futures import Future

from framework.declare.request import PushRequest
from framework.features.results.store import JobResults
from framework.testing.memory_shard import MemoryShard
from framework.types import Jid, JobState
from framework.wire.status_key import most_advanced


class MemoryResults(JobResults):
    """The results of the faked shards."""

    def __init__(self, shards: Mapping[str, MemoryShard]) -> None:
        # Not the constructor of the base. Empty, as no process waits.
        self.caller = ""
        self._shards = shards
        self._facts: dict[Jid, bytes] = {}

    def watch(self, jid: Jid, request: PushRequest) -> "Future[bytes]":
        """See ``JobResults``: without an answer the wait ends at once, as no other process runs the job."""
        del request
        future: Future[bytes] = Future()
        found, _ = self.find(jid)
        if found is not None:
            future.set_result(found)
        else:
            future.set_exception(TimeoutError("the job has not ended: run it, for example with drain()"))
        return future

    def find(self, jid: Jid) -> tuple[bytes | None, JobState]:
        """See ``JobResults``."""
        found = [one.result(jid) for one in self._shards.values()]
        answer = next((answer for answer, _ in found if answer is not None), None)
        return answer, most_advanced(state for _, state in found)

    def note(self, jid: Jid, request: PushRequest, facts: bytes, ttl_s: int) -> None:
        """See ``JobResults``."""
        del request, ttl_s
        self._facts[jid] = facts

    def noted(self, jid: Jid) -> bytes | None:
        """See ``JobResults``."""
        return self._facts.get(jid)

    def leave(self, jid: Jid, future: "Future[bytes]") -> None:
        """See ``JobResults``."""
