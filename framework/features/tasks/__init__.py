"""Define the record of tasks."""

from framework.feature import Feature, Figures, Late, LateCommand

TASKS = Feature(
    name="tasks",
    recorder=Late("framework.features.tasks.access:open_recorder"),
    job_groups={"aw_task": "task"},
    worker=Late("framework.features.tasks.worker:worker_part"),
    pages=(Late("framework.features.tasks.page:TasksPage"), Late("framework.features.tasks.page:TaskPage")),
    job_story=Late("framework.features.tasks.page:recorded_story"),
    figures=Figures(reader=Late("framework.features.tasks.figures:TaskFigures"), part="tasks/figures"),
    commands=(
        LateCommand(
            "tasks",
            "Show tasks, cancel and retry them, and make their tables.",
            Late("framework.features.tasks.commands:tasks"),
        ),
        LateCommand(
            "ledger",
            "Find recorded jobs that Redis has lost, and enqueue them again.",
            Late("framework.features.tasks.commands:ledger"),
        ),
    ),
)
