"""Define the record of cron."""

from typing import Any

from framework.feature import Feature, Figures, Hold, Late, LateCommand, Rights

_PUSH: Late[Any] = Late("framework.features.cron.store:CRON_PUSH")

CRON = Feature(
    name="cron",
    bases=(Late("framework.features.cron.cron_worker:CronWorker"),),
    rights={
        "worker": Rights(scripts=(Late("framework.features.cron.leadership:LEAD"), _PUSH)),
        "operator": Rights(scripts=(_PUSH,)),
    },
    holds=(Hold(name="entry", field="cron", waiter=Late("framework.features.cron.payload:WAITER")),),
    worker=Late("framework.features.cron.worker:worker_part"),
    problems=Late("framework.features.cron.entries:schedule_problems"),
    explain=Late("framework.features.cron.explain:CronReader"),
    figures=Figures(reader=Late("framework.features.cron.figures:CronFigures"), part="cron/figures"),
    causes=Late("framework.features.cron.causes:CronCauses"),
    pages=(Late("framework.features.cron.page:CronPage"),),
    commands=(
        LateCommand(
            "cron", "Show the schedule, and change its entries.", Late("framework.features.cron.commands:cron")
        ),
    ),
)
