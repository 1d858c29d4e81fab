"""Define the record of fairness."""

from framework.feature import Feature, Late, LateCommand, Rights

FAIRNESS = Feature(
    name="fairness",
    rights={"operator": Rights(scripts=(Late("framework.features.fairness.store:CHANGE_PRIORITY"),))},
    push=Late("framework.features.fairness.push:add_sub_queues"),
    worker=Late("framework.features.fairness.worker:worker_part"),
    job_commands=(
        LateCommand(
            "set-priority",
            "Give jobs that wait another priority: in a queue, in the schedule set, or for a retry.",
            Late("framework.features.fairness.commands:set_priority"),
        ),
    ),
)
