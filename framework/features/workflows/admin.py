"""Iterate over the workflows of the shards."""

from collections.abc import Iterator

from framework.admin.access import StatusSet
from framework.features.workflows.store import list_workflows
from framework.features.workflows.workflow import WorkflowStatus
from framework.shard.shard import Shard


class WorkflowSet(StatusSet[WorkflowStatus]):
    """The workflows of a shard, or of all: iterate over their statuses, ``for status in admin.workflows():``."""

    def _of_shard(self, shard: Shard) -> Iterator[WorkflowStatus]:
        return list_workflows(shard)


def workflows(shard: str | None = None) -> WorkflowSet:
    """Return the workflows of the shard, or of all shards. ``framework.workflows.WorkflowRun`` acts on one."""
    return WorkflowSet(shard)
