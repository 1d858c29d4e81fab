"""Define the jobs that start the steps of workflows."""

from typing import cast

from framework.application_worker import ApplicationWorker
from framework.declare import registry
from framework.errors import BacklogFullError, RetryLater
from framework.features.workflows.definition import WORKFLOW_STEP, WorkflowEvent
from framework.features.workflows.workflow import workflows
from framework.telemetry.logs import LogRateLimit

_ROOM_DELAY_S = 10
"""How long a step waits before it looks again whether there is room for its jobs."""
_LOG_INTERVAL_S = 60.0
_log_limit = LogRateLimit(_LOG_INTERVAL_S)


class WorkflowStepWorker(ApplicationWorker):
    """Start a step of a workflow. A callback of the batch of the step before; the first one is pushed by the start."""

    wire_name = WORKFLOW_STEP
    feature_category = "not_owned"
    if hasattr(ApplicationWorker, "idempotent"):
        idempotent = True
    # Each run goes on where the last one ended, so a process that dies with it is no reason to give it up.
    max_retries_after_interruption = -1
    loggable_arguments = ("workflow", "step", "event")

    def perform(self, workflow: str, step: str, event: str) -> None:
        """Note the event of the step, and start the next one. A further run of the job goes on where the last one ended."""
        try:
            workflows().advance(workflow, step, cast("WorkflowEvent", event))
        except BacklogFullError as error:
            _log_limit.warning(
                error.worker,
                f"a step of a workflow waits until there is room for its jobs: the backlog of {error.worker} is full. Let more "
                "processes run the class, or raise max_waiting",
                "workflow.step_waits",
                shard=error.shard,
                workflow=workflow,
                **{"class": error.worker},
            )
            # What is written of the step is noted: the next run of this job goes on behind it.
            raise RetryLater(_ROOM_DELAY_S) from error


# Each process knows the class, and no list of the application's classes has it.
registry.make_built_in(WorkflowStepWorker)
