"""Run steps one after the other, each of many jobs in parallel: ``Workflow`` starts the next step when a batch has succeeded.

    from framework.workflows import Workflow, computed, computes_arguments

    @computes_arguments
    def products_of(catalogue: str) -> Iterator[tuple[str, int]]: ...

    run = (
        Workflow("catalogue")
        .step("import", ImportRowWorker, [(catalogue, row) for row in rows])
        .then("validate", ValidateWorker, computed(products_of, catalogue))
        .then("publish", PublishWorker, [(catalogue,)])
        .on_failure("report", ReportWorker, [(catalogue,)])
        .start()
    )

    WorkflowRun(run.id).status.state

The definition is stored when the workflow is started. Each step is started once, by a callback of the batch of the step before.
"""

from framework.errors import UnknownWorkflowError, WorkflowError
from framework.features.workflows.workflow import (
    Computed,
    StepStatus,
    Workflow,
    WorkflowRun,
    WorkflowStatus,
    computed,
    computes_arguments,
    result_of,
    results_of,
)

__all__ = [
    "Computed",
    "StepStatus",
    "UnknownWorkflowError",
    "Workflow",
    "WorkflowError",
    "WorkflowRun",
    "WorkflowStatus",
    "computed",
    "computes_arguments",
    "result_of",
    "results_of",
]
