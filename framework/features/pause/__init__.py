"""The record of pause."""

from framework.feature import Feature, Late, LateCommand

PAUSE = Feature(
    name="pause",
    problems=Late("framework.features.pause.strategies:pause_problems"),
    worker=Late("framework.features.pause.admission:worker_part"),
    explain=Late("framework.features.pause.explain:PauseReader"),
    job_commands=(
        LateCommand(
            "pause",
            "Hold the jobs of CLASS when they are fetched, until the pause ends.",
            Late("framework.features.pause.commands:pause"),
        ),
        LateCommand("paused", "Show the paused queues and classes.", Late("framework.features.pause.commands:paused")),
        LateCommand(
            "resume",
            "End the pause of CLASS and return its held jobs to their queues.",
            Late("framework.features.pause.commands:resume_"),
        ),
    ),
)
