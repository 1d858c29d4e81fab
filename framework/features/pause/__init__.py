"""Define the record of pause."""

from typing import Any

from framework.feature import Feature, Figures, Late, LateCommand, Rights

_RELEASE: Late[Any] = Late("framework.features.pause.store:RELEASE_PAUSED")

PAUSE = Feature(
    name="pause",
    rights={
        "worker": Rights(scripts=(Late("framework.features.pause.store:HOLD_PAUSED"), _RELEASE)),
        "operator": Rights(scripts=(_RELEASE,)),
    },
    problems=Late("framework.features.pause.strategies:pause_problems"),
    worker=Late("framework.features.pause.admission:worker_part"),
    explain=Late("framework.features.pause.explain:PauseReader"),
    figures=Figures(reader=Late("framework.features.pause.figures:PauseFigures"), part="pause/figures"),
    causes=Late("framework.features.pause.causes:PauseCauses"),
    class_actions=(
        Late("framework.features.pause.page_actions:PauseClass"),
        Late("framework.features.pause.page_actions:ResumeClass"),
    ),
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
