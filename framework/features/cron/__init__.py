"""The record of cron."""

from framework.feature import Feature, Late, LateCommand

CRON = Feature(
    name="cron",
    bases=(Late("framework.features.cron.cron_worker:CronWorker"),),
    problems=Late("framework.cron.entries:schedule_problems"),
    commands=(
        LateCommand(
            "cron", "Show the schedule, and change its entries.", Late("framework.features.cron.commands:cron")
        ),
    ),
)
