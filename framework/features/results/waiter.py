"""Keep the answer of a job for its caller, in the step that ends the job."""

from framework.features.results.payload import ResultCall, call_of
from framework.types import Jid, Payload
from framework.wire.waiters import JobEnd, Waiter


class CallerWaiter(Waiter[ResultCall]):
    """The callers that wait for results. The Lua function is in ``scripts/parts/answer.lua``."""

    def read(self, payload: Payload) -> ResultCall | None:
        """Return the request of the caller."""
        return call_of(payload)

    def wants_answer(self, value: ResultCall) -> bool:
        """Return true: a caller always does."""
        del value
        return True

    def named(self, value: ResultCall, answer: str) -> str:
        """Return the answer as it is."""
        del value
        return answer

    def told(self, value: ResultCall, jid: Jid, end: JobEnd, answer: str) -> list[str] | None:
        """Return the arguments of ``release_answer``; ``None`` for a job that failed and will run again."""
        return None if end == "failed" else [jid, end, str(value.ttl_s), value.caller, answer]


WAITER: Waiter[ResultCall] = CallerWaiter()
