"""Define the field of a job whose caller waits for its result, and the answer that the end of the job stores."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from framework.errors import PayloadError
from framework.typeguards import is_mapping
from framework.wire.json import dumps, loads

RESULT = "aw_result"
"""Field of a job whose caller waits: for how many seconds the answer is kept, and the token of the calling process."""

RESULT_LIMIT = 262_144
"""The most bytes of a result's JSON: Redis holds it, and sends it to the caller."""

MAX_TTL_S = 7 * 86_400
"""The longest time for which an answer is kept."""

WAIT_S = 30 * 86_400
"""For how long the state of a job that keeps its result lives at least, after each change before the end of the job."""

_MAX_TOKEN = 64
_KEPT_AT = "of"

EndWord: TypeAlias = Literal[
    "dead", "deleted", "discarded", "dropped", "expired", "cancelled", "removed", "retired", "skipped", "refused"
]
"""How a job ended without a result. The words of a batch (``BatchEnd``) are those that a script writes by itself."""


class ResultCall(NamedTuple):
    """The request of a job's caller: how long the answer is kept, and the process that waits, empty for none."""

    ttl_s: int
    caller: str


class CallEnd(NamedTuple):
    """The answer of a job: its ``value``, or how and why it ended without one."""

    word: EndWord | Literal["done"]
    value: Any = None
    reason: str = ""
    error_class: str = ""


def result_request(ttl_s: int, caller: str = "") -> list[int | str]:
    """Return the field of a job whose answer is kept for ``ttl_s``."""
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


def value_answer(value: bytes) -> str:
    """Return the stored answer of a job that succeeded; ``value`` is the JSON of its result."""
    return f'{{"value":{value.decode()}}}'


def end_answer(word: EndWord, reason: str = "", error_class: str = "") -> str:
    """Return the stored answer of a job that ended without a result."""
    fields = {"end": word, "reason": reason[:1_000], "error_class": error_class}
    return dumps({name: value for name, value in fields.items() if value}).decode(errors="replace")


def answer_of_batch(answer: str, bid: str, place: int) -> str:
    """Return an answer that names the batch that keeps it, and its place there: a signature covers both."""
    return f"{answer[:-1]},{dumps({_KEPT_AT: [bid, place]}).decode()[1:]}"


def kept_at(answer: bytes) -> Any:
    """Return the batch and the place that an answer names, ``None`` for none."""
    try:
        fields: Any = loads(answer, None)
    except PayloadError:
        return None
    found: Any = fields.get(_KEPT_AT) if is_mapping(fields) else None
    return found


def read_answer(data: bytes) -> CallEnd:
    """Return a stored answer.

    Raises PayloadError, or another error, for another form: the process of an isolated job may write anything.
    """
    fields: dict[str, Any] = loads(data, None)
    if "value" in fields:
        return CallEnd("done", fields["value"])
    word, reason, error_class = (fields.get(name, "") for name in ("end", "reason", "error_class"))
    if not (isinstance(word, str) and isinstance(reason, str) and isinstance(error_class, str)):
        raise TypeError("an answer has texts")
    return CallEnd(cast("EndWord", word or "removed"), None, reason, error_class)
