"""Explain which entry of the schedule has pushed a job."""

from framework.admin.explain_reader import ExplainReader, ShownFacts
from framework.command_line import command
from framework.features.cron.payload import CronTick, tick_of
from framework.telemetry.logs import shorten
from framework.text import Sentence, format_time, visible
from framework.types import Payload


class CronReader(ExplainReader):
    def origin(self, payload: Payload) -> ShownFacts:
        tick = tick_of(payload)
        if tick is None:
            return ShownFacts(fields={"schedule": None})
        return ShownFacts([("schedule", _tick_text(tick))], {"schedule": tick._asdict()})


def _tick_text(tick: CronTick) -> str:
    when = Sentence("between ticks") if tick.tick is None else Sentence("tick of {time}", time=format_time(tick.tick))
    name = visible(shorten(tick.entry))
    return Sentence(
        "entry {name}, {when}: `{command}` shows the others",
        name=name,
        when=when,
        command=command(f"cron history {name}"),
    )
