"""Explain that a caller waits for the answer of a job, and which answer is kept."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import redis
from redis.exceptions import ResponseError

from framework.admin.explain_reader import ExplainReader, KeptFact, ShardSnapshot, ShownFacts
from framework.features.results.payload import call_of
from framework.telemetry.logs import shorten
from framework.text import Sentence, format_duration, visible
from framework.types import Jid, Payload
from framework.wire import keys
from framework.wire.answers import CallEnd, read_answer
from framework.wire.protected import UNSIGNED_STATE, result_place


class ResultReader(ExplainReader):
    """Tell the callers and the kept answers of a job, or of a class."""

    kept_name = "answers"

    def __init__(self, snapshot: ShardSnapshot) -> None:
        super().__init__(snapshot)
        self._called = 0

    def wishes(self, payload: Payload) -> ShownFacts:
        call = call_of(payload)
        if call is None:
            return ShownFacts(fields={"call": None})
        caller = (
            Sentence("the process {caller} has called it, and waits for", caller=visible(call.caller))
            if call.caller
            else Sentence("its push asked for")
        )
        text = Sentence(
            "{caller} its answer, which is kept for {time} after its end",
            caller=caller,
            time=format_duration(call.ttl_s),
        )
        return ShownFacts([("result", text)], {"call": call._asdict()})

    def kept(self, jid: Jid) -> KeptFact | None:
        answer = read_kept_answer(self.snapshot.client, jid)
        if answer is None:
            return None
        reason = Sentence(" ({reason})", reason=visible(shorten(answer.reason))) if answer.reason else ""
        left = format_duration(answer.kept_s)
        text = Sentence(
            "its answer on {shard}: {end}{reason}, kept for {left} more",
            shard=self.snapshot.shard,
            end=visible(answer.end),
            reason=reason,
            left=left,
        )
        return KeptFact(text, answer.as_json())

    def count(self, jobs: Sequence[Payload]) -> None:
        self._called += sum(call_of(job) is not None for job in jobs)

    def of_class(self, worker: str) -> ShownFacts:
        del worker
        have = Sentence("has a caller that waits") if self._called == 1 else Sentence("have callers that wait")
        lines = (
            [("result", Sentence("{called:,} of these jobs {have}", called=self._called, have=have))]
            if self._called
            else []
        )
        return ShownFacts(lines, {"called": self._called})


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """The stored answer of a called job: how the job ended, and for how many seconds the answer is kept from now on."""

    end: str
    """``done``, or the word for an end without a result."""
    reason: str
    kept_s: float

    def as_json(self) -> Mapping[str, Any]:
        """Return the answer for a command's JSON. The value is not in it: it may be large, or secret."""
        return {"end": self.end, "reason": self.reason or None, "kept_s": self.kept_s}


def read_kept_answer(client: "redis.Redis", jid: str) -> KeptAnswer | None:
    """Return the stored answer of a job, ``None`` if there is none. Raises redis errors."""
    pipeline: Any = client.pipeline()
    pipeline.get(keys.result(jid))
    pipeline.pttl(keys.result(jid))
    try:
        data, left_ms = pipeline.execute()
    except ResponseError:
        # Another program has written a key of another type.
        return None
    if data is None:
        return None
    try:
        # Only the words are shown: the caller checks the signature.
        found = read_answer(UNSIGNED_STATE.open(result_place(jid), data))
    except Exception:  # noqa: BLE001 - the process of an isolated job may have sent anything
        found = CallEnd("refused", reason=Sentence("the stored answer cannot be read"))
    reason = (
        Sentence("{error_class}: {reason}", error_class=found.error_class, reason=found.reason)
        if found.error_class
        else found.reason
    )
    return KeptAnswer(found.word, reason, max(0.0, left_ms / 1_000))
