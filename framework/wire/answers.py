"""Define the answer of a job: its result, or how it ended without one."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from framework.errors import (
    JobDiscardedError,
    JobEndedError,
    JobExpiredError,
    JobFailedError,
    JobRemovedError,
    ResultRefusedError,
)
from framework.types import Jid
from framework.wire.json import dumps, loads

RESULT_LIMIT = 262_144
"""The most bytes of a result's JSON: Redis holds it, and sends it to the caller."""

EndWord: TypeAlias = Literal[
    "dead", "deleted", "discarded", "dropped", "expired", "cancelled", "removed", "retired", "skipped", "refused"
]
"""How a job ended without a result. A script writes the words of ``JobEnd`` by itself."""


_ERRORS: Mapping[str, type[JobEndedError]] = {
    "dead": JobFailedError,
    "deleted": JobFailedError,
    "discarded": JobDiscardedError,
    "done": JobDiscardedError,
    "dropped": JobDiscardedError,
    "skipped": JobDiscardedError,
    "retired": JobDiscardedError,
    "expired": JobExpiredError,
    "refused": ResultRefusedError,
}
"""Other words are those of operators: the job was cancelled or removed."""


class CallEnd(NamedTuple):
    """The answer of a job: its ``value``, or how and why it ended without one."""

    word: EndWord | Literal["done"]
    value: Any = None
    reason: str = ""
    error_class: str = ""


def value_answer(value: bytes) -> str:
    """Return the stored answer of a job that succeeded; ``value`` is the JSON of its result."""
    return f'{{"value":{value.decode()}}}'


def end_answer(word: EndWord, reason: str = "", error_class: str = "") -> str:
    """Return the stored answer of a job that ended without a result."""
    fields = {"end": word, "reason": reason[:1_000], "error_class": error_class}
    return dumps({name: value for name, value in fields.items() if value}).decode(errors="replace")


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


def stored_end(data: bytes) -> CallEnd:
    """Return how a job has ended, from its stored answer."""
    try:
        return read_answer(data)
    except Exception as error:  # noqa: BLE001 - the process of an isolated job may have sent anything
        return CallEnd("refused", reason=f"the stored answer cannot be read: {type(error).__name__}")


def value_of(worker: str, jid: Jid | None, end: CallEnd) -> Any:
    """Return the value of a job that has ended. Raises JobEndedError for an end without one."""
    if end.word == "done":
        return end.value
    raise _ERRORS.get(end.word, JobRemovedError)(worker, jid, end.word, end.reason, end.error_class)
