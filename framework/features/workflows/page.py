"""The workflows, and one of them as a graph of its steps. Operators cancel and delete them here."""

from collections.abc import Iterable
from itertools import islice
from typing import Any

from framework.features.workflows.graph import depths, done_jobs, draw_steps
from framework.features.workflows.store import change_workflow, find_workflow, list_workflows
from framework.features.workflows.workflow import StepStatus, WorkflowStatus
from framework.pages.forms import Form
from framework.pages.page import Page
from framework.pages.shard_action import FormAt, RowAction
from framework.pages.table import Column, Rows, TablePage
from framework.pages.view import Facts, View
from framework.shard.shard import Shard
from framework.text import Sentence

_MOST = 200


class WorkflowRows(Rows[WorkflowStatus]):
    """Some of the workflows that are kept."""

    noun = "workflow"

    def read(self, view: View, shard: Shard) -> Iterable[WorkflowStatus]:  # noqa: ARG002 - of Rows
        """Return workflows of a shard."""
        return list(islice(list_workflows(shard), _MOST))

    def name_of(self, one: WorkflowStatus) -> str:
        """Return the id."""
        return one.id

    def facts(self, one: WorkflowStatus) -> Facts:
        """Return the state and the progress."""
        jobs = sum(step.jobs or 0 for step in one.steps)
        return {
            "workflow": one.name,
            "description": one.description,
            "state": one.state,
            "steps": (sum(1 for step in one.steps if step.ended_at is not None), len(one.steps)),
            "jobs": (sum(map(done_jobs, one.steps)), jobs),
            "dead": sum(step.dead for step in one.steps),
            "created_at": one.created_at,
            "ended_at": one.ended_at,
        }


class CancelWorkflow(RowAction[WorkflowStatus]):
    """Cancel workflows and their jobs."""

    name = "cancel"
    label = "Cancel"
    record = "workflows cancel"
    is_harmful = True
    rows = WorkflowRows()

    def shown(self, at: FormAt, one: WorkflowStatus) -> str:
        """Return its state and its jobs."""
        return Sentence(
            "{name} {id} on {shard}: {state}, {number:,} jobs pending",
            name=one.name,
            id=one.id,
            shard=at.shard.name,
            state=one.state,
            number=sum(step.pending for step in one.steps),
        )

    def effect(self, form: Form) -> str:  # noqa: ARG002 - of ShardAction
        """Return what follows."""
        return Sentence(
            "No further step starts, waiting jobs do not start, and running ones are asked to end. This cannot be undone."
        )

    def change(self, at: FormAt, one: WorkflowStatus) -> int:
        """Cancel it if it is still there."""
        return int(change_workflow(at.shard, one.id, "cancel"))


class DeleteWorkflow(RowAction[WorkflowStatus]):
    """Delete the states of workflows."""

    name = "delete"
    label = "Delete state"
    role = "admin"
    record = "workflows delete"
    is_harmful = True
    rows = WorkflowRows()

    def effect(self, form: Form) -> str:  # noqa: ARG002 - of ShardAction
        """Return what follows."""
        return Sentence(
            "Jobs that are in queues still run, no further step starts, and no callback is enqueued. This cannot be "
            "undone."
        )

    def change(self, at: FormAt, one: WorkflowStatus) -> int:
        """Delete its state."""
        return int(change_workflow(at.shard, one.id, "delete"))


class WorkflowsPage(TablePage[WorkflowStatus]):
    """Show the workflows, the newest first."""

    name = "workflows"
    path = "/workflows"
    title = "Workflows"
    menu = "jobs"
    rows = WorkflowRows()
    heading = "Workflow"
    name_kind = "workflow"
    columns = (
        Column("Name", "workflow"),
        Column("Description", "description"),
        Column("State", "state", "tag"),
        Column("Steps", "steps", "progress"),
        Column("Jobs", "jobs", "progress"),
        Column("Dead", "dead", "count"),
        Column("Made", "created_at", "time"),
        Column("Ended", "ended_at", "time"),
    )
    empty = "No workflow is kept."
    actions = (CancelWorkflow(), DeleteWorkflow())

    def order(self, row: Facts) -> Any:
        """Return the newest first."""
        return -row["created_at"], row["name"]


class WorkflowPage(Page):
    """Show one workflow: the graph of its steps, and a table of them with their jobs, batches and times."""

    name = "workflow"
    path = "/workflows/{workflow}"
    title = "Workflow"

    async def read(self, view: View) -> Facts:
        """Read the workflow on the shard that has it.

        Raises:
            UnknownNameError: no shard has it, and all answer.
        """
        name = view.parameters["workflow"]
        one = await view.find(
            lambda shard: find_workflow(view.shards[shard], name), Sentence("the workflow {name}", name=name)
        )
        if one is None:
            return {"workflow": name, "name": "", "steps": []}
        levels = depths(one.steps)
        return {
            "workflow": one.id,
            "shard": one.shard,
            "name": one.name,
            "description": one.description,
            "state": one.state,
            "parent": one.parent,
            "created_at": one.created_at,
            "ended_at": one.ended_at,
            "cancelled_at": one.cancelled_at,
            "steps": [
                {"level": levels[step.name] + 1, **_step_facts(step)}
                for step in sorted(one.steps, key=lambda step: levels[step.name])
            ],
            "graph": draw_steps(one.steps),
        }


def _step_facts(step: StepStatus) -> Facts:
    return {
        "name": step.name,
        "state": step.state,
        "after": step.after,
        "on": step.on,
        "classes": list(step.workers),
        "bid": step.bid,
        "jobs": step.jobs,
        "done": done_jobs(step),
        "pending": step.pending,
        "failures": step.failures,
        "dead": step.dead,
        "removed": step.removed,
        "started_at": step.started_at,
        "ended_at": step.ended_at,
    }
