"""Note the answer of a job for what waits for it. The script that ends the job stores it in the same step."""

from typing import Any

from framework.declare.strict_json import NotJsonError, check_strict_json
from framework.errors import PayloadError
from framework.finish.endings import ending_of
from framework.finish.outcome import Cancelled, Discarded, Expired, Failed, Retired, RunOutcome
from framework.finish.retry import RetryDecision
from framework.telemetry import logs
from framework.telemetry.job_events import ResultRefused, job_events
from framework.text import error_class, error_message
from framework.wire.answers import RESULT_LIMIT, end_answer, value_answer
from framework.wire.json import dumps
from framework.wire.protected import StateSignatures, result_place
from framework.wire.resources import JobResources

_FRAME = 2_000
"""Characters of an answer around its value, or of one without a value."""


def encoded_value(worker: str, jid: str, value: Any) -> str:
    """Return the answer of a job that succeeded. A result that cannot be stored becomes an error for the caller, and a log line."""
    try:
        check_strict_json(value)
        data = dumps(value)
        if len(data) <= RESULT_LIMIT:
            return value_answer(data)
        reason = f"its JSON has {len(data):,} bytes, and at most {RESULT_LIMIT:,} are stored: return an id instead"
    except NotJsonError as error:
        reason = f"result{error.path} {error.reason}"
    except PayloadError as error:
        reason = error.reason
    job_events.emit(ResultRefused(worker))
    logs.logger(jid=jid, **{"class": worker}).warning(
        f"the job has succeeded, but its caller gets no result: {reason}", event_name="result.refused", reason=reason
    )
    return end_answer("refused", reason)


class EncodedAnswer(str):
    """The answer of an isolated job, which its process has encoded."""

    __slots__ = ()

    @classmethod
    def of(cls, sent: object) -> "EncodedAnswer":
        """Return the answer that a process has sent. Code that is not trusted may send anything."""
        answer = sent if isinstance(sent, str) else ""
        fits = 0 < len(answer) <= RESULT_LIMIT + _FRAME
        return cls(answer if fits else end_answer("refused", "its process has sent no readable answer"))


def note_answer(resources: JobResources, instance: Any) -> None:
    """Note the result of ``perform``, if something that waits for the job gets it."""
    awaited = resources.awaited
    if awaited is None or not awaited.keeps_answer:
        return
    returned = instance._aw_returned  # pyright: ignore[reportPrivateUsage]
    answer = (
        returned
        if type(returned) is EncodedAnswer
        else encoded_value(instance.declaration().wire_name, awaited.jid, returned)
    )
    resources.awaited = awaited._replace(answer=str(answer))


class _SealedAnswer(str):
    """An answer with its signature: a settlement may be repeated."""

    __slots__ = ()


def sign_answer(resources: JobResources, signatures: StateSignatures) -> None:
    """Sign the answer of a job that ends, if it has one."""
    awaited = resources.awaited
    if awaited is not None and awaited.answer and type(awaited.answer) is not _SealedAnswer:
        answer = awaited.named_answer()
        sealed = signatures.seal(result_place(awaited.jid), answer.encode(errors="replace"))
        resources.awaited = awaited._replace(answer=_SealedAnswer(sealed.decode()))


def note_end(resources: JobResources, outcome: RunOutcome, decision: RetryDecision | None) -> None:
    """Note what is told of the next move of a job to what waits for it, and its answer."""
    ending = ending_of(outcome, decision)
    resources.end_word = ending.told
    awaited = resources.awaited
    if awaited is None or not awaited.keeps_answer or not ending.told or awaited.answer:
        return
    resources.awaited = awaited._replace(answer=_answer_of(outcome, died=ending.told == "dead"))


def _answer_of(outcome: RunOutcome, *, died: bool) -> str:
    match outcome:
        case Failed(error):
            return end_answer("dead", error_message(error, 1_000), error_class(error)) if died else ""
        case Discarded(reason, by):
            return end_answer("discarded" if by == "job" else "dropped", reason)
        case Expired():
            return end_answer("expired", "it would have started too late")
        case Retired(reason=reason):
            return end_answer("retired", reason)
        case Cancelled():
            return end_answer("cancelled")
        case _:
            # Without an answer, the script stores the word of this end.
            return ""
