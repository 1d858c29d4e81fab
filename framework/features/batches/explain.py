"""Explain to which batch a job belongs."""

from framework.admin.explain_reader import ExplainReader, ShownCancellation, ShownFacts
from framework.command_line import command
from framework.telemetry.logs import shorten
from framework.text import Sentence, visible
from framework.types import Payload
from framework.wire.job import bid_of


class BatchReader(ExplainReader):
    """Tell the batch of a job, and its cancellation."""

    def origin(self, payload: Payload) -> ShownFacts:
        bid = bid_of(payload)
        if not bid:
            return ShownFacts(fields={"batch": None})
        name = visible(shorten(bid))
        return ShownFacts(
            [
                (
                    "batch",
                    Sentence(
                        "{name}: `{command}` shows its counts", name=name, command=command(f"batches show {name}")
                    ),
                )
            ],
            {"batch": bid},
        )

    def cancellation(self, payload: Payload) -> ShownCancellation | None:
        bid = bid_of(payload)
        since = self.snapshot.cancelled_since(bid) if bid else None
        return None if since is None else ShownCancellation(Sentence("its batch"), since)
