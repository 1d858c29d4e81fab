"""Define the record of workflows."""

from typing import Any

from framework.feature import Feature, Late, LateCommand, Rights
from framework.features.workflows import keys

_CHANGE: Late[Any] = Late("framework.features.workflows.store:CHANGE")

WORKFLOWS = Feature(
    name="workflows",
    places={keys.workflow(""): "workflows"},
    explain=Late("framework.features.workflows.explain:WorkflowReader"),
    rights={
        "producer": Rights(keys=(keys.WORKFLOWS, keys.workflow("*")), scripts=(_CHANGE,)),
        "worker": Rights(scripts=(Late("framework.features.workflows.store:ADVANCE"),)),
        "operator": Rights(scripts=(_CHANGE,)),
    },
    worker=Late("framework.features.workflows.worker:worker_part"),
    pages=(
        Late("framework.features.workflows.page:WorkflowsPage"),
        Late("framework.features.workflows.page:WorkflowPage"),
    ),
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
