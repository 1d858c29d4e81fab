"""Define the record of profiling."""

from framework.feature import Feature, Late, LateCommand
from framework.wire.keys import profile

PROFILING = Feature(
    name="profiling",
    places={profile(""): "profiles"},
    explain=Late("framework.features.profiling.explain:ProfileReader"),
    worker=Late("framework.features.profiling.worker:worker_part"),
    pages=(Late("framework.features.profiling.page:ProfilesPage"),),
    job_commands=(
        LateCommand(
            "profile",
            "Write the profile of the job JID as a page of HTML; without JID, list the kept profiles.",
            Late("framework.features.profiling.commands:profile"),
        ),
    ),
)
