"""Define the jobs that start the steps of workflows."""

from typing import cast

from framework.application_worker import ApplicationWorker
from framework.declare import registry
from framework.features.workflows.definition import WORKFLOW_STEP, WorkflowEvent
from framework.features.workflows.workflow import workflows


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
        workflows().advance(workflow, step, cast("WorkflowEvent", event))


# Each process knows the class, and no list of the application's classes has it.
registry.make_built_in(WorkflowStepWorker)
