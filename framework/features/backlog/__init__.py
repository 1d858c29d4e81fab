"""Define the record of backlog."""

from framework.feature import Feature, Late, LateCommand, Rights

BACKLOG = Feature(
    name="backlog",
    rights={
        "read-only": Rights(commands=("hkeys", "hstrlen", "info", "memory|usage", "randomkey")),
    },
    job_commands=(
        LateCommand(
            "memory",
            "Show how much of the memory of a shard each class fills in each place.",
            Late("framework.features.backlog.commands:memory"),
        ),
    ),
)
