"""Explain to which step of a workflow a job belongs."""

from framework.admin.explain_reader import ExplainReader, ShownFacts
from framework.command_line import command
from framework.features.workflows.definition import step_of
from framework.telemetry.logs import shorten
from framework.text import Sentence, visible
from framework.types import Payload
from framework.wire.job import bid_of


class WorkflowReader(ExplainReader):
    """Tell the step of a job."""

    def origin(self, payload: Payload) -> ShownFacts:
        step = step_of(bid_of(payload))
        if step is None:
            return ShownFacts(fields={"workflow": None})
        shown = command(f"jobs workflow {visible(shorten(step[0]))}")
        text = Sentence("step {step}: `{shown}` shows all steps", step=visible(shorten(step[1])), shown=shown)
        return ShownFacts([("workflow", text)], {"workflow": step[0]})
