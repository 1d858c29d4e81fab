"""Explain how far an iterable job has come."""

from typing import Any, cast

from redis.exceptions import ResponseError

from framework.admin.explain_reader import ExplainReader, ShownFacts
from framework.features.iteration.admin import shown_cursor
from framework.text import Sentence, format_count, format_duration, visible
from framework.types import Payload
from framework.wire import keys
from framework.wire.iteration_state import SavedIteration, read_iteration

_MAX_CURSOR_TEXT = 100


class IterationReader(ExplainReader):
    """Tell the cursor and the progress of an iterable job that has begun."""

    def progress(self, payload: Payload) -> ShownFacts:
        state = self._state(str(payload.get("jid")))
        if state is None:
            return ShownFacts(fields={"iteration": None})
        return ShownFacts([("progress", _progress_text(state))], {"iteration": _as_json(state)})

    def _state(self, jid: str) -> SavedIteration | None:
        try:
            fields = cast("dict[bytes, bytes]", self.snapshot.client.hgetall(keys.iteration(jid)))
        except ResponseError:
            return None
        state = read_iteration(fields)
        # A cancellation writes the key for jobs of every kind (Ruby's mark), also for those that never began.
        return state if state is not None and state.runs else None


def _progress_text(state: SavedIteration) -> str:
    items = format_count(state.done if state.total is None else state.total, "item")
    counted = items if state.total is None else Sentence("{done:,} of {items}", done=state.done, items=items)
    share = Sentence(" ({percent} %)", percent=100 * state.done // state.total) if state.total else ""
    rate = "" if state.rate is None else f", {state.rate:,.{1 if state.rate < 100 else 0}f} a second"
    left = "" if state.eta_s is None else Sentence(", {time} left", time=format_duration(state.eta_s))
    runs = Sentence("{runs}, {time}", runs=format_count(state.runs, "run"), time=format_duration(state.runtime_s))
    cursor = visible(state.cursor.decode(errors="backslashreplace")[:_MAX_CURSOR_TEXT])
    return Sentence(
        "{counted}{share}{rate}{left}; {runs}; cursor {cursor}",
        counted=counted,
        share=share,
        rate=rate,
        left=left,
        runs=runs,
        cursor=cursor,
    )


def _as_json(state: SavedIteration) -> dict[str, Any]:
    return {
        "runs": state.runs,
        "cursor": shown_cursor(state),
        "runtime_s": state.runtime_s,
        "done": state.done,
        "total": state.total,
        "rate": state.rate,
        "eta_s": state.eta_s,
    }
