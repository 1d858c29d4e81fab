"""``application-worker workflows``: list workflows, cancel or delete one; ``jobs workflow``: show one as a graph."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict

import click

from framework.admin.workflow_set import change_workflow, find_workflow, list_workflows
from framework.declare.workflow_port import WorkflowStatus
from framework.features.batches.group_commands import GroupKind
from framework.features.workflows.graph import counts, mermaid
from framework.terminal.groups import CommandGroup
from framework.terminal.options import json_option, shard_option, yes_option
from framework.terminal.output import echo_lines, reports_errors
from framework.terminal.shards import ShardCommand
from framework.text import format_time, visible
from framework.wire.workflow_fields import WorkflowCommand, is_workflow_id

_HEADINGS = ("SHARD", "WORKFLOW", "STATE", "NAME", "STEP", "JOBS", "CREATED", "DESCRIPTION")


@click.group("workflows", cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
def workflows() -> None:
    """List workflows, cancel or delete one. `jobs workflow` shows one as a graph.

    Code makes them with framework.workflows.Workflow.
    """


@workflows.command("list")
@shard_option
@json_option
@reports_errors
def list_all(*, names: Sequence[str], as_json: bool) -> None:
    """List all workflows, the newest first, with the step that runs."""
    _KIND.print_list(names, as_json=as_json)


@workflows.command("cancel")
@click.argument("workflow_id", metavar="WORKFLOW")
@yes_option
@shard_option
@reports_errors
def cancel(workflow_id: str, *, yes: bool, names: Sequence[str]) -> None:
    """Cancel a workflow: the jobs of its step, and all later steps and branches.

    Jobs that wait do not start any more, and running jobs are asked to end.

    Status 1: no shard has the workflow, or a shard does not answer.
    """
    _change(workflow_id, "cancel", names, yes=yes, question="Cancel", done="is cancelled")


@workflows.command("delete")
@click.argument("workflow_id", metavar="WORKFLOW")
@yes_option
@shard_option
@reports_errors
def delete(workflow_id: str, *, yes: bool, names: Sequence[str]) -> None:
    """Delete a workflow and the batches of its steps: jobs that were written run, and no step starts.

    Status 1: no shard has the workflow, or a shard does not answer.
    """
    _change(workflow_id, "delete", names, yes=yes, question="Delete", done="is deleted; its jobs stay")


@click.command("workflow")
@click.argument("workflow_id", metavar="WORKFLOW")
@shard_option
@json_option
@reports_errors
def workflow(workflow_id: str, *, names: Sequence[str], as_json: bool) -> None:
    """Show a workflow as a graph in Mermaid's language, with the states of its steps.

    The lines before the graph are comments of Mermaid. `workflows list` shows the ids.

    Status 1: no shard has the workflow, or a shard does not answer.
    """
    _KIND.check_id(workflow_id)
    on = ShardCommand(names, "workflows")
    found = [one for _, one in on.each(lambda shard: find_workflow(shard, workflow_id)) if one is not None]
    if as_json:
        on.print_json({"found": [{**asdict(one), "mermaid": "\n".join(mermaid(one))} for one in found]})
    else:
        for one in found:
            echo_lines(_lines(one))
    on.exit_if_unanswered()
    _KIND.exit_if_unknown(workflow_id, known=bool(found))


def _change(
    workflow_id: str, action: WorkflowCommand, names: Sequence[str], *, yes: bool, question: str, done: str
) -> None:
    _KIND.change(
        workflow_id,
        names,
        lambda shard, one: change_workflow(shard, one, action),
        yes=yes,
        question=lambda one: f"{question} the workflow {workflow_id} ({visible(one.name)}, {one.state})?",
        done=done,
    )


_UNREADABLE = "its definition cannot be read"


def _row(one: WorkflowStatus) -> Sequence[str]:
    if not one.steps:
        return one.shard, one.id, one.state, visible(one.name), "-", _UNREADABLE, format_time(one.created_at), "-"
    running = [step for step in one.steps if step.started_at is not None]
    step = max(running, key=lambda step: step.started_at or 0.0) if running else one.steps[0]
    words = (one.state, visible(one.name), visible(step.name), counts(step), format_time(one.created_at))
    return one.shard, one.id, *words, visible(one.description) or "-"


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


_KIND = GroupKind(
    noun="workflow",
    command="workflows",
    id_prefix="wf-",
    is_id=is_workflow_id,
    list_all=list_workflows,
    find=find_workflow,
    headings=_HEADINGS,
    row=_row,
    why_unknown="it was deleted, or has expired",
)
