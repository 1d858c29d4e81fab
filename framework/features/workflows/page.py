"""The workflows, and one of them as a graph of its steps. Operators cancel and delete them here."""

from collections.abc import Iterable
from itertools import islice
from typing import Any

from framework.features.workflows.store import change_workflow, find_workflow, list_workflows
from framework.features.workflows.workflow import StepStatus, WorkflowStatus
from framework.pages.forms import Form
from framework.pages.page import Page
from framework.pages.shard_action import FormAt, RowAction
from framework.pages.table import Column, Rows, TablePage
from framework.pages.view import Facts, View
from framework.shard.shard import Shard

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
        pending = sum(step.pending for step in one.steps)
        return {
            "workflow": one.name,
            "description": one.description,
            "state": one.state,
            "steps": (sum(1 for step in one.steps if step.ended_at is not None), len(one.steps)),
            "jobs": (max(0, jobs - pending), jobs),
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
        return f"{one.name} {one.id} on {at.shard.name}: {one.state}, {sum(step.pending for step in one.steps):,} jobs pending"

    def effect(self, form: Form) -> str:  # noqa: ARG002 - of ShardAction
        """Return what follows."""
        return "No further step starts, waiting jobs do not start, and running ones are asked to end. This cannot be undone."

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
        return "Jobs that are in queues still run, no further step starts, and no callback is enqueued. This cannot be undone."

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
    """Show one workflow: its steps by depth, each with its jobs, its batch and its times."""

    name = "workflow"
    path = "/workflows/{workflow}"
    title = "Workflow"

    async def read(self, view: View) -> Facts:
        """Read the workflow on the shard that has it; without ``levels`` if none has."""
        name = view.parameters["workflow"]
        found = await view.each(lambda shard: find_workflow(view.shards[shard], name))
        one = next((each for each in found.values() if each is not None), None)
        if one is None:
            return {"workflow": name, "name": "", "levels": []}
        levels: dict[int, list[Facts]] = {}
        depths = _depths(one)
        for step in one.steps:
            levels.setdefault(depths[step.name], []).append(_step_facts(step))
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
            "levels": [levels[depth] for depth in sorted(levels)],
        }


def _depths(one: WorkflowStatus) -> dict[str, int]:
    """Return the level of each step in the graph. A definition that was changed in Redis may name steps that are not there."""
    found: dict[str, int] = {}
    for step in one.steps:
        found[step.name] = found.get(step.after, -1) + 1
    # The branch of all failures stands behind every step of the main line.
    last = max(found.values(), default=0)
    return {step.name: last + 1 if step.on == "failure" and not step.after else found[step.name] for step in one.steps}


def _step_facts(step: StepStatus) -> Facts:
    return {
        "name": step.name,
        "state": step.state,
        "after": step.after,
        "on": step.on,
        "classes": list(step.workers),
        "bid": step.bid,
        "jobs": step.jobs,
        "pending": step.pending,
        "failures": step.failures,
        "dead": step.dead,
        "removed": step.removed,
        "started_at": step.started_at,
        "ended_at": step.ended_at,
    }
