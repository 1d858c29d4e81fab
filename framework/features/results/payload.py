"""Define the field of a job whose caller waits for its result, and keep the answer in the step that ends the job."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

# The record of results needs the names only, and no library for them.
if TYPE_CHECKING:
    from framework.types import Jid, Payload
    from framework.wire.waiters import JobEnd, Waiter


RESULT = "aw_result"
"""Field of a job whose caller waits: for how many seconds the answer is kept, and the token of the calling process."""

MAX_TTL_S = 7 * 86_400
"""The longest time for which an answer is kept."""

WAIT_S = 30 * 86_400
"""For how long the state of a job that keeps its result lives at least, after each change before the end of the job."""

_MAX_TOKEN = 64


class ResultCall(NamedTuple):
    """The request of a job's caller: how long the answer is kept, and the process that waits, empty for none."""

    ttl_s: int
    caller: str


def result_request(ttl_s: int, caller: str = "") -> list[int | str]:
    return [ttl_s, caller]


def state_ttl_s(ttl_s: int) -> int:
    """Return for how long the last state of a job is kept: longer than its answer, so that an answer is known to have expired."""
    return 2 * ttl_s


def call_of(payload: Mapping[str, Any] | None) -> ResultCall | None:
    """Return the request in a payload, ``None`` for a job without one, or with a field of another form."""
    field: Any = payload.get(RESULT) if payload is not None else None
    if not isinstance(field, list) or len(cast("list[Any]", field)) != 2:
        return None
    ttl_s, caller = cast("list[Any]", field)
    if type(ttl_s) is not int or not 0 < ttl_s <= MAX_TTL_S or not isinstance(caller, str) or len(caller) > _MAX_TOKEN:
        return None
    return ResultCall(ttl_s, caller)


class CallerWaiter:
    """The callers that wait for results. The Lua function is in ``scripts/parts/answer.lua``."""

    def read(self, payload: "Payload") -> ResultCall | None:
        return call_of(payload)

    def wants_answer(self, value: ResultCall) -> bool:
        del value
        return True

    def named(self, value: ResultCall, answer: str) -> str:
        del value
        return answer

    def told(self, value: ResultCall, jid: "Jid", end: "JobEnd", answer: str) -> list[str] | None:
        """Return the arguments of ``release_answer``; ``None`` for a job that failed and will run again."""
        if end == "failed":
            return None
        return [jid, "removed" if end == "deleted" else end, str(value.ttl_s), value.caller, answer]


WAITER: "Waiter[ResultCall]" = CallerWaiter()
