"""Define the record of concurrency."""

from framework.feature import Feature, Figures, Late, LateCommand, Rights

CONCURRENCY = Feature(
    name="concurrency",
    rights={
        "worker": Rights(
            scripts=(
                Late("framework.features.concurrency.limits:THROTTLE"),
                Late("framework.features.concurrency.database_load:ADD_SECONDS"),
                Late("framework.features.concurrency.store:READ_PORTIONS"),
                Late("framework.features.concurrency.store:DIVIDE"),
                Late("framework.features.concurrency.store:USE_PORTION"),
            )
        )
    },
    observer=Late("framework.features.concurrency.observer:observer"),
    bases=(Late("framework.features.concurrency.limited_capacity:LimitedCapacityWorker"),),
    worker=Late("framework.features.concurrency.admission:worker_part"),
    explain=Late("framework.features.concurrency.explain:LimitReader"),
    assumptions=Late("framework.features.concurrency.explain:LimitAssumption"),
    figures=Figures(reader=Late("framework.features.concurrency.figures:LimitFigures"), part="concurrency/figures"),
    causes=Late("framework.features.concurrency.causes:LimitCauses"),
    pages=(Late("framework.features.concurrency.page:LimitsPage"),),
    class_actions=(Late("framework.features.concurrency.page_actions:LimitClass"),),
    job_commands=(
        LateCommand(
            "limits", "Show, set and clear concurrency limits.", Late("framework.features.concurrency.commands:limits")
        ),
    ),
)
