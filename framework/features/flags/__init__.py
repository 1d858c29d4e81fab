"""Define the record of flags."""

from framework.feature import Feature, Late, LateCommand

FLAGS = Feature(
    name="flags",
    worker=Late("framework.features.flags.process_flags:worker_part"),
    assumptions=Late("framework.features.flags.explain:FlagAssumption"),
    pages=(Late("framework.features.flags.page:FlagsPage"),),
    class_actions=(
        Late("framework.features.flags.page:DropJobs"),
        Late("framework.features.flags.page:DeferJobs"),
        Late("framework.features.flags.page:RunJobs"),
    ),
    commands=(
        LateCommand(
            "flags",
            "List, set and clear the application's feature flags.",
            Late("framework.features.flags.commands:flags"),
        ),
    ),
    job_commands=(
        LateCommand(
            "drop", "Drop jobs of CLASS when they are fetched.", Late("framework.features.flags.class_commands:drop")
        ),
        LateCommand(
            "defer", "Defer jobs of CLASS when they are fetched.", Late("framework.features.flags.class_commands:defer")
        ),
        LateCommand(
            "flags",
            "Show and clear the flags that operators set on classes.",
            Late("framework.features.flags.class_commands:flags"),
        ),
    ),
)
