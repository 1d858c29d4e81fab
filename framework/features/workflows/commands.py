"""``application-worker workflows``: list workflows, cancel or delete one; ``jobs workflow``: show one as a graph."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from framework.features.batches.commands import GroupAction, GroupChange, GroupCommands
from framework.features.workflows.definition import WORKFLOW_PREFIX, is_workflow_id
from framework.features.workflows.store import change_workflow, find_workflow, list_workflows
from framework.features.workflows.workflow import StepStatus, WorkflowStatus
from framework.shard.shard import Shard
from framework.text import format_time, visible

_UNREADABLE = "its definition cannot be read"


class _WorkflowCommands(GroupCommands[WorkflowStatus]):
    noun = "workflow"
    field = "workflows"
    id_prefix = WORKFLOW_PREFIX
    headings = ("WORKFLOW", "STATE", "NAME", "STEP", "JOBS", "CREATED", "DESCRIPTION")
    why_unknown = "it was deleted, or has expired"

    def is_id(self, text: str) -> bool:
        return is_workflow_id(text)

    def list_all(self, shard: Shard) -> Iterator[WorkflowStatus]:
        return list_workflows(shard)

    def find(self, shard: Shard, name: str) -> WorkflowStatus | None:
        return find_workflow(shard, name)

    def change_group(self, shard: Shard, group_id: str, action: GroupAction) -> bool:
        return change_workflow(shard, group_id, action)

    def row(self, one: WorkflowStatus, _now: float) -> Sequence[str]:
        if not one.steps:
            return one.id, one.state, visible(one.name), "-", _UNREADABLE, format_time(one.created_at), "-"
        running = [step for step in one.steps if step.started_at is not None]
        step = max(running, key=lambda step: step.started_at or 0.0) if running else one.steps[0]
        words = (one.state, visible(one.name), visible(step.name), counts(step), format_time(one.created_at))
        return one.id, *words, visible(one.description) or "-"

    def question_end(self, _shard: Shard, one: WorkflowStatus) -> str:
        return f"({visible(one.name)}, {one.state})"

    def details(self, _shard: Shard, one: WorkflowStatus) -> tuple[Mapping[str, Any], Iterable[str]]:
        return {"mermaid": "\n".join(mermaid(one))}, _lines(one)


_WORKFLOWS = _WorkflowCommands()

workflows = _WORKFLOWS.make(
    """List workflows, cancel or delete one. `jobs workflow` shows one as a graph.

    Code makes them with framework.workflows.Workflow.
    """,
    "List all workflows, the newest first, with the step that runs.",
    (
        GroupChange(
            "cancel",
            "Cancel",
            "is cancelled",
            """Cancel a workflow: the jobs of its step, and all later steps and branches.

            Jobs that wait do not start any more, and running jobs are asked to end.

            Status 1: no shard has the workflow, or a shard does not answer.
            """,
        ),
        GroupChange(
            "delete",
            "Delete",
            "is deleted; its jobs stay",
            """Delete a workflow and the batches of its steps: jobs that were written run, and no step starts.

            Status 1: no shard has the workflow, or a shard does not answer.
            """,
        ),
    ),
)


workflow = _WORKFLOWS.show_command(
    "workflow",
    """Show a workflow as a graph in Mermaid's language, with the states of its steps.

    The lines before the graph are comments of Mermaid. `workflows list` shows the ids.

    Status 1: no shard has the workflow, or a shard does not answer.
    """,
)


def _lines(one: WorkflowStatus) -> Iterator[str]:
    yield f"%% {one.id} on {one.shard}: {visible(one.name)}, {one.state}{f', {visible(one.description)}' if one.description else ''}"
    if not one.steps:
        yield f"%% {_UNREADABLE}"
    if one.parent:
        yield f"%% nested in {visible(one.parent)}"
    for step in one.steps:
        if step.started_at is not None:
            ended = "" if step.ended_at is None else f", ended {format_time(step.ended_at)}"
            yield f"%% {visible(step.name)}: batch {step.bid}, started {format_time(step.started_at)}{ended}"
    yield from mermaid(one)


_COLOURS = {
    "waiting": "fill:#eeeeee,stroke:#999999,color:#333333",
    "starting": "fill:#fff3cd,stroke:#b58900,color:#333333",
    "running": "fill:#cfe2ff,stroke:#0d6efd,color:#333333",
    "succeeded": "fill:#d1e7dd,stroke:#198754,color:#333333",
    "failed": "fill:#f8d7da,stroke:#dc3545,color:#333333",
    "cancelled": "fill:#e2e3e5,stroke:#6c757d,color:#333333",
    "skipped": "fill:#ffffff,stroke:#cccccc,color:#999999,stroke-dasharray:4",
}

_PLAIN = frozenset(" _-.,:/()")
"""Characters that have no meaning in Mermaid's texts and in HTML. All others are written as their numbers."""


def mermaid(status: WorkflowStatus) -> Iterator[str]:
    """Yield the lines of a flowchart: a node for each step, whose class is its state; a dashed line leads to a branch."""
    # A name may be a word of Mermaid, such as `end`.
    nodes = {one.name: f"s{number}" for number, one in enumerate(status.steps, 1)}
    yield "flowchart LR"
    for one in status.steps:
        yield f'    {nodes[one.name]}["{mermaid_text(one.name)}<br>{counts(one)}"]:::{_class_of(one)}'
    for one in status.steps:
        # A definition that was changed in Redis may name steps that it does not have.
        if one.on == "success" and one.after in nodes:
            yield f"    {nodes[one.after]} --> {nodes[one.name]}"
        elif one.on == "failure":
            for failed in [one.after] if one.after in nodes else _without_branch(status):
                yield f"    {nodes[failed]} -. failure .-> {nodes[one.name]}"
    for state in sorted({_class_of(one) for one in status.steps}):
        yield f"    classDef {state} {_COLOURS[state]}"


def _class_of(step: StepStatus) -> str:
    """Return the state of a step; ``waiting`` for a word in Redis that is no state."""
    return step.state if step.state in _COLOURS else "waiting"


def mermaid_text(text: str) -> str:
    """Return a text as Mermaid shows it inside of quotes: no character of it can end the text, or become markup of the page."""
    return "".join([char if char.isalnum() or char in _PLAIN else f"#{ord(char)};" for char in visible(text)])


def counts(step: StepStatus) -> str:
    """Return how many of the jobs of a step have succeeded, and how many have not and will not."""
    if step.jobs is None:
        return "jobs not computed yet"
    if step.state in ("waiting", "skipped"):
        return f"{step.jobs:,} {'job' if step.jobs == 1 else 'jobs'}"
    lost = [f"{number:,} {name}" for name, number in (("dead", step.dead), ("removed", step.removed)) if number]
    return ", ".join([f"{max(0, step.jobs - step.pending):,} of {step.jobs:,} succeeded", *lost])


def _without_branch(status: WorkflowStatus) -> list[str]:
    """Return the steps of the main line that have no branch of their own."""
    own = {one.after for one in status.steps if one.on == "failure"}
    line = [one.name for one in status.steps if one.on == "start"]
    for one in status.steps:
        if one.on == "success" and one.after in line:
            line.append(one.name)
    return [name for name in line if name not in own]
