"""List the workflows of the shards, and change one."""

from collections.abc import Iterator

from framework.admin.access import StatusSet
from framework.admin.batch_set import change_batch
from framework.declare.workflow_port import WorkflowStatus
from framework.shard.groups import read_workflows, scan_workflows
from framework.shard.shard import Shard
from framework.store.script import WORKFLOW_CHANGE
from framework.wire import keys
from framework.wire.workflow_fields import WorkflowCommand


class WorkflowSet(StatusSet[WorkflowStatus]):
    """The workflows of a shard, or of all: iterate over their statuses, ``for status in admin.workflows():``."""

    def _of_shard(self, shard: Shard) -> Iterator[WorkflowStatus]:
        return list_workflows(shard)


def workflows(shard: str | None = None) -> WorkflowSet:
    """Return the workflows of the shard, or of all shards. ``framework.workflows.WorkflowRun`` acts on one."""
    return WorkflowSet(shard)


def list_workflows(shard: Shard) -> Iterator[WorkflowStatus]:
    """Yield the workflows of one shard. Raises redis errors."""
    for ids in scan_workflows(shard.client):
        if ids:
            yield from read_workflows(shard.client, shard.name, ids)


def find_workflow(shard: Shard, workflow_id: str) -> WorkflowStatus | None:
    """Return the status of a workflow, ``None`` if the shard does not have it. Raises redis errors."""
    return next(iter(read_workflows(shard.client, shard.name, [workflow_id])), None)


def change_workflow(shard: Shard, status: WorkflowStatus, action: WorkflowCommand) -> bool:
    """Cancel or delete a workflow, and then the batches of its steps; return whether the shard has it. Raises redis errors."""
    known = WORKFLOW_CHANGE(shard.client, [keys.workflow(status.id), keys.WORKFLOWS], [status.id, action, ""])
    for step in status.steps:
        change_batch(shard, step.bid, action)
    return bool(known)
