"""Explain that a limiter did not admit a job."""

from framework.admin.explain_reader import Blocker, ExplainReader
from framework.command_line import remedy_command
from framework.text import Sentence, format_times
from framework.types import Payload
from framework.wire.job import OVER_LIMIT_BY, OVER_LIMIT_COUNT, count_of


class LimiterReader(ExplainReader):
    """Tell the limiter that put a job back into the schedule."""

    def scheduled(self, payload: Payload) -> list[Blocker]:
        if OVER_LIMIT_COUNT not in payload:
            return []
        times, name = format_times(count_of(payload, OVER_LIMIT_COUNT)), payload.get(OVER_LIMIT_BY)
        which = Sentence(", the last time {name}", name=name) if isinstance(name, str) else ""
        remedy = Sentence("its due time; {command} shows what is used", command=remedy_command("limiters", "list"))
        return [
            Blocker(
                "over_limit",
                Sentence("a rate limiter did not admit it {times}{which}", times=times, which=which),
                remedy,
            )
        ]
