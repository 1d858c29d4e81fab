"""Define the record of workflows."""

from framework.feature import Feature, Late, LateCommand

WORKFLOWS = Feature(
    name="workflows",
    explain=Late("framework.features.workflows.explain:WorkflowReader"),
    worker=Late("framework.features.workflows.worker:worker_part"),
    commands=(
        LateCommand(
            "workflows",
            "List workflows, cancel or delete one.",
            Late("framework.features.workflows.commands:workflows"),
        ),
    ),
    job_commands=(
        LateCommand(
            "workflow",
            "Show a workflow as a graph in Mermaid's language, with the states of its steps.",
            Late("framework.features.workflows.commands:workflow"),
        ),
    ),
)
