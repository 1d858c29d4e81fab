"""The record of concurrency."""

from framework.feature import Feature, Late, LateCommand

CONCURRENCY = Feature(
    name="concurrency",
    bases=(Late("framework.features.concurrency.limited_capacity:LimitedCapacityWorker"),),
    worker=Late("framework.features.concurrency.admission:worker_part"),
    explain=Late("framework.features.concurrency.explain:LimitReader"),
    assumptions=Late("framework.features.concurrency.explain:LimitAssumption"),
    gauges=Late("framework.features.concurrency.admin:limit_gauges"),
    job_commands=(
        LateCommand(
            "limits", "Show, set and clear concurrency limits.", Late("framework.features.concurrency.commands:limits")
        ),
    ),
)
